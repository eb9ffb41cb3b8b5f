"""What the plots of traces show, as arrays: thinned series, distributions, rasters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace

POINTS = 1500  # drawn of one series
HOMES = 12  # drawn each on its own; of more, the spread over homes is drawn
GAP = 12  # usual steps without a measurement, from which a line is broken
ROWS = 400  # devices in a raster


@dataclass(frozen=True)
class TimeAxis:
    """unit: 's', 'min', 'h' or 'days', of which `seconds` make one."""

    unit: str
    seconds: float


def time_axis(span_s: float) -> TimeAxis:
    """The unit in which a span reads well."""
    for unit, seconds, least in (("days", 86400.0, 3 * 86400), ("h", 3600.0, 2 * 3600), ("min", 60.0, 180)):
        if span_s > least:
            return TimeAxis(unit, seconds)
    return TimeAxis("s", 1.0)


def steps(trace: LinkTrace, field: str, until_s: float) -> tuple[np.ndarray, np.ndarray]:
    """(times, values) of one quantity with its last value held to `until_s`.

    Of a long series it is the median of each of POINTS equal parts of time.
    """
    times, values = trace.times_s, getattr(trace, field)
    if len(times) <= POINTS:
        return np.append(times, until_s), np.append(values, values[-1])
    edges = np.linspace(0, until_s, POINTS + 1)
    bounds = np.searchsorted(times, edges)
    out_t, out_v = [], []
    for a, b, start in zip(bounds, bounds[1:], edges):
        if b > a:
            out_t.append(start)
            out_v.append(float(np.median(values[a:b])))
    return np.append(out_t, until_s), np.append(out_v, out_v[-1])


def gaps(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, list[tuple[float, float, float]]]:
    """The series, broken (NaN) where nothing came for GAP usual steps; (from, to, value held) of the gaps."""
    lengths = np.diff(times)
    if len(lengths) < 3:
        return values, []
    long = np.flatnonzero(lengths > GAP * np.median(lengths))
    held = [(float(times[i]), float(times[i + 1]), float(values[i])) for i in long]
    broken = values.astype(float).copy()
    broken[long] = np.nan
    return broken, held


def spread(traces: Mapping[str, LinkTrace], field: str, until_s: float) -> tuple[np.ndarray, np.ndarray]:
    """(times, (3, n) quartiles over homes) of one quantity on a common time grid."""
    count = min(POINTS // 3, max(2, max(map(len, traces.values()))))
    grid = np.linspace(0, until_s, count, endpoint=False)
    table = np.empty((len(traces), count), dtype=np.float32)
    for row, trace in zip(table, traces.values()):
        row[:] = getattr(trace, field)[np.searchsorted(trace.times_s, grid, side="right") - 1]
    quartiles = np.quantile(table, (0.25, 0.5, 0.75), axis=0)
    return np.append(grid, until_s), np.column_stack([quartiles, quartiles[:, -1]])


def distribution(traces: Mapping[str, LinkTrace], field: str) -> tuple[np.ndarray, np.ndarray]:
    """(values, share of samples at or below) of one quantity over all homes, thinned to POINTS."""
    values = np.sort(np.concatenate([getattr(t, field) for t in traces.values()]))
    at = np.unique(np.linspace(0, len(values) - 1, min(len(values), POINTS)).round().astype(int))
    return values[at], (at + 1) / len(values)


def is_constant(traces: Mapping[str, LinkTrace], field: str) -> bool:
    """Whether a quantity has one value everywhere: an assumed default, which is no measurement to draw."""
    first = getattr(next(iter(traces.values())), field)[0]
    return all((getattr(t, field) == first).all() for t in traces.values())


def raster_order(traces: Mapping[str, Availability]) -> list[Availability]:
    """The devices to draw, most available last (on top); of very many, every k-th."""
    ordered = sorted(traces.values(), key=lambda t: t.fraction())
    if len(ordered) > ROWS:
        ordered = [ordered[i] for i in np.linspace(0, len(ordered) - 1, ROWS).round().astype(int)]
    return ordered


def share_over_time(traces: Mapping[str, Availability], until_s: float, points: int = 600):
    """(times, share of devices that are available)."""
    grid = np.linspace(0, until_s, points, endpoint=False)
    total = np.zeros(points)
    for trace in traces.values():
        total += np.searchsorted(trace.intervals_s.ravel(), np.minimum(grid, trace.span_s), side="right") % 2
    return grid, total / len(traces)


def lengths(traces: Mapping[str, Availability]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted lengths of all sessions, and of the gaps between them [s]."""
    sessions = np.concatenate([np.diff(t.intervals_s, axis=1).ravel() for t in traces.values()])
    gaps = np.concatenate([t.intervals_s[1:, 0] - t.intervals_s[:-1, 1] for t in traces.values()])
    return np.sort(sessions), np.sort(gaps)
