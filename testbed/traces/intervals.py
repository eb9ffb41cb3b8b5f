"""From raw intervals, on/off events or states to one availability trace per device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.report import Report
from testbed.units import CENTURY_S


def build(
    raw: Mapping[str, np.ndarray],
    report: Report,
    *,
    span_s: float | Mapping[str, float | None] | None = None,
    origin_s: float = 0.0,
    start_epoch_s: float | Mapping[str, float | None] | None = None,
    outages: bool = False,
) -> dict[str, Availability]:
    """The traces of `raw` (device -> (n, 2) intervals in seconds), all with one time zero.

    span_s: the traces' length, for all or by device; by default the last end of any device. origin_s:
    subtracted from all times. start_epoch_s: the Unix time of time 0, for all or by device. outages: the
    intervals are those in which devices are away.

    Raises:
        InputError: no device, none ever available, or an interval beyond the stated span.
    """
    if not raw:
        raise report.error("names no device; expected at least one interval")
    latest = max((float(i[:, 1].max()) for i in raw.values() if len(i)), default=None)
    if latest is None and span_s is None:
        raise report.error("has no interval at all; expected a device to be available at some time")
    if latest is not None and latest - origin_s > CENTURY_S:
        raise report.error(
            f"spans {(latest - origin_s) / 86400:g} days; expected less than a century",
            hint="are all times in one unit?",
        )
    traces = {}
    for device, intervals in raw.items():
        span = span_s[device] if isinstance(span_s, Mapping) else span_s
        if span is None:
            span = latest - origin_s  # type: ignore[operator]
        if not 0 < span < CENTURY_S:
            raise report.error(f"spans {span:g} s; expected more than 0 and less than a century")
        clean = merged(device, intervals - origin_s, report)
        if len(clean) and clean[-1, 1] > span * (1 + 1e-12):
            raise report.error(f"states span_s {span:g} but has an interval that ends at {clean[-1, 1]:g} s")
        if outages:
            clean = complement(clean, span)
        start = start_epoch_s[device] if isinstance(start_epoch_s, Mapping) else start_epoch_s
        traces[device] = Availability(device, clean, float(span), start, report.path)
    if outages:
        report.note("intervals are outages: available outside them")
    return traces


def merged(device: str, intervals: np.ndarray, report: Report) -> np.ndarray:
    """Sorted and disjoint; overlaps are united and counted, touching intervals are joined."""
    if not len(intervals):
        return np.zeros((0, 2))
    if (np.diff(intervals[:, 0]) < 0).any():
        report.repair("intervals out of time order: sorted", f"device {device}")
        intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    overlaps = int((intervals[1:, 0] < reach[:-1]).sum())
    if overlaps:
        report.repair("overlapping intervals: united", f"device {device}", count=overlaps)
    first = np.append(True, intervals[1:, 0] > reach[:-1])
    last = np.append(first[1:], True)
    return np.column_stack([intervals[first, 0], reach[last]])


def complement(intervals: np.ndarray, span: float) -> np.ndarray:
    """The times of [0, span) outside disjoint, ascending intervals."""
    edges = np.concatenate([[0.0], intervals.reshape(-1), [span]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


class Switches:
    """On and off events of many devices, in file order."""

    def __init__(self, report: Report):
        self.report = report
        self.events: dict[str, list[tuple[float, bool]]] = {}
        self.first = self.last = None

    def add(self, device: str, time_s: float, on: bool) -> None:
        self.events.setdefault(device, []).append((time_s, on))
        self.seen(time_s)

    def seen(self, time_s: float) -> None:
        """The log reaches to this time, whatever happened then."""
        self.first = time_s if self.first is None else min(self.first, time_s)
        self.last = time_s if self.last is None else max(self.last, time_s)

    def intervals(self) -> dict[str, np.ndarray]:
        """Intervals by device. A device whose first event is 'off' was on before.

        One that is on at the end stays so until the log's last time. Repeated events are counted and ignored.
        """
        out, repeated = {}, 0
        for device, events in self.events.items():
            if any(b[0] < a[0] for a, b in zip(events, events[1:])):
                self.report.repair("events out of time order: sorted", f"device {device}")
                events = sorted(events, key=lambda event: event[0])
            found: list[tuple[float, float]] = []
            since = self.first if not events[0][1] else None
            state = not events[0][1]
            for time, on in events:
                if on == state:
                    repeated += 1
                elif on:
                    since = time
                elif since is not None and time > since:
                    found.append((since, time))
                state = on
            if state and since is not None and self.last > since:
                found.append((since, self.last))
            out[device] = np.array(found, dtype=float).reshape(-1, 2)
        if repeated:
            self.report.repair("events that repeat the state: ignored", count=repeated)
        return out

    def build(self, *, absolute: bool) -> dict[str, Availability]:
        """The traces, counted from the log's first time.

        Raises:
            InputError: no event, or a log of no length.
        """
        if not self.events or self.first is None:
            raise self.report.error("holds no event of a device")
        if not self.last > self.first:
            raise self.report.error("has all its events at one time; expected a log of some length")
        return build(
            self.intervals(),
            self.report,
            span_s=self.last - self.first,
            origin_s=self.first,
            start_epoch_s=self.first if absolute else None,
        )


def from_samples(
    samples: Iterable[tuple[float, bool]], hole_s: float | None = None, cadence_s: float | None = None
) -> tuple[np.ndarray, float, int]:
    """Intervals from states that hold until the next sample: ((n, 2), end, holes).

    A state holds no longer than `hole_s`: without news for longer, a device counts as away from the last
    sample plus a cadence on (the median step by default).
    """
    points = sorted(dict(samples).items())
    steps = np.diff([t for t, _ in points])
    cadence = cadence_s or (float(np.median(steps)) if len(steps) else 1.0)
    hole = hole_s if hole_s is not None else 4.5 * cadence
    found, holes = [], 0
    for i, (time, on) in enumerate(points):
        until = points[i + 1][0] if i + 1 < len(points) else time + cadence
        if until - time > hole:
            until, holes = time + cadence, holes + 1
        if on:
            if found and found[-1][1] == time:
                found[-1] = (found[-1][0], until)
            else:
                found.append((time, until))
    end = points[-1][0] + cadence if points else 0.0
    return np.array(found, dtype=float).reshape(-1, 2), end, holes


def from_counts(
    counts: Iterable[tuple[float, int]], end_s: float, report: Report, prefix: str = "node"
) -> dict[str, np.ndarray]:
    """A number of nodes over time as devices: node k is there while the number is at least k."""
    points = list(counts)
    most = max((c for _, c in points), default=0)
    if most > 100_000:
        raise report.error(f"counts up to {most} nodes; expected at most 100000")
    out: dict[str, list[tuple[float, float]]] = {f"{prefix}-{k + 1:0{len(str(most))}d}": [] for k in range(most)}
    names, since, level = list(out), {}, 0
    for time, count in points:
        for k in range(level, count):
            since[k] = time
        for k in range(count, level):
            if time > since[k]:
                out[names[k]].append((since[k], time))
        level = count
    for k in range(level):
        if end_s > since[k]:
            out[names[k]].append((since[k], end_s))
    return {name: np.array(i, dtype=float).reshape(-1, 2) for name, i in out.items()}
