"""From raw intervals to one availability trace per device: order, overlaps, a common span."""

from __future__ import annotations

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.report import Report


def build(raw: dict[str, np.ndarray], report: Report, *, span_s: float | None = None, origin_s: float = 0.0,
          start_epoch_s: float | None = None) -> dict[str, Availability]:
    """The traces of `raw` (device -> (n, 2) intervals in seconds), all with one time zero and one span.

    span_s: the trace's length; by default the last end of any device. origin_s: subtracted from all times.

    Raises:
        InputError: no device, none ever available, or an interval beyond the stated span.
    """
    if not raw:
        raise report.error("names no device; expected at least one interval")
    latest = max((float(i[:, 1].max()) for i in raw.values() if len(i)), default=None)
    if latest is None and span_s is None:
        raise report.error("has no interval at all; expected a device to be available at some time")
    span = span_s if span_s is not None else latest - origin_s  # type: ignore[operator]
    if not span > 0:
        raise report.error(f"spans {span:g} s; expected more than 0")
    if latest is not None and latest - origin_s > span * (1 + 1e-12):
        raise report.error(f"states span_s {span:g} but has an interval that ends at {latest - origin_s:g} s")
    return {device: Availability(device, merged(device, intervals - origin_s, report), float(span),
                                 start_epoch_s, report.path) for device, intervals in raw.items()}


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
