"""UptimeRobot's CSV: Event, Monitor, Date-Time, Reason, Duration, Duration (in mins.); newest first."""

from __future__ import annotations

import re

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import Switches
from testbed.traces.numbers import number
from testbed.traces.source import Sample, Source
from testbed.traces.table import split
from testbed.traces.times import Clock

_ON = {"up", "started", "online", "resolved"}
_OFF = {"down", "paused", "offline", "ongoing"}


def _where(header) -> dict[str, int] | None:
    names = [re.sub(r"[^a-z]+", "", name.lower()) for name in header]
    found = {
        key: next((names.index(n) for n in among if n in names), -1)
        for key, among in {
            "event": ("event", "status", "type"),
            "monitor": ("monitor", "monitorname", "friendlyname"),
            "time": ("datetime", "datetimeutc", "date", "started"),
            "minutes": ("durationinmins", "durationmins", "durationinminutes"),
            "duration": ("duration",),
        }.items()
    }
    return found if min(found["event"], found["time"], found["duration"]) >= 0 and found["monitor"] >= 0 else None


def detect(sample: Sample) -> float:
    where = _where(sample.layout.header)
    words = {row[where["event"]].lower() for row in sample.layout.rows if len(row) > where["event"]} if where else set()
    return 0.95 if words & (_ON | _OFF) else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report, layout = source.report, source.sample.layout
    where = _where(layout.header)
    if where is None:
        raise report.error("has no columns of event, monitor, date and duration")
    clock, switches = Clock(report, options.zone, options.dates), Switches(report)
    clock.learn(row[where["time"]] for row in layout.rows if len(row) > where["time"])
    rows: list[tuple[float, str, bool, float]] = []
    for line, text in source.lines():
        cells = split(text, layout.delimiter)
        if not text.strip() or tuple(cells) == layout.header:
            continue
        report.rows += 1
        word = cells[where["event"]].lower() if len(cells) > where["event"] else ""
        try:
            if len(cells) <= max(where.values()) or word not in _ON | _OFF:
                raise ValueError(f"{word[:30]!r} is neither up nor down")
            rows.append(
                (clock.epoch(cells[where["time"]]), cells[where["monitor"]], word in _ON, _lasted(cells, where))
            )
        except ValueError as error:
            report.repair("unreadable rows dropped", str(error), line)
    if rows and rows[0][0] > rows[-1][0]:
        report.note("newest first")
    end = 0.0
    for time, monitor, on, lasted in sorted(rows):
        switches.add(monitor, time, on)
        end = max(end, time + lasted)
    if rows:
        switches.seen(end)
    return switches.build(absolute=True)


def _lasted(cells: list[str], where: dict[str, int]) -> float:
    """How long the state lasted [s], or 0 where it is not said."""
    if where["minutes"] >= 0:
        return (number(cells[where["minutes"]]) or 0.0) * 60.0
    found = re.findall(r"(\d+)\s*(d|h|m|s)", cells[where["duration"]].lower())
    return float(sum(int(n) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[u] for n, u in found))


FORMATS = (Format("uptimerobot", "availability", "UptimeRobot's events", detect, read),)
