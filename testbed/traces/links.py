"""An access link over time: the trace of one home, looked up without state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from testbed.cluster import LinkState
from testbed.errors import TestbedError, unknown

ENDS = ("loop", "hold", "stop")
INTERPOLATIONS = ("step", "linear")


class TraceEnded(TestbedError):
    """A trace that was told to stop at its end was asked for a later time."""


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """The access link of one home over time.

    home: its name. times_s: (n,) float64, ascending, starting at 0. down_bps, up_bps: (n,) TCP goodput
    [bit/s], positive. rtt_s, jitter_s: (n,) [s]. loss: (n,) probability over the round trip, 0 to 1.
    span_s: length of the trace, the last sample's holding time included; the period when it loops.
    assumed: which of download, upload, rtt, jitter and loss the file does not have.
    start_epoch_s: Unix time of t = 0, or None where the file has no absolute time.
    """

    home: str
    times_s: np.ndarray
    down_bps: np.ndarray
    up_bps: np.ndarray
    rtt_s: np.ndarray
    jitter_s: np.ndarray
    loss: np.ndarray
    span_s: float
    start_epoch_s: float | None = None
    source: str = field(default="", compare=False)
    assumed: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.times_s)

    def _state(self, i: int) -> LinkState:
        return LinkState(
            float(self.down_bps[i]),
            float(self.up_bps[i]),
            float(self.rtt_s[i]),
            float(self.jitter_s[i]),
            float(self.loss[i]),
        )

    def at(self, t_s: float, *, end: str = "loop", interpolate: str = "step") -> LinkState:
        """The link at trace time `t_s` (>= 0). No state is kept: any order of calls gives the same answers.

        end: beyond the span, 'loop' begins anew, 'hold' keeps the last sample, 'stop' raises.
        interpolate: 'step' holds each sample until the next; 'linear' joins them (when looping, the last one
        with the first).

        Raises:
            TraceEnded: `end` is 'stop' and `t_s` is at or beyond the span.
        """
        _check_choices(end, interpolate)
        t = local_time(t_s, self.span_s, end, self.home)
        n = len(self.times_s)
        if t is None:
            return self._state(n - 1)
        i = int(np.searchsorted(self.times_s, t, side="right")) - 1
        if interpolate == "step":
            return self._state(i)
        following, t_next = i + 1, self.times_s[i + 1] if i + 1 < n else self.span_s
        if following == n:
            if end != "loop":
                return self._state(i)
            following = 0
        share = (t - self.times_s[i]) / (t_next - self.times_s[i])
        a, b = self._state(i), self._state(following)
        return LinkState(
            *(
                float(x + share * (y - x))
                for x, y in ((getattr(a, f), getattr(b, f)) for f in LinkState.__dataclass_fields__)
            )
        )

    def changes(
        self,
        until_s: float,
        *,
        offset_s: float = 0.0,
        time_scale: float = 1.0,
        end: str = "loop",
        interpolate: str = "step",
        resolution_s: float = 1.0,
    ) -> list[tuple[float, LinkState]]:
        """Every change during a run of `until_s` seconds, as (run time, state); the first at 0.

        Run time r shows trace time offset_s + r * time_scale. With 'linear' the trace is sampled every
        `resolution_s` of run time. Only real changes are listed. With end='stop' none lies beyond the span.

        Raises:
            TraceEnded: end is 'stop' and `offset_s` is beyond the span.
        """
        _check_choices(end, interpolate)
        if not (time_scale > 0 and resolution_s > 0 and offset_s >= 0):
            raise ValueError("time_scale and resolution_s must be positive, offset_s not negative")
        last = offset_s + until_s * time_scale
        out: list[tuple[float, LinkState]] = [(0.0, self.at(offset_s, end=end, interpolate=interpolate))]
        if interpolate == "linear":
            for k in range(1, math.ceil(until_s / resolution_s)):
                t = offset_s + k * resolution_s * time_scale
                if end == "stop" and t >= self.span_s:
                    break
                out.append((k * resolution_s, self.at(t, end=end, interpolate=interpolate)))
        else:
            out += [
                ((t - offset_s) / time_scale, self._state(i))
                for t, i in breakpoints(self.times_s, self.span_s, offset_s, last, end)
            ]
        return [pair for k, pair in enumerate(out) if k == 0 or pair[1] != out[k - 1][1]]


def local_time(t_s: float, span_s: float, end: str, name: str) -> float | None:
    """`t_s` folded into [0, span_s), or None for 'hold the last value'."""
    if not t_s >= 0:
        raise ValueError(f"trace time {t_s!r} is negative")
    if t_s < span_s:
        return t_s
    if end == "loop":
        return math.fmod(t_s, span_s)
    if end == "hold":
        return None
    raise TraceEnded(
        f"the trace of {name} ends at {span_s:g} s; asked for {t_s:g} s",
        hint="choose loop or hold for the trace's end, or a shorter run",
    )


def breakpoints(
    times_s: np.ndarray, span_s: float, after_s: float, until_s: float, end: str
) -> Iterable[tuple[float, int]]:
    """(trace time, index) of every sample in (after_s, until_s), in order, over all rounds when looping."""
    if len(times_s) == 1:
        return  # a constant
    first = math.floor(after_s / span_s) if end == "loop" else 0
    last = math.floor(until_s / span_s) if end == "loop" else 0
    for k in range(first, last + 1):
        base = k * span_s
        begin = int(np.searchsorted(times_s, after_s - base, side="right")) if k == first else 0
        for i in range(begin, len(times_s)):
            moment = base + float(times_s[i])
            if moment >= until_s:
                return
            if moment > after_s:
                yield moment, i


def _check_choices(end: str, interpolate: str) -> None:
    if end not in ENDS:
        raise unknown("links.end", "trace end", end, ENDS)
    if interpolate not in INTERPOLATIONS:
        raise unknown("links.interpolate", "interpolation", interpolate, INTERPOLATIONS)
