"""When a device may be used: the intervals of one device, looked up without state."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from testbed.errors import unknown
from testbed.traces.links import ENDS, local_time


@dataclass(frozen=True, eq=False)
class Availability:
    """The availability of one device.

    device: its name. intervals_s: (n, 2) float64, [start, end) in trace seconds, ascending, disjoint, within
    [0, span_s]; n may be 0. span_s: length of the trace, the period when it loops.
    start_epoch_s: Unix time of t = 0, or None.
    """

    device: str
    intervals_s: np.ndarray
    span_s: float
    start_epoch_s: float | None = None
    source: str = field(default="", compare=False)

    def __post_init__(self):
        object.__setattr__(self, "_edges", self.intervals_s.reshape(-1).tolist())

    def available(self, t_s: float, *, end: str = "loop") -> bool:
        """Whether the device is available at trace time `t_s` (>= 0); no state is kept between calls.

        end: beyond the span, 'loop' begins anew, 'hold' keeps the last state, 'stop' raises.

        Raises:
            TraceEnded: `end` is 'stop' and `t_s` is at or beyond the span.
        """
        _check_end(end)
        t = local_time(t_s, self.span_s, end, self.device)
        edges: list[float] = self._edges  # type: ignore[attr-defined]
        if t is None:
            return bool(edges) and edges[-1] >= self.span_s
        return bisect_right(edges, t) % 2 == 1

    def changes(
        self, until_s: float, *, offset_s: float = 0.0, time_scale: float = 1.0, end: str = "loop"
    ) -> list[tuple[float, bool]]:
        """Every change during a run of `until_s` seconds, as (run time, available); the first at 0.

        Run time r shows trace time offset_s + r * time_scale. With end='stop' no change lies beyond the span.

        Raises:
            TraceEnded: end is 'stop' and `offset_s` is beyond the span.
        """
        if not (time_scale > 0 and offset_s >= 0):
            raise ValueError("time_scale must be positive, offset_s not negative")
        last = offset_s + until_s * time_scale
        out = [(0.0, self.available(offset_s, end=end))]
        for moment, state in self._edges_between(offset_s, last, end):
            if state != out[-1][1]:
                out.append(((moment - offset_s) / time_scale, state))
        return out

    def _edges_between(self, after_s: float, until_s: float, end: str):
        """(trace time, state from then on) of every edge in (after_s, until_s), over all rounds."""
        edges: list[float] = self._edges  # type: ignore[attr-defined]
        first = int(after_s // self.span_s) if end == "loop" else 0
        last = int(until_s // self.span_s) if end == "loop" else 0
        for k in range(first, last + 1):
            base = k * self.span_s
            for i, edge in enumerate(edges):
                if edge >= self.span_s and (end != "loop" or edges[0] == 0):
                    continue  # the interval goes on, in the next round or for ever
                if edge == 0 and k > 0 and edges[-1] >= self.span_s:
                    continue  # it came on in the round before
                moment = base + edge
                if moment >= until_s:
                    return
                if moment > after_s:
                    yield moment, i % 2 == 0

    def fraction(self, until_s: float | None = None, *, end: str = "loop") -> float:
        """The share of [0, until_s) during which the device is available; of the span by default."""
        _check_end(end)
        span = self.span_s
        until = span if until_s is None else float(until_s)
        if until <= 0:
            raise ValueError(f"until_s is {until!r}; expected a positive time")
        once = self._on_before(min(until, span))
        if until <= span:
            return once / until
        if end == "loop":
            rounds = int(until // span)
            return (rounds * self._on_before(span) + self._on_before(until - rounds * span)) / until
        if end == "stop":
            return once / span
        return (once + (until - span) * self.available(until, end="hold")) / until

    def _on_before(self, t_s: float) -> float:
        if not len(self.intervals_s):
            return 0.0
        clipped = np.clip(self.intervals_s, 0.0, t_s)
        return float((clipped[:, 1] - clipped[:, 0]).sum())


def _check_end(end: str) -> None:
    if end not in ENDS:
        raise unknown("availability.end", "trace end", end, ENDS)
