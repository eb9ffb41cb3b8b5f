"""`last -F reboot` (or `last -x`): when a computer ran, from boot to shutdown, crash or 'still running'."""

from __future__ import annotations

import re

import numpy as np

from testbed.traces import dates
from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build
from testbed.traces.source import Sample, Source
from testbed.traces.times import Clock

_BOOT = re.compile(r"reboot\s+system boot\s+(\S.*)", re.IGNORECASE)
_LASTED = re.compile(r"\((?:(\d+)\+)?(-?\d+):(\d{2})(?::(\d{2}))?\)")
DAY_S = 86400.0


def detect(sample: Sample) -> float:
    hits = sum(bool(_BOOT.match(line)) for line in sample.lines[:100])
    return 1.0 if hits and hits >= 0.3 * len(sample.lines[:100]) else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report, clock = source.report, Clock(source.report, options.zone, options.dates)
    boots: list[tuple[float, float | None, int]] = []
    others: list[float] = []
    for line, text in source.lines():
        match = _BOOT.match(text)
        if not match:
            found = dates.find(text)
            if found and "begins" in text:
                others.append(clock.epoch(found[1]))
            continue
        report.rows += 1
        try:
            boots.append((*_times(match[1], clock), line))
        except ValueError as error:
            report.repair("unreadable rows dropped", str(error), line)
    if not boots:
        raise report.error("holds no boot that can be read")
    boots.sort()
    known = [end - start for start, end, _ in boots if end is not None]
    latest = max(max(start for start, _, _ in boots), *(e for _, e, _ in boots if e is not None), 0.0)
    intervals = []
    for k, (start, end, line) in enumerate(boots):
        following = boots[k + 1][0] if k + 1 < len(boots) else None
        if end is None and following is not None:
            report.repair("boots without an end: until the next boot at most", line=line)
            end = following
        elif end is None:
            end = max(latest, start + (float(np.median(known)) if known else DAY_S))
            report.tell_guess(f"still running: taken as {(end - start) / 3600:.3g} h, as its other sessions lasted")
        if following is not None:
            end = min(end, following)
        if end > start:
            intervals.append((start, end))
    if not intervals:
        raise report.error("holds no session of some length")
    first = min([*others, intervals[0][0]])
    name = options.home or source.stem
    return build({name: np.array(intervals)}, report, origin_s=first, start_epoch_s=first)


def _times(text: str, clock: Clock) -> tuple[float, float | None]:
    """Boot and end (None where it is not known) [Unix s].

    Raises:
        ValueError: no time of the boot.
    """
    found = dates.find(text)
    if not found:
        found = _without_year(text)
    if not found:
        raise ValueError(f"{text[:60]!r} has no date")
    start = clock.epoch(found[1])
    rest = text[text.index(found[1]) + len(found[1]) :]
    end = dates.find(rest)
    if end:
        return start, clock.epoch(end[1])
    lasted = _LASTED.search(rest)
    if "crash" in rest or "running" in rest or "logged in" in rest or "gone" in rest or not lasted:
        return start, None
    days, hours, minutes, seconds = (int(g or 0) for g in lasted.groups())
    return start, start + days * DAY_S + hours * 3600 + minutes * 60 + seconds


def _without_year(text: str):
    match = re.search(r"[A-Z][a-z]{2}\s+[A-Z][a-z]{2}\s+\d{1,2}\s+\d{1,2}:\d{2}", text)
    return dates.find(match[0]) if match else None


FORMATS = (Format("last-reboot", "availability", "`last -F reboot`", detect, read),)
