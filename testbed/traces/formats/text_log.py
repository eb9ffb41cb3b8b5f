"""Logs in words: blocks of speedtest-cli --simple under a date, or lines such as 'Up = 23.4, Down = 39.8'."""

from __future__ import annotations

import dataclasses
import re
import statistics

from testbed.traces import dates
from testbed.traces.formats import Format, Options
from testbed.traces.infer import column_factor, speaks_of_a_rate
from testbed.traces.records import NAN, LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.times import Clock
from testbed.traces.units_of import factor as unit_factor
from testbed.traces.units_of import scaled

_VALUE = re.compile(
    r"""(?ix)(?<![a-z])(down(?:load|link)?|dl|up(?:load|link)?|ul|ping|latency|rtt|jitter|(?:packet[\s_-]?)?loss)
        (?:[\s_-]*(?:speed|rate|bandwidth))?
        (?:[\s_]*[(\[]?(?P<named>[kmg]?(?:bps|bits?/s|b/s)|ms|us|pct|%)[)\]]?)?
        \s*(?:[:=]|[-=]>)\s*["']?
        ([-+]?\d+(?:\.\d+|,\d{1,2}(?!\d))?)(?:\s*(?P<unit>[A-Za-zµ/%]+)(?![\w]*\s*(?:[:=]|[-=]>)))?"""
)
_STAMP = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}[T ]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})[ ,T]+\d{1,2}:\d{2}(?::\d{2})?(?:\s*[AP]M)?"
)
LONGEST = 2000  # characters of a line that are looked at
_KEYS = {"down_bps": "down", "up_bps": "up", "rtt_s": "rtt", "jitter_s": "jitter", "loss": "loss"}


def _found(line: str) -> list[tuple[str, float, str]]:
    line = line[:LONGEST]
    out = []
    for m in _VALUE.finditer(line):
        unit = m["named"] or m["unit"] or ""
        if m["unit"] and unit_factor(_field(m[1]), m["unit"]) is not None:
            unit = m["unit"]  # the value's own goes before the name's
        out.append((_field(m[1]), float(m[3].replace(",", ".")), unit))
    return out


def _field(word: str) -> str:
    word = word.lower()
    if word.endswith("loss"):
        return "loss"
    return {"d": "down_bps", "u": "up_bps", "j": "jitter_s"}.get(word[0], "rtt_s")


def _stamp(line: str) -> str | None:
    """The date and time within a line, as written."""
    match = _STAMP.search(line[:LONGEST])
    if match:
        return match[0]
    found = dates.find(line[:LONGEST])
    return found[1].strip() if found else None


def detect(sample: Sample) -> float:
    if len(sample.layout.header) > 3 and not any("=" in name or ":" in name for name in sample.layout.header):
        return 0.0
    lines = sample.lines[:200]
    rates = sum(any(f in ("down_bps", "up_bps") for f, _, _ in _found(line)) for line in lines)
    stamps = sum(_stamp(line) is not None for line in lines)
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
    clock.learn(stamp for line in source.sample.lines if (stamp := _stamp(line)))
    factors = _factors(source.sample, report)
    home, entry = options.home or source.stem, None
    for number, line in source.lines():
        stamp = _stamp(line)
        found = _found(line)
        if stamp is not None:
            _finish(entry, records, home)
            entry = _entry(line, stamp, found, clock, number, report)
        if entry is None:
            continue
        for field, value, unit in found:
            scale = unit_factor(field, unit) if unit else None
            scale = factors.get(field) if scale is None else scale
            if scale is None:
                report.repair("unreadable rows dropped", f"{value:g} {unit} has no known unit", number)
            else:
                entry.values[field] = scaled(value, scale)
    _finish(entry, records, home)
    return records


@dataclasses.dataclass
class _Entry:
    """What stands under one time. heading: the time had a line to itself, so that results should follow."""

    line: int
    time: float
    heading: bool
    values: dict[str, float] = dataclasses.field(default_factory=dict)


def _entry(line: str, stamp: str, found: list, clock: Clock, number: int, report) -> _Entry | None:
    """The entry that a line with a time begins; None for a line of the log that speaks of something else."""
    heading = not found
    if heading and _other_text(line, stamp):
        return None
    try:
        return _Entry(number, clock.epoch(stamp.replace(",", " ") if "/" in stamp else stamp), heading)
    except ValueError as error:
        report.repair("unreadable rows dropped", str(error), number)
        return None


def _finish(entry: _Entry | None, records: LinkRecords, home: str) -> None:
    if entry is None:
        return
    if {"down_bps", "up_bps"} & set(entry.values):
        records.add(entry.line, home, entry.time, **{_KEYS[f]: v for f, v in entry.values.items()})
    elif entry.heading or entry.values:
        records.report.rows += 1
        records.failed(entry.line, "no rate under this time")


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
    words = {field for line in sample.lines for field, _, _ in _found(line)}
    speed_test = bool(words & {"rtt_s", "jitter_s"}) or any(speaks_of_a_rate(line[:LONGEST]) for line in sample.lines)
    return {
        field: column_factor(field, field, [f"{v:.12g}" for v in values], report, speed_test=speed_test) or NAN
        for field, values in bare.items()
        if values and statistics.median(values) >= 0
    }


FORMATS = (Format("text-log", "links", "a log in words (speedtest-cli --simple and the like)", detect, read),)
