"""Numbers of nodes over time: a table (time, count) or (date, time, count), or a spot trace in JSON.

Node k counts as available while there are at least k of them. Counts of 0 and 1 are one node's on and off.
"""

from __future__ import annotations

import math

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build, from_counts
from testbed.traces.json_objects import objects
from testbed.traces.json_text import get
from testbed.traces.numbers import number
from testbed.traces.source import Sample, Source
from testbed.traces.table import split
from testbed.traces.times import Clock, check_time, is_stamp, is_time_of_day


def _points(sample: Sample) -> list[tuple[str, ...]] | None:
    layout = sample.layout
    width = layout.width
    rows = [row for row in layout.rows[:500] if len(row) == width]
    if width not in (2, 3) or len(rows) < 2 or len(rows) < 0.9 * len(layout.rows[:500]):
        return None
    if layout.header and layout.header[-1].lower() not in (
        "count",
        "nodes",
        "node_count",
        "num_nodes",
        "available",
        "instances",
        "n",
    ):
        return None
    if not all(row[-1].isdigit() and int(row[-1]) <= 100_000 for row in rows):
        return None
    if width == 3:
        return rows if all(is_stamp(r[0]) and is_time_of_day(r[1]) for r in rows) else None
    return rows


def detect(sample: Sample) -> float:
    rows = _points(sample)
    if rows is None:
        return 0.0
    if len(rows[0]) == 3 or sample.layout.header:
        return 0.75
    try:
        times = [number(row[0]) for row in rows]
    except ValueError:
        return 0.75 if all(is_stamp(row[0]) for row in rows) else 0.0
    if any(t is None for t in times) or sample.layout.delimiter != ",":
        return 0.0
    counts = [int(row[1]) for row in rows]
    small_steps = sum(abs(b - a) <= max(2, 0.2 * max(counts)) for a, b in zip(counts, counts[1:]))
    return 0.65 if small_steps > 0.7 * len(counts) and max(counts) < 2000 else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report, layout = source.report, source.sample.layout
    rows = _points(source.sample)
    if rows is None:
        raise report.error("has no columns of times and numbers of nodes")
    absolute = is_stamp(rows[-1][0])
    clock = Clock(report, options.zone, options.dates)
    clock.learn(row[0] for row in rows)
    factor = 1.0 if absolute else _factor([row[0] for row in rows], report, options)
    points: list[tuple[float, int]] = []
    for line, raw, ended in source.byte_lines():
        text = source.decode(raw, line)
        cells = split(text, layout.delimiter)
        if not text.strip() or text.startswith("#") or tuple(cells) == layout.header:
            continue
        report.rows += 1
        try:
            if len(cells) != layout.width:
                raise ValueError(f"{len(cells)} cells; expected {layout.width}")
            time = clock.epoch(" ".join(cells[:-1])) if absolute else number(cells[0])
            if time is None or not 0 <= time * factor < 1e12:
                raise ValueError(f"{cells[0]!r} is no time from 0 on")
            if not (cells[-1].isascii() and cells[-1].isdigit()) or len(cells[-1]) > 6:
                raise ValueError(f"{cells[-1][:20]!r} is no number of nodes")
        except ValueError as error:
            if ended:
                check_time(cells[0], report, line, "time")
            report.repair("unreadable rows dropped" if ended else "last line cut short: dropped", str(error), line)
            continue
        points.append((time * factor, int(cells[-1])))
    return _built(points, report, absolute)


