"""Formats that are JSON results, one measurement an object: declared, not programmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed.traces.formats import Format, Options
from testbed.traces.json_records import Row, json_records
from testbed.traces.json_text import get, number_at
from testbed.traces.records import FIELDS, LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.times import Clock
from testbed.traces.units_of import factor

Path = tuple[str, ...]


@dataclass(frozen=True)
class JsonFormat:
    """A format of JSON results: one document, a list of results, or one a line.

    needs: paths that a result of this format has, such as ('download', 'bandwidth').
    columns: field of `records.FIELDS` -> path of its value. units: field -> its unit in the file.
    time: paths of the time, in order of preference; results without one are an hour apart (--every).
    failed: paths of an error message: a result that has one and no rate is a failed test.
    row: for formats that paths can't describe: (object, clock) -> (time [s], download, upload, rtt, jitter, loss),
    each in its unit; a string for a failed test, None for what is no measurement.
    drops: what a result has of personal data. sparse: a result has some of the quantities, by design.
    """

    name: str
    title: str
    needs: tuple[Path, ...]
    units: Mapping[str, str]
    columns: Mapping[str, Path] = field(default_factory=dict)
    time: tuple[Path, ...] = (("timestamp",), ("time",))
    failed: tuple[Path, ...] = (("error",),)
    row: Callable[[Any, Clock], Row | str | None] | None = None
    home: Callable[[Any, LinkRecords], str | None] | None = None
    drops: tuple[str, ...] = ()
    sparse: bool = False
    confidence: float = 0.95

    def format(self) -> Format:
        """This format for the registry."""
        return Format(self.name, "links", self.title, self.detect, self.read)

    def detect(self, sample: Sample) -> float:
        values = sample.json if isinstance(sample.json, list) else [sample.json]
        fits = any(all(get(value, *path) is not None for path in self.needs) for value in values[:20])
        return self.confidence if fits else 0.0

    def read(self, source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
        source.report.drop(*self.drops)
        return json_records(
            source,
            options,
            self.row or self._row,
            scale=tuple(factor(f, self.units[f]) or 1.0 if f in self.units else 1.0 for f in FIELDS),  # type: ignore
            labels={f: ".".join(path) for f, path in self.columns.items()},
            records=records,
            home=self.home,
            sparse=self.sparse,
        )

    def _row(self, value: Any, clock: Clock) -> Row | str | None:
        values = [number_at(value, *self.columns[f]) if f in self.columns else None for f in FIELDS]
        if values[0] is None and values[1] is None:
            told = next((text for path in self.failed if (text := get(value, *path))), None)
            return str(told or "no rate")
        time = next((found for path in self.time if (found := get(value, *path)) is not None), None)
        return (clock.epoch(str(time)) if time is not None else None, *values)  # type: ignore[return-value]
