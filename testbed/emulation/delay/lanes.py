"""When each packet is due, and which ones are lost: the arithmetic of the NFQUEUE delay line, without I/O.

A lane is a directed pair of hosts. Its loss and its jitter come from generators of its own, seeded by the
run's seed and the pair's names: the same seed gives the n-th packet of a lane the same fate, whatever other
lanes carry.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Mapping

from testbed.scenario.link_model import PathDelay

LOST = -1
_NS = 1_000_000_000


_MASK = (1 << 64) - 1


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class Generator:
    """SplitMix64 (Steele, Lea, Flood 2014), as line.c has it too: the same draws in Python and in C."""

    __slots__ = ("_state",)

    def __init__(self, seed: int):
        self._state = seed

    def uniform(self) -> float:
        """From 0 up to, not including, 1."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    def gauss(self) -> float:
        """Standard normal (Box and Muller 1958); two draws, always."""
        a, b = 1.0 - self.uniform(), self.uniform()
        return math.sqrt(-2.0 * math.log(a)) * math.cos(6.283185307179586 * b)


class Lane:
    """Packets from one host to another. Times are integer nanoseconds.

    waiting: (due, packet) in the order of release; filled and emptied by the delay line. seeds: of the
    generators for loss and for jitter.
    """

    __slots__ = ("_gauss", "_last_due", "_uniform", "delay", "jitter", "loss", "name", "reorder", "seeds", "waiting")

    def __init__(self, name: str, seed: int):
        self.name = name
        self.delay = self.jitter = self._last_due = 0
        self.loss = self.reorder = 0.0
        self.seeds = (_seed(f"{seed}/{name}/loss"), _seed(f"{seed}/{name}/jitter"))
        self._uniform = Generator(self.seeds[0]).uniform
        self._gauss = Generator(self.seeds[1]).gauss
        self.waiting: deque[tuple[int, int]] = deque()

    @property
    def shortest(self) -> int:
        """The delay that 98 % of the packets have at least [ns]."""
        return max(0, self.delay - 2 * self.jitter)

    def due(self, arrived: int) -> int:
        """The time at which a packet that arrived at `arrived` is to be released, or LOST.

        Call once a packet.
        """
        if self.loss and self._uniform() < self.loss:
            return LOST
        due = arrived + self.delay
        if self.jitter:
            due = max(arrived, due + int(self._gauss() * self.jitter))
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

    def __init__(
        self, delays: Mapping[str, PathDelay], areas: Mapping[str, str], shared_delay_s: Mapping[str, float], seed: int
    ):
        self._delays = dict(delays)
        self._areas = dict(areas)
        self._shared = dict(shared_delay_s)
        self._seed = seed
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._of: dict[str, list[tuple[str, str]]] = {}  # pairs by host
        self.shortest = 0  # delay of all lanes, where jitter makes it so [ns]
        self.on_change: Callable[[list[Lane]], None] | None = None  # told which lanes have new settings

    def lane(self, sender: str, receiver: str) -> Lane:
        """The lane from sender to receiver. One that is outside the run has no delay of its own."""
        found = self._lanes.get((sender, receiver))
        if found is None:
            found = self._lanes[sender, receiver] = Lane(f"{sender}>{receiver}", self._seed)
            for host in {sender, receiver}:
                self._of.setdefault(host, []).append((sender, receiver))
            self._adjust(sender, receiver, found)
            self.shortest = found.shortest if len(self._lanes) == 1 else min(self.shortest, found.shortest)
        return found

    def set(self, changes: Mapping[str, PathDelay]) -> None:
        """New delays for some hosts; packets that already wait keep their due time."""
        self._delays.update(changes)
        pairs = {pair for host in changes for pair in self._of.get(host, ())}
        for sender, receiver in pairs:
            self._adjust(sender, receiver, self._lanes[sender, receiver])
        self._find_shortest()
        if self.on_change is not None:
            self.on_change([self._lanes[pair] for pair in pairs])

    def _find_shortest(self) -> None:
        self.shortest = min((lane.shortest for lane in self._lanes.values()), default=0)

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
