"""Mahimahi packet-delivery traces: a line per 1500-byte packet that may leave, with its time in ms.

Several packets in one ms are several lines. The trace wraps around at its last time. `NAME.up` and
`NAME.down` (or -up, -down, _uplink …) are the two directions of one link: naming either reads both.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from testbed.traces.formats import Format, Options
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source

PACKET_BITS = 1500 * 8
LONGEST_MS = 1e9  # eleven days
_DIRECTION = re.compile(r"(?i)(.*?)[._-]?(up|down)(?:link|load)?((?:\.\w{1,8})?)\Z")


def detect(sample: Sample) -> float:
    lines = sample.lines if sample.whole else sample.lines[:-1]
    values = []
    for line in lines[:2000]:
        text = line.strip()
        if not (text.isascii() and text.isdigit()) or len(text) > 10:
            return 0.0
        values.append(int(text))
    if not values or any(b < a for a, b in zip(values, values[1:])):
        return 0.0
    return 0.9 if values[0] < 600_000 else 0.0  # a column of Unix times is something else


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report
    records = records or LinkRecords(report, zero="outage", floor_bps=options.floor_bps)
    name, direction = direction_of(source.path)
    if direction is None:
        report.note("the file's name says neither up nor down: read as the download")
    home = options.home or name
    partner = _partner(source.path, direction)
    times = _times(source)
    span = _add(records, home, "up_bps" if direction == "up" else "down_bps", times, options.bin_s)
    if partner is not None:
        report.note(f"the other direction is read from {partner.name}")
        other, records.joined = Source(partner, report), True
        span = max(
            span,
            _add(
                records,
                home,
                "down_bps" if direction == "up" else "up_bps",
                _times(other),
                options.bin_s,
                until_s=span,
            ),
        )
    records.span_s = span
    return records


def direction_of(path: Path) -> tuple[str, str | None]:
    """('Verizon-LTE', 'up') from 'Verizon-LTE.up'; the direction is None when the name has none."""
    match = _DIRECTION.match(path.name)
    if not match or not match[1]:
        return path.stem, None
    return match[1], match[2].lower()


def _partner(path: Path, direction: str | None) -> Path | None:
    if direction is None:
        return None
    other = "down" if direction == "up" else "up"
    for candidate in path.parent.iterdir():
        if (
            candidate != path
            and direction_of(candidate) == (direction_of(path)[0], other)
            and candidate.is_file()
        ):
            return candidate
    return None


def _times(source: Source) -> np.ndarray:
    """The times of all packets [ms], ascending."""
    report = source.report
    out: list[int] = []
    for number, line in source.lines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        report.rows += 1
        if not (text.isascii() and text.isdigit()):
            report.repair("lines that are no time in ms: dropped", text[:40], number)
            continue
        value = int(text) if len(text) < 12 else math.inf
        if value > LONGEST_MS:
            raise report.error(f"{text[:30]} ms; expected at most {LONGEST_MS:g} ms (11 days)", number)
        if out and value < out[-1]:
            report.repair("times that go backwards: sorted", f"{value} after {out[-1]}", number)
        out.append(int(value))
    times = np.sort(np.array(out, dtype=np.int64))
    if not len(times) or times[-1] == 0:
        raise report.error("has no time above 0 ms; expected the times of packets")
    if times[-1] > 1000 * len(times) * 3600:
        report.warn("fewer than one packet an hour: are the times in ms?")
    return times


def _add(
    records: LinkRecords, home: str, field: str, times: np.ndarray, bin_s: float, until_s: float | None = None
) -> float:
    """Add the rates of one direction; its own span, or as many rounds of it as `until_s` has."""
    period_ms = int(times[-1])
    # a trace shorter than a bin is repeated until it fills one, exactly
    rounds = max(1, math.ceil(bin_s * 1000 / period_ms)) if period_ms < bin_s * 1000 else 1
    if until_s is not None and until_s * 1000 > period_ms * rounds:
        rounds = math.ceil(until_s * 1000 / period_ms)
    span = period_ms * rounds
    width = min(bin_s * 1000, span)
    count = max(1, round(span / width))
    edges = np.linspace(0, span, count + 1)
    if rounds > 1:
        counts = np.zeros(count, dtype=np.int64)
        for k in range(rounds):
            counts += _histogram(times + k * period_ms, edges)
    else:
        counts = _histogram(times, edges)
    rates = counts * PACKET_BITS / (np.diff(edges) / 1000)
    for start, rate in zip(edges[:-1], rates):
        values = {"down": float(rate)} if field == "down_bps" else {"up": float(rate)}
        records.add(None, home, float(start) / 1000, **values)
        records.report.rows -= 1  # a bin is no row of the file
    return span / 1000


def _histogram(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Packets in each bin (a, b]: a packet at the very end belongs to the last one."""
    return np.diff(np.searchsorted(times, edges, side="right")) + np.append(
        np.searchsorted(times, edges[0], side="right") - np.searchsorted(times, edges[0], side="left"),
        np.zeros(len(edges) - 2, dtype=np.int64),
    )


FORMATS = (Format("mahimahi", "links", "a Mahimahi packet-delivery trace", detect, read, family="mahimahi"),)
