"""When each packet is due, and which ones are lost: the arithmetic of the NFQUEUE delay line, without I/O.

A lane is a directed pair of hosts. Its loss and its jitter come from generators of its own, seeded by the
run's seed and the pair's names: the same seed gives the n-th packet of a lane the same fate, whatever other
lanes carry.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping

from testbed.emulation.delay.base import PathDelay

LOST = -1
_NS = 1_000_000_000


class Lane:
    """Packets from one host to another. Times are integer nanoseconds.

    waiting: (due, packet) in the order of release; filled and emptied by the delay line.
    """

    __slots__ = ("_gauss", "_last_due", "_uniform", "delay", "jitter", "loss", "name", "reorder", "waiting")

    def __init__(self, name: str, seed: int):
        self.name = name
        self.delay = self.jitter = self._last_due = 0
        self.loss = self.reorder = 0.0
        self._uniform = random.Random(f"{seed}/{name}/loss").random
        self._gauss = random.Random(f"{seed}/{name}/jitter").gauss
        self.waiting: deque[tuple[int, int]] = deque()

    def due(self, arrived: int) -> int:
        """The time at which a packet that arrived at `arrived` is to be released, or LOST.

        Call once a packet.
        """
        if self.loss and self._uniform() < self.loss:
            return LOST
        due = arrived + self.delay
        if self.jitter:
            due = max(arrived, due + int(self._gauss(0.0, self.jitter)))
            if self.reorder and self._uniform() < self.reorder:
                return due
        if due < self._last_due:  # a line keeps its order, as a home's access link does
            return self._last_due
        self._last_due = due
        return due


class Lanes:
    """All lanes of a run, made when a pair first exchanges a packet.

    Args:
        delays: host -> its access link's delays.
        areas: host -> name of the shared link that it is behind; hosts on the core are missing.
        shared_delay_s: shared link -> one-way delay [s].
    """

    def __init__(self, delays: Mapping[str, PathDelay], areas: Mapping[str, str],
                 shared_delay_s: Mapping[str, float], seed: int):
        self._delays = dict(delays)
        self._areas = dict(areas)
        self._shared = dict(shared_delay_s)
        self._seed = seed
        self._lanes: dict[tuple[str, str], Lane] = {}
        self.shortest = 0  # of all lanes' delays [ns]

    def lane(self, sender: str, receiver: str) -> Lane:
        """The lane from sender to receiver. One that is outside the run has no delay of its own."""
        found = self._lanes.get((sender, receiver))
        if found is None:
            found = self._lanes[sender, receiver] = Lane(f"{sender}>{receiver}", self._seed)
            self._adjust(sender, receiver, found)
            self._find_shortest()
        return found

    def set(self, changes: Mapping[str, PathDelay]) -> None:
        """New delays for some hosts; packets that already wait keep their due time."""
        self._delays.update(changes)
        for (sender, receiver), lane in self._lanes.items():
            if sender in changes or receiver in changes:
                self._adjust(sender, receiver, lane)
        self._find_shortest()

    def _find_shortest(self) -> None:
        self.shortest = min((lane.delay for lane in self._lanes.values()), default=0)

    def _adjust(self, sender: str, receiver: str, lane: Lane) -> None:
        up, down = self._delays.get(sender, _NONE), self._delays.get(receiver, _NONE)
        total_s = up.up_delay_s + down.down_delay_s
        here, there = self._areas.get(sender), self._areas.get(receiver)
        if here != there:
            total_s += self._shared.get(here, 0.0) + self._shared.get(there, 0.0)
        lane.delay = round(total_s * _NS)
        lane.jitter = round((up.up_jitter_s**2 + down.down_jitter_s**2) ** 0.5 * _NS)
        lane.loss = 1 - (1 - up.up_loss) * (1 - down.down_loss)
        lane.reorder = max(up.reorder, down.reorder)


_NONE = PathDelay()
