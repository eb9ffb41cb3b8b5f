"""Logs in words: blocks of speedtest-cli --simple under a date, or lines such as 'Up = 23.4, Down = 39.8'."""

from __future__ import annotations

import re
import statistics

from testbed.traces.formats import Format, Options
from testbed.traces.infer import column_factor
from testbed.traces.records import NAN, LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.times import Clock
from testbed.traces.units_of import factor as unit_factor
from testbed.traces.units_of import scaled

_VALUE = re.compile(
    r"""(?ix)\b(down(?:load)?|up(?:load)?|ping|latency|jitter)\s*(?:speed|rate)?\s*[:=]\s*["']?
        ([-+]?\d+(?:\.\d+)?)\s*([A-Za-zµ/]+)?"""
)
_STAMP = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}[T ]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})[ ,T]+\d{1,2}:\d{2}(?::\d{2})?(?:\s*[AP]M)?"
)
LONGEST = 2000  # characters of a line that are looked at
_FIELDS = {"d": "down_bps", "u": "up_bps", "p": "rtt_s", "l": "rtt_s", "j": "jitter_s"}
_KEYS = {"down_bps": "down", "up_bps": "up", "rtt_s": "rtt", "jitter_s": "jitter"}


def _found(line: str) -> list[tuple[str, float, str]]:
    line = line[:LONGEST]
    return [(_FIELDS[m[1][0].lower()], float(m[2]), m[3] or "") for m in _VALUE.finditer(line)]


def detect(sample: Sample) -> float:
    if sample.layout.header and len(sample.layout.header) > 3:
        return 0.0
    lines = sample.lines[:200]
    rates = sum(any(f in ("down_bps", "up_bps") for f, _, _ in _found(line)) for line in lines)
    stamps = sum(bool(_STAMP.search(line[:LONGEST])) for line in lines)
    return 0.4 if rates >= 0.2 * len(lines) and stamps >= 0.1 * len(lines) and rates else 0.0


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report
    records = records or LinkRecords(
        report,
        zero="failed",
        absolute=True,
        floor_bps=options.floor_bps,
        labels={"down_bps": "Download", "up_bps": "Upload", "rtt_s": "Ping", "jitter_s": "Jitter"},
    )
    clock = Clock(report, options.zone, options.dates)
    clock.learn(m[0] for line in source.sample.lines if (m := _STAMP.search(line[:LONGEST])))
    factors = _factors(source.sample, report)
    home = options.home or source.stem
    time, began, values, lines = None, None, {}, 0

    def finish():
        if time is None:
            return
        if not values:
            if lines:
                report.rows += 1
                records.failed(began, "no result under this time")
            return
        if not ({"down_bps", "up_bps"} & set(values)):
            report.rows += 1
            records.failed(began, "no rate under this time")
            return
        records.add(began, home, time, **{_KEYS[f]: v for f, v in values.items()})

    one_line = None
    for number, line in source.lines():
        stamp, found = _STAMP.search(line[:LONGEST]), _found(line)
        if stamp is None and not found:
            continue
        if stamp is not None:
            if one_line is None or found or one_line is False:
                finish()
                values, lines = {}, 0
            try:
                time, began = clock.epoch(stamp[0].replace(",", " ") if "/" in stamp[0] else stamp[0]), number
            except ValueError as error:
                report.repair("unreadable rows dropped", str(error), number)
                time = None
            one_line = bool(found)
            lines = 0 if found else 1
            if not found and _other_text(line, stamp[0]):
                time, values, lines = None, {}, 0  # some other entry of the log
        for field, value, unit in found:
            scale = unit_factor(field, unit) if unit else factors.get(field)
            if scale is None:
                scale = factors.get(field)
            if scale is None:
                report.repair("unreadable rows dropped", f"{value:g} {unit} has no known unit", number)
                continue
            values[field] = scaled(value, scale)
    finish()
    return records


def _other_text(line: str, stamp: str) -> bool:
    rest = line.replace(stamp, "").strip(" -:[]()")
    return len(rest) > 20


def _factors(sample: Sample, report) -> dict[str, float]:
    """SI per unit where no value names its unit."""
    bare: dict[str, list[float]] = {}
    for line in sample.lines:
        for field, value, unit in _found(line):
            if not unit or unit_factor(field, unit) is None:
                bare.setdefault(field, []).append(value)
    return {
        field: column_factor(field, field, [f"{v:g}" for v in values], report) or NAN
        for field, values in bare.items()
        if values and statistics.median(values) >= 0
    }


FORMATS = (Format("text-log", "links", "a log in words (speedtest-cli --simple and the like)", detect, read),)
