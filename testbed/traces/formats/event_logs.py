"""Logs of on and off: tables of (time, device, event), of (time, state) samples, JSON lines of preemptions.

Times are Unix times, dates, or numbers whose unit the header names; add/remove logs without header are in ms.
"""

from __future__ import annotations

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import Switches, build, from_samples
from testbed.traces.json_objects import objects
from testbed.traces.numbers import number
from testbed.traces.source import Sample, Source
from testbed.traces.table import check_once, split
from testbed.traces.times import Clock, check_time, is_stamp
from testbed.traces.units_of import time_factor
from testbed.units import CENTURY_S


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


ON = _words_of(
    "1 active add added available connect connected join joined launch launched on online open "
    "recovered resume resumed running start started true up"
)
OFF = _words_of(
    "0 closed disconnect disconnected down evicted failed false inactive interrupted leave left off "
    "offline preempt preempted remove removed stop stopped suspend suspended terminate terminated "
    "unavailable"
)
WORDS = (ON | OFF) - {"0", "1", "true", "false"}
_TIME = ("timestamp", "time", "datetime", "time_s", "time_ms", "t", "date", "ts")
_DEVICE = ("device", "device_id", "node", "node_id", "host", "client", "client_id", "id", "name", "instance")
_EVENT = ("event", "action", "state", "status", "sts", "type", "kind")


def _columns(sample: Sample) -> dict[str, int] | None:
    """Columns of time, event and (if any) device."""
    layout = sample.layout
    rows = [r for r in layout.rows[:200] if len(r) == layout.width]
    if not rows:
        return None
    names = [n.lower() for n in layout.header]

    def words(i: int) -> float:
        return sum(r[i].lower() in WORDS for r in rows) / len(rows)

    if names:
        time = next((names.index(n) for n in _TIME if n in names), None)
        events = [names.index(n) for n in _EVENT if n in names and words(names.index(n)) > 0.8]
        if time is None or not events:
            return None
        device = next((names.index(n) for n in _DEVICE if n in names and names.index(n) != events[0]), -1)
        return {"time": time, "event": events[0], "device": device}
    if layout.width not in (2, 3):
        return None
    event = next((i for i in range(1, layout.width) if words(i) > 0.8), None)
    if event is None or not _is_time(rows[0][0]):
        return None
    return {"time": 0, "event": event, "device": next((i for i in range(1, layout.width) if i != event), -1)}


def _is_time(cell: str) -> bool:
    try:
        return is_stamp(cell) or number(cell) is not None
    except ValueError:
        return False


def detect(sample: Sample) -> float:
    return 0.7 if _columns(sample) else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report, layout = source.report, source.sample.layout
    where = _columns(source.sample)
    if where is None:
        raise report.error("has no columns of times and of on/off events")
    check_once(layout, where.values(), report)
    clock = Clock(report, options.zone, options.dates)
    cells_of_time = [row[where["time"]] for row in layout.rows if len(row) > where["time"]]
    clock.learn(cells_of_time)
    absolute = bool(cells_of_time) and is_stamp(cells_of_time[-1])
    factor = 1.0 if absolute else _factor(layout, where["time"], cells_of_time, report)
    switches, samples = Switches(report), {}
    column = layout.header[where["time"]] if layout.header else "time"
    header_seen = not layout.header
    for line, raw, ended in source.byte_lines():
        text = source.decode(raw, line)
        if not text.strip() or text.startswith("#"):
            continue
        cells = split(text, layout.delimiter)
        if layout.header and tuple(cells) == layout.header:
            if header_seen:
                report.repair("header repeated in the middle: skipped", line=line)
            header_seen = True
            continue
        report.rows += 1
        if len(cells) <= max(where.values()):
            report.repair("last line cut short: dropped" if not ended else "unreadable rows dropped", text[:60], line)
            continue
        word = cells[where["event"]].lower()
        if word not in ON | OFF:
            report.repair("unreadable rows dropped", f"{word[:30]!r} is neither on nor off", line)
            continue
        try:
            cell = cells[where["time"]]
            value = clock.epoch(cell) if absolute else number(cell)
            if value is None or value < 0:
                raise ValueError(f"{cell!r} is no time from 0 on")
        except ValueError as error:
            check_time(cell, report, line, column)
            report.repair("unreadable rows dropped", str(error), line)
            continue
        if value * factor > CENTURY_S and not absolute:
            raise report.error(f"found {cell!r}; expected a time of less than a century", line, column)
        device = cells[where["device"]] if where["device"] >= 0 else options.home or source.stem
        switches.add(device, value * factor, word in ON)
        samples.setdefault(device, []).append((value * factor, word in ON))
    if layout.header and _are_samples(samples):
        return _sampled(samples, source, absolute)
    return switches.build(absolute=absolute)


def _factor(layout, index: int, cells: list[str], report) -> float:
    name = layout.header[index] if layout.header else ""
    unit = time_factor(name.rpartition("_")[2]) if "_" in name else None
    if unit is not None:
        return unit
    if not layout.header and cells and all(c.isdigit() and int(c) % 1000 == 0 for c in cells):
        report.note("times are whole thousands: read as ms")
        return 1e-3
    report.warn("the unit of the times is not stated: read as seconds")
    return 1.0


def _are_samples(samples: dict[str, list[tuple[float, bool]]]) -> bool:
    """Regular reports of a state rather than changes: most repeat the one before."""
    repeats = steps = 0
    for points in samples.values():
        steps += len(points) - 1
        repeats += sum(a[1] == b[1] for a, b in zip(points, points[1:]))
    return steps > 10 and repeats > 0.6 * steps


def _sampled(samples, source: Source, absolute: bool) -> dict[str, Availability]:
    report = source.report
    raw, ends, holes = {}, [], 0
    for device, points in samples.items():
        raw[device], end, missing = from_samples(points)
        ends.append(end)
        holes += missing
    report.note("states hold until the next report; without one for 4.5 times the usual step, a device is away")
    if holes:
        report.note(f"{holes} holes between reports count as away")
    first = min(t for points in samples.values() for t, _ in points)
    return build(raw, report, span_s=max(ends) - first, origin_s=first, start_epoch_s=first if absolute else None)


def _event(value) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], (int, float))
        and isinstance(value[1], str)
        and isinstance(value[2], dict)
        and "nodes" in value[2]
    )


def detect_json(sample: Sample) -> float:
    return 1.0 if isinstance(sample.json, list) and (_event(sample.json) or any(map(_event, sample.json))) else 0.0


def read_json(source: Source, options: Options) -> dict[str, Availability]:
    """[time in ms, 'add' | 'remove' | …, {"nodes": […], "duration": ms}] a line, as Parcae's scripts do."""
    report = source.report
    switches = Switches(report)
    for line, value in objects(source):
        report.rows += 1
        if not _event(value) or value[0] < 0 or not all(isinstance(n, str) for n in value[2]["nodes"]):
            report.repair("unreadable rows dropped", str(value)[:60], line)
            continue
        time, kind, detail = value
        duration = detail.get("duration")
        hold = duration if isinstance(duration, (int, float)) and 0 < duration < 1e12 else 0
        for node in detail["nodes"] if kind in ON | OFF else ():
            switches.add(node, time / 1e3, kind in ON)
        switches.seen((time + hold) / 1e3)
    return switches.build(absolute=False)


FORMATS = (
    Format("events", "availability", "a log of on/off events or states", detect, read),
    Format("events-json", "availability", "a log of preemptions (JSON lines)", detect_json, read_json),
)
