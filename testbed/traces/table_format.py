"""Formats that are tables with known columns: declared, not programmed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.traces.formats import Format, Options
from testbed.traces.named import decimal_comma, time_columns
from testbed.traces.names import private
from testbed.traces.plan import EVEN, STAMP, Column, Plan, TimeColumns
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Layout, check_once
from testbed.traces.tabular import TableReader
from testbed.traces.units_of import FACTORS, factor


@dataclass(frozen=True)
class TableFormat:
    """A table format.

    needs: names that a header of this format has (compared without case, blanks, underscores and units in brackets).
    columns: field -> (names in order of preference, unit). time: names, the second one (if any) of the time
    of day; empty for a format without times. homes: names that together name the home.
    unheaded: for tables without header, a function from the layout to name -> index, or None when it is
    another format.
    loss_pair: names of (failures, successes). alive: name of the column that is 0 for a failed test.
    drops: names of columns with personal data, beside those that names alone give away.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    columns: Mapping[str, tuple[tuple[str, ...], str]]
    time: tuple[tuple[str, ...], ...] = (("timestamp",),)
    homes: tuple[str, ...] = ()
    unheaded: Callable[[Layout], Mapping[str, int] | None] | None = None
    loss_pair: tuple[str, str] | None = None
    alive: str | None = None
    zero: str = "failed"
    sparse: bool = False
    repeats: bool = False
    population: str | None = None
    ragged: bool = False
    drops: tuple[str, ...] = ()
    family: str | None = None
    check: Callable[[Layout, Source], None] | None = None
    confidence: float = 0.95
    marks: frozenset[float] = field(default_factory=frozenset)

    def format(self) -> Format:
        """This format for the registry."""
        return Format(self.name, "links", self.title, self.detect, self.read, family=self.family)

    def detect(self, sample: Sample) -> float:
        layout = sample.layout
        if layout.header:
            names = {_plain(n) for n in layout.header}
            return self.confidence if {_plain(n) for n in self.needs} <= names else 0.0
        if self.unheaded and layout.rows and self.unheaded(layout):
            return self.confidence - 0.05
        return 0.0

    def read(self, source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
        layout = source.sample.layout
        where = self._where(layout, source)
        plan = self._plan(layout, where, source, options)
        if self.check:
            self.check(layout, source)
        return TableReader(source, options, layout, plan, records).read()

    def _where(self, layout: Layout, source: Source) -> dict[str, int]:
        if layout.header:
            where: dict[str, int] = {}
            for i, name in enumerate(layout.header):
                where.setdefault(_plain(name), i)
            return where
        found = self.unheaded(layout) if self.unheaded else None
        if found is None:
            raise source.report.error(
                f"has no header and is not laid out as {self.title}", hint="name the columns by --map"
            )
        return {_plain(name): i for name, i in found.items()}

    def _plan(self, layout: Layout, where: dict[str, int], source: Source, options: Options) -> Plan:
        report = source.report
        columns = []
        for fieldname, (names, unit) in self.columns.items():
            name = next((n for n in names if _plain(n) in where), None)
            if name is not None:
                index = where[_plain(name)]
                own = _unit_of(layout.header[index]) if index < len(layout.header) else None
                columns.append(Column(fieldname, index, factor(fieldname, own or unit), name))
        if not columns:
            raise report.error(f"has none of the columns of {self.title}")
        time = self._time(layout, where, report, options)
        homes = tuple(where[_plain(n)] for n in self.homes if _plain(n) in where)
        pair = self.loss_pair and tuple(where.get(_plain(n), -1) for n in self.loss_pair)
        alive = where.get(_plain(self.alive)) if self.alive else None
        used = {c.index for c in columns} | {time.index, time.second, *homes}
        check_once(layout, used | {*(pair or ()), -1 if alive is None else alive}, report)
        drops = [n for n in layout.header if _plain(n) in {_plain(d) for d in self.drops}]
        drops += [n for n in private(layout.header, used) if n not in drops]
        if not layout.header:
            drops = [n for n in self.drops if _plain(n) in where]
        return Plan(
            tuple(columns),
            time,
            homes,
            width=None if self.ragged else layout.width,
            zero=self.zero,
            sparse=self.sparse,
            repeats=self.repeats,
            population=self.population,
            private=tuple(drops),
            decimal_comma=decimal_comma(layout, [c.index for c in columns]),
            loss_pair=pair if pair and min(pair) >= 0 else None,
            alive=alive,
            marks=self.marks,
        )

    def _time(self, layout: Layout, where, report, options: Options) -> TimeColumns:
        found = []
        for names in self.time:
            name = next((n for n in names if _plain(n) in where), None)
            if name is not None:
                found.append((where[_plain(name)], name))
        if self.population is not None:
            return TimeColumns(EVEN, factor=0.0)
        if not found:
            if options.every_s is None:
                report.assumed["time"] = "a row an hour (the file has no time column; --every states another)"
            return TimeColumns(EVEN, factor=options.every_s or 3600.0)
        index, name = found[0]
        second = found[1][0] if len(found) > 1 else -1
        cells = [row[index] for row in layout.rows if index < len(row)]
        if second >= 0:
            return TimeColumns(STAMP, index, second, label=name)
        return time_columns(cells, index, -1, None, name, report)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9%]+", "", _without_unit(name).lower())


_UNIT = re.compile(r"\s*[(\[]([^()\[\]]{1,20})[)\]]\s*\Z")


def _without_unit(name: str) -> str:
    return _UNIT.sub("", name) if _unit_of(name) else name


def _unit_of(name: str) -> str | None:
    """The unit that a header cell states in brackets: 'Download (Mbit/s)'."""
    match = _UNIT.search(name.strip().strip("\"'"))
    return match[1] if match and any(kind(match[1]) is not None for kind in FACTORS.values()) else None
