"""Read JSON results, one measurement an object, into link records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed.traces.json_objects import objects
from testbed.traces.records import FAILED_RATE, NAN, LinkRecords
from testbed.traces.source import Source
from testbed.traces.tabular import BROKEN
from testbed.traces.times import Clock
from testbed.traces.units_of import scaled

Row = tuple[float | None, float | None, float | None, float | None, float | None, float | None]


def _scaled(index: int, value: float | None, factor: float, zero: str) -> float:
    if value == -1 and zero == "failed":
        return FAILED_RATE if index < 2 else NAN
    return NAN if value is None else scaled(value, factor)


def json_records(
    source: Source,
    options,
    row: Callable[[Any, Clock], Row | str | None],
    *,
    scale: tuple[float, float, float, float, float],
    labels: dict[str, str],
    records: LinkRecords | None = None,
    home: Callable[[Any, LinkRecords], str | None] | None = None,
    zero: str = "failed",
    sparse: bool = False,
) -> LinkRecords:
    """Records from every object of the file.

    row: (object, clock) -> (time [s], download, upload, rtt, jitter, loss), each in the format's own unit; a
    string when the object tells of a failed test; None when it is no measurement at all. Times of None are
    taken to be even. scale: SI per unit, in the order of records.FIELDS.

    Raises:
        InputError: impossible values, or more unreadable objects than readable ones.
    """
    report = source.report
    clock = Clock(report, options.zone, options.dates)
    if records is None:
        records = LinkRecords(
            report, zero=zero, labels=labels, absolute=True, floor_bps=options.floor_bps, sparse=sparse
        )
    name = options.home or source.stem
    kept = broken = even = 0
    for line, value in objects(source):
        try:
            result = row(value, clock)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            broken += 1
            report.rows += 1
            text = f"no {error}" if isinstance(error, KeyError) else str(error)
            report.repair("unreadable objects dropped", text[:100], line)
            continue
        if result is None:
            continue
        if isinstance(result, str):
            report.rows += 1
            records.failed(line, result[:80])
            continue
        time, *values = result
        if time is None:
            time = even * (options.every_s or 3600.0)
            even += 1
            records.absolute = False
        kept += 1
        records.add(
            line,
            (home(value, records) if home else None) or name,
            time,
            *(_scaled(i, v, k, records.zero) for i, (v, k) in enumerate(zip(values, scale))),
        )
    if even > 1 and options.every_s is None:
        report.assumed["time"] = "a result an hour (they carry no time; --every states another)"
    if broken > BROKEN * (kept + broken):
        first = next((r.examples[0] for k, r in report.repairs.items() if k.startswith("unreadable")), "")
        raise report.error(
            f"{broken} of {broken + kept} objects can't be read as {report.format}: {first}",
            hint="name another --format",
        )
    return records
