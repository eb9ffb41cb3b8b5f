"""What a bottleneck lets through while its queue is never empty: the shaper itself, whatever fills the queue.

A flow that is too short, too far away or too slow in starting says little about its link. The link's own queue says
when it was busy: what left it between two looks had all been waiting at the first one. Only such intervals count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.emulation.network.counters import QueueCounters
from testbed.scenario.link_model import FRAME_BYTES, WIRE_PER_GOODPUT

LOOK_S = 0.01
LOOKS_PER_BUFFER = 5
LOOKING = 1 / 20  # of the time at most
PIECE_S, PIECE_FRAMES = 0.05, 50  # a rate is taken over both at least: a frame more or less is 2 %
PIECES_MIN = 3
UNCERTAIN_S = 0.001  # a look that took longer was interrupted: nobody knows when the counters were read


@dataclass(frozen=True)
class _Look:
    at_s: float
    served: int
    waiting: int


class QueueWatch:
    """Looks at some queues again and again; one thread's.

    Args:
        queues: by name, what reads each one's counters.
        buffer_s: how much a queue holds, as time.
    """

    def __init__(self, queues: dict[str, Callable[[], QueueCounters]], buffer_s: float):
        self._queues = queues
        self._looks: dict[str, list[_Look]] = {name: [] for name in queues}
        self._every_s = min(LOOK_S, buffer_s / LOOKS_PER_BUFFER)
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        """Read the counters if that is due (CLOCK_MONOTONIC)."""
        if now_s < self._next_s:
            return
        for name, read in self._queues.items():
            before_s = time.monotonic()
            counters = read()
            after_s = time.monotonic()
            if after_s - before_s <= UNCERTAIN_S:
                self.saw(name, (before_s + after_s) / 2, counters)
        took_s = time.monotonic() - now_s
        self._next_s = now_s + max(self._every_s, took_s / LOOKING)

    def saw(self, name: str, at_s: float, counters: QueueCounters) -> None:
        self._looks[name].append(_Look(at_s, counters.bytes, counters.backlog_bytes))

    def goodput_bps(self, names: Sequence[str], begin_s: float, end_s: float) -> float | None:
        """What the busiest of these queues let through between two moments, while it was busy, as TCP goodput.

        The median over pieces of the time: a moment in which the machine stood still is not the shaper's.
        None: no queue was busy for as long as that takes.
        """
        found = [self._pieces(self._busy(name, begin_s, end_s)) for name in names]
        pieces = max(found, key=len, default=[])
        return 8 * statistics.median(pieces) / WIRE_PER_GOODPUT if len(pieces) >= PIECES_MIN else None

    def busy_s(self, names: Sequence[str], begin_s: float, end_s: float) -> float:
        """How long the busiest of these queues is known to have been busy between two moments."""
        spans = ((b.at_s - a.at_s for a, b in self._busy(name, begin_s, end_s)) for name in names)
        return max(map(sum, spans), default=0.0)

    def _busy(self, name: str, begin_s: float, end_s: float) -> list[tuple[_Look, _Look]]:
        looks = [look for look in self._looks[name] if begin_s <= look.at_s <= end_s]
        return [(a, b) for a, b in zip(looks, looks[1:]) if 0 < a.waiting >= b.served - a.served]

    @staticmethod
    def _pieces(busy: list[tuple[_Look, _Look]]) -> list[float]:
        """Bytes a second over pieces of unbroken business."""
        rates: list[float] = []
        first = last = None
        for a, b in busy:
            if last is not a:
                first = a
            last = b
            seconds, total = b.at_s - first.at_s, b.served - first.served
            if seconds >= PIECE_S and total >= PIECE_FRAMES * FRAME_BYTES:
                rates.append(total / seconds)
                first = b
        return rates
