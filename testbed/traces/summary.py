"""What a set of traces holds: counts, spans, quantiles, gaps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace
from testbed.traces.report import Report

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_PIECE = 1_000_000
GAP = 3.0  # times the usual step
QUANTITIES = {"down_bps": "download", "up_bps": "upload", "rtt_s": "rtt", "jitter_s": "jitter", "loss": "loss"}


def summarise(traces: Mapping[str, LinkTrace] | Mapping[str, Availability], report: Report) -> dict:
    """Plain data about traces of one kind, with the reader's report."""
    first = next(iter(traces.values()))
    content = links(traces) if isinstance(first, LinkTrace) else availability(traces)  # type: ignore[arg-type]
    return content | {"report": report.as_dict()}


def links(traces: Mapping[str, LinkTrace]) -> dict:
    """Quantiles over all samples of all homes (SI units), gaps and spans."""
    starts = [t.start_epoch_s for t in traces.values() if t.start_epoch_s is not None]
    gaps = [_gaps(t) for t in traces.values()]
    return {
        "kind": "links",
        "homes": len(traces),
        "samples": sum(map(len, traces.values())),
        "span_s": max(t.span_s for t in traces.values()),
        "start_epoch_s": min(starts, default=None),
        "step_s": float(np.median([s for s, _, _ in gaps])),
        "gaps": {"count": sum(n for _, n, _ in gaps), "longest_s": max(longest for _, _, longest in gaps)},
        "levels": list(LEVELS),
        "quantiles": {name: quantiles(traces, field) for field, name in QUANTITIES.items()},
    }


def quantiles(traces: Mapping[str, LinkTrace], field: str) -> list[float]:
    """The quantiles at LEVELS of one quantity over all samples. One column is copied, no more."""
    columns = [getattr(t, field) for t in traces.values()]
    if all(c.strides == (0,) for c in columns):  # constants, as defaults are
        values = np.repeat([c[0] for c in columns], 1)
    elif len(columns) == 1:
        values = np.array(columns[0])
    else:
        values = np.concatenate(columns)
    values.sort()
    at = np.array(LEVELS) * (len(values) - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, len(values) - 1)
    return [float(values[a] + (values[b] - values[a]) * (x - a)) for x, a, b in zip(at, low, high)]


def _gaps(trace: LinkTrace) -> tuple[float, int, float]:
    """(usual step, number of steps more than GAP times as long, the longest step)."""
    if len(trace) < 2:
        return trace.span_s, 0, 0.0
    usual = float(np.median(np.diff(trace.times_s[:_PIECE])))
    count, longest = 0, 0.0
    for k in range(0, len(trace) - 1, _PIECE):  # in pieces: a long trace's steps take as much memory as it does
        steps = np.diff(trace.times_s[k : k + _PIECE + 1])
        count += int((steps > GAP * usual).sum())
        longest = max(longest, float(steps.max()))
    return usual, count, longest


def availability(traces: Mapping[str, Availability]) -> dict:
    """Shares, sessions and gaps between them [s], and the share of devices that are there by hour."""
    sessions = np.concatenate([np.diff(t.intervals_s, axis=1).ravel() for t in traces.values()])
    between = np.concatenate([t.intervals_s[1:, 0] - t.intervals_s[:-1, 1] for t in traces.values()])
    shares = [t.fraction() for t in traces.values()]
    return {
        "kind": "availability",
        "devices": len(traces),
        "intervals": len(sessions),
        "span_s": max(t.span_s for t in traces.values()),
        "start_epoch_s": min((t.start_epoch_s for t in traces.values() if t.start_epoch_s is not None), default=None),
        "levels": list(LEVELS),
        "available_fraction": _levels(shares),
        "session_s": _levels(sessions),
        "gap_s": _levels(between),
        "mean_fraction": float(np.mean(shares)),
        "never": sum(not len(t.intervals_s) for t in traces.values()),
        "always": sum(share >= 1 for share in shares),
        "by_hour": by_hour(traces),
    }


def _levels(values) -> list[float] | None:
    return [float(v) for v in np.quantile(values, LEVELS)] if len(values) else None


def by_hour(traces: Mapping[str, Availability]) -> list[float] | None:
    """The share of devices that are available in each hour of the day, over all days; None for traces of less
    than a day. Hours are UTC where the traces have an absolute time, else counted from time 0.
    """
    span = max(t.span_s for t in traces.values())
    if span < 86400:
        return None
    on, known = np.zeros(24), np.zeros(24)
    for trace in traces.values():
        shift = (trace.start_epoch_s or 0.0) % 86400
        known += _per_hour(np.array([[0.0, trace.span_s]]) + shift)
        if len(trace.intervals_s):
            on += _per_hour(trace.intervals_s + shift)
    return [float(v) for v in on / np.maximum(known, 1e-9)]


def _per_hour(intervals: np.ndarray) -> np.ndarray:
    """Seconds of the intervals that fall into each hour of the day."""
    edges = np.arange(25) * 3600.0

    def until(t: np.ndarray) -> np.ndarray:
        days, rest = np.divmod(t, 86400.0)
        return days[:, None] * 3600.0 + np.clip(rest[:, None] - edges[:-1], 0, 3600.0)

    return (until(intervals[:, 1]) - until(intervals[:, 0])).sum(axis=0)
