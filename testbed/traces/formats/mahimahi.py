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
from testbed.traces.records import LinkRecords, all_possible
from testbed.traces.source import Sample, Source
from testbed.traces.times import check_time

PACKET_BITS = 1500 * 8
LONGEST_MS = 1e9  # eleven days
_NAMED = re.compile(r"(?i)(?:\.(?:up|down|trace|mahi)|[._-](?:up|down)(?:link|load)?(?:\.\w{1,8})?|[mk]bps.*)\Z")
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
    if values[0] >= 600_000:
        return 0.0  # a column of Unix times is something else
    if _NAMED.search(sample.name):
        return 0.9
    # a column of whole numbers may be anything that rises: only packets leave several at one time
    same = sum(b == a for a, b in zip(values, values[1:]))
    return 0.9 if len(values) >= 20 and same >= 0.05 * len(values) else 0.0


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
                records, home, "down_bps" if direction == "up" else "up_bps", _times(other), options.bin_s, until_s=span
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
        if candidate != path and direction_of(candidate) == (direction_of(path)[0], other) and candidate.is_file():
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
            check_time(text, report, number)
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
    """Add the rates of one direction; returns its span [s], or as many rounds of it as `until_s` has."""
    period = int(times[-1])
    # a trace shorter than a bin is repeated until it fills one, exactly
    rounds = max(1, math.ceil(bin_s * 1000 / period)) if period < bin_s * 1000 else 1
    if until_s is not None:
        rounds = max(rounds, math.ceil(until_s * 1000 / period))
    span = period * rounds
    count = max(1, round(span / min(bin_s * 1000, span)))
    edges = np.linspace(0, span, count + 1)
    rates = np.diff(_delivered(times, edges)) * PACKET_BITS / (np.diff(edges) / 1000)
    silent = rates == 0
    if silent.any():
        records.outages(int(silent.sum()))
        rates[silent] = records.floor_bps
    if not all_possible(field, rates):
        raise records.error(None, field, float(rates.max()))
    records.home(home).extend(edges[:-1] / 1000, {field: rates})
    return span / 1000


def _delivered(times: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Packets in (0, t] of the trace repeated for ever; those at 0 belong to the first bin."""
    rounds, rest = np.divmod(until, times[-1])
    within = np.searchsorted(times, rest, side="right")
    at_zero = int(np.searchsorted(times, 0, side="right"))
    total = rounds * len(times) + within - np.where(rest == 0, at_zero, 0)
    return np.where(until == 0, 0, total)


FORMATS = (Format("mahimahi", "links", "a Mahimahi packet-delivery trace", detect, read, family="mahimahi"),)