def _built(points: list[tuple[float, int]], report, absolute: bool):
    if len(points) < 2:
        raise report.error("has fewer than two readable rows")
    if any(b[0] < a[0] for a, b in zip(points, points[1:])):
        report.repair("rows out of time order: sorted", count=sum(b[0] < a[0] for a, b in zip(points, points[1:])))
        points = sorted(points, key=lambda point: point[0])
    steps = sorted(b[0] - a[0] for a, b in zip(points, points[1:]) if b[0] > a[0])
    end = points[-1][0] + (steps[len(steps) // 2] if steps else 1.0)
    raw = from_counts(points, end, report)
    if not raw:
        raise report.error("counts no node at any time")
    if len(raw) > 1:
        report.note("numbers of nodes: node k is available while there are at least k")
    origin = points[0][0]
    return build(raw, report, span_s=end - origin, origin_s=origin, start_epoch_s=origin if absolute else None)


def _factor(cells: list[str], report, options: Options) -> float:
    for entry in options.map:
        key, _, rest = entry.partition("=")
        if key == "time" and ":" in rest:
            from testbed.traces.units_of import time_factor

            factor = time_factor(rest.rpartition(":")[2])
            if factor is None:
                raise report.error(f"--map {entry}: no unit of time; expected ms, s, min, h")
            return factor
    values = [number(cell) or 0.0 for cell in cells]
    if all(v == int(v) and v % 1000 == 0 for v in values):
        report.note("times are whole thousands: read as ms")
        return 1e-3
    fractions = any(v != int(v) for v in values)
    unit, factor = ("hours", 3600.0) if fractions and max(values) < 10_000 else ("seconds", 1.0)
    report.repair("units that the file does not state: told from the values", f"time is in {unit}")
    report.warn(f"the unit of the times is not stated: read as {unit} (--map time=1:s or the like states another)")
    return factor


def _is_spot(value) -> bool:
    return get(value, "metadata", "gap_seconds") is not None and isinstance(value, dict)


def detect_spot(sample: Sample) -> float:
    value = sample.json
    return 1.0 if _is_spot(value[0] if isinstance(value, list) and value else value) else 0.0


def read_spot(source: Source, options: Options) -> dict[str, Availability]:
    """{"metadata": {"gap_seconds": g}, "data": [n, …]}: the number of nodes every g seconds (SkyPilot)."""
    report = source.report
    found = list(objects(source))
    value = found[0][1] if found else None
    gap, data = get(value, "metadata", "gap_seconds"), get(value, "data")
    if isinstance(gap, bool) or not isinstance(gap, (int, float)) or not 0 < gap < 1e7:
        raise report.error(f"states gap_seconds {gap!r}; expected seconds above 0")
    if not isinstance(data, list) or not data:
        raise report.error("has no list 'data' of node numbers")
    counts = []
    for i, n in enumerate(data):
        if isinstance(n, bool) or not isinstance(n, (int, float)) or not 0 <= n <= 100_000 or n != int(n):
            raise report.error(f"data[{i}] is {str(n)[:20]!r}; expected a number of nodes")
        counts.append(int(n))
    report.rows = len(counts)
    raw = from_counts([(i * gap, n) for i, n in enumerate(counts)], len(counts) * gap, report)
    if not raw:
        raise report.error("counts no node at any time")
    if max(counts) == 1:
        raw = {options.home or source.stem: next(iter(raw.values()))}
    else:
        report.note("numbers of nodes: node k is available while there are at least k")
    return build(raw, report, span_s=float(len(counts) * gap))


def _slots(sample: Sample) -> bool:
    values = sample.json if isinstance(sample.json, list) else []
    return bool(values) and all(isinstance(v, dict) and {"t", "on", "n"} <= set(v) for v in values[:20])


def read_slots(source: Source, options: Options) -> dict[str, Availability]:
    """[{"t": time, "on": a, "n": b}, …]: a of b probes of a slot were answered; on where half were."""
    report = source.report
    clock = Clock(report, options.zone, options.dates)
    points = []
    for line, value in objects(source):
        report.rows += 1
        try:
            on, n = float(value["on"]), float(value["n"])
            if not 0 <= on <= n or not n or math.isinf(n):
                raise ValueError(f"{on:g} of {n:g} probes")
            points.append((clock.epoch(str(value["t"])), int(on / n >= 0.5)))
        except (ValueError, KeyError, TypeError) as error:
            report.repair("unreadable objects dropped", str(error)[:80], line)
    if not points:
        raise report.error("has no readable slot")
    report.note("a slot counts as on when at least half of its probes were answered")
    traces = _built(points, report, True)
    return {options.home or source.stem: next(iter(traces.values()))}


FORMATS = (
    Format("node-counts", "availability", "numbers of nodes over time", detect, read),
    Format("spot-trace", "availability", "a spot availability trace (JSON)", detect_spot, read_spot),
    Format(
        "probe-slots",
        "availability",
        "probes answered per slot (JSON)",
        lambda sample: 0.9 if _slots(sample) else 0.0,
        read_slots,
    ),
)
