"""When is silence a loss? Deadlines that follow what a link and a machine are seen to do.

A device sends a heartbeat every `interval_s`; the server echoes each. Silence has two harmless causes, and
the deadline covers both as measured on this very link:

* *lost heartbeats*: with a measured loss p, k in a row are lost by chance with probability p^k, so the
  deadline waits for the k-th with k = ln(chance) / ln(p);
* *late heartbeats*: the largest lateness against the regular arrivals expected (Chen, Toueg, Aguilera 2002,
  section 5, "NFD-E") that the last `window` heartbeats had, plus a bound of the round trip, SRTT + 4 RTTVAR
  or its largest recent value (RFC 6298, section 2; Bertier, Marin, Sens 2002 use the same estimator as safety
  margin). The largest recent value rather than a variance, since training traffic fills a link in bursts:
  between two of them a variance forgets what the next one will do.

Both live in a window, so the deadline shrinks again. All times here are emulated seconds.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class DetectorSettings:
    """The constants of the detector; everything else is measured.

    interval_s: between heartbeats; 100 bytes each, so 4 kbit/s.
    floor_s: no deadline is shorter (RFC 6298, rule 2.4, sets 1 s for the same reason: a stall that wasn't
        seen yet).
    ceiling_s: no deadline is longer.
    chance: of taking lost heartbeats for a lost device.
    window: heartbeats that are remembered; a minute's worth.
    """

    interval_s: float = 0.2
    floor_s: float = 1.0
    ceiling_s: float = 15.0
    chance: float = 1e-6
    window: int = 300


class WindowMax:
    """The largest of the last `window` values; O(1) amortized."""

    def __init__(self, window: int):
        self._window = window
        self._count = 0
        self._falling: deque[tuple[int, float]] = deque()

    def add(self, value: float) -> None:
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((self._count, value))
        self._count += 1
        if self._falling[0][0] <= self._count - 1 - self._window:
            self._falling.popleft()

    @property
    def value(self) -> float:
        return self._falling[0][1] if self._falling else 0.0


class _Fraction:
    """Fraction of losses among the last `window` outcomes, by Laplace's rule of succession."""

    def __init__(self, window: int):
        self._outcomes: deque[bool] = deque(maxlen=window)
        self._lost = 0

    def add(self, lost: bool) -> None:
        if len(self._outcomes) == self._outcomes.maxlen:
            self._lost -= self._outcomes[0]
        self._outcomes.append(lost)
        self._lost += lost

    @property
    def value(self) -> float:
        return (self._lost + 1) / (len(self._outcomes) + 2)


class LossWindow:
    """The fraction of numbered packets that didn't come: of the last `window` or the last few, whichever is
    worse.

    The few see a link get worse at once, the many keep it in mind. With nothing seen yet it is one half, so
    that deadlines begin long and shrink as evidence comes.
    """

    FEW = 20

    def __init__(self, window: int):
        self._many = _Fraction(window)
        self._few = _Fraction(self.FEW)
        self._last: int | None = None

    def add(self, sequence: int) -> int:
        """Note an arrival; how many numbers on from the last one it is (0 or less: late or a duplicate)."""
        if self._last is None:
            self._last = sequence
            self._push(False)
            return 1
        step = sequence - self._last
        if step <= 0:
            return step
        for _ in range(min(step - 1, 1000)):
            self._push(True)
        self._push(False)
        self._last = sequence
        return step

    def _push(self, lost: bool) -> None:
        self._many.add(lost)
        self._few.add(lost)

    @property
    def value(self) -> float:
        return max(self._many.value, self._few.value)


class RoundTrip:
    """A device's side: round trips from heartbeat to echo, and heartbeats that got none."""

    def __init__(self, settings: DetectorSettings):
        self._smoothed: float | None = None
        self._variation = 0.0
        self._peak = WindowMax(settings.window)
        self._loss = LossWindow(settings.window)

    def echoed(self, sequence: int, rtt_s: float) -> None:
        """RFC 6298, rules 2.2 and 2.3."""
        self._loss.add(sequence)
        self._peak.add(rtt_s)
        if self._smoothed is None:
            self._smoothed, self._variation = rtt_s, rtt_s / 2
        else:
            self._variation += (abs(self._smoothed - rtt_s) - self._variation) / 4
            self._smoothed += (rtt_s - self._smoothed) / 8

    @property
    def smoothed_s(self) -> float:
        return self._smoothed or 0.0

    @property
    def bound_s(self) -> float:
        """What a round trip takes at most, as far as seen; 0 before the first."""
        return max(self.smoothed_s + 4 * self._variation, self._peak.value)

    @property
    def loss(self) -> float:
        return self._loss.value


class Arrivals:
    """The server's side: one device's heartbeats, and how long a silence of it may last."""

    def __init__(self, settings: DetectorSettings):
        self._settings = settings
        self._lateness = WindowMax(settings.window)
        self._loss = LossWindow(settings.window)
        self._last_s: float | None = None
        self._bound_s = 0.0
        self._echo_loss = 0.0

    def heartbeat(self, sequence: int, at_s: float, *, bound_s: float, loss: float) -> None:
        """A heartbeat came, with the device's own round-trip bound and loss."""
        step = self._loss.add(sequence)
        if self._last_s is not None and step > 0:
            self._lateness.add(at_s - self._last_s - step * self._settings.interval_s)
        if step > 0:
            self._last_s = at_s
            self._bound_s, self._echo_loss = bound_s, loss

    @property
    def deadline_s(self) -> float:
        """Silence after the last heartbeat that counts as a loss."""
        s = self._settings
        loss = min(max(self._loss.value, self._echo_loss), 0.9)
        heartbeats = math.ceil(math.log(s.chance) / math.log(loss))
        deadline = heartbeats * s.interval_s + self._bound_s + max(0.0, self._lateness.value)
        return min(max(deadline, s.floor_s), s.ceiling_s)


class AwakeTime:
    """Time in which this process could have noticed a packet.

    A judge that was itself stalled (a busy machine, a suspended computer) must not take its own absence for
    everyone else's: silence is counted in this time, in which a stall counts as `longest_s`.
    """

    def __init__(self, now_s: float, longest_s: float):
        self._longest_s = longest_s
        self._last_s = now_s
        self.value = 0.0

    def tick(self, now_s: float) -> float:
        self.value += min(max(0.0, now_s - self._last_s), self._longest_s)
        self._last_s = now_s
        return self.value
