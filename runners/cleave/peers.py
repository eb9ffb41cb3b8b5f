"""A device as the server sees it: what waits for it, what it works on, what it holds, how fast it is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from runners.cleave.cache import Held
from runners.cleave.job import Region, Task, View
from runners.planning.gemm import Rates

WINDOW = 6  # tasks on their way to, at, or from a device; below the transport's queue, so that sending never waits
WINDOW_LATER = 3  # of those that nothing waits for, so that what is urgent does not stand behind them
CACHE_SHARE = 0.5  # of a device's memory that kept blocks may take
LEAST_BYTES = 1 << 15  # in a step, for its transfers to count as a measurement of the link
MEASURED_CHANGE = 0.1  # of any rate, from which on plans are made anew


class Prefetch(NamedTuple):
    """A part of a weight that a device will need for its share of the next product."""

    view: View
    region: Region
    job: str


class Meter:
    """What a device did in a step: bytes and the seconds they took, FLOPs and theirs."""

    __slots__ = ("down_bytes", "down_s", "flops", "up_bytes", "up_s", "work_s", "_down_last_s", "_up_last_s")

    def __init__(self) -> None:
        self.reset()
        self._down_last_s = self._up_last_s = 0.0

    def reset(self) -> None:
        self.down_bytes = self.up_bytes = 0
        self.down_s = self.up_s = self.work_s = self.flops = 0.0

    def note(self, task: Task, rates: Rates, received_s: float, began_s: float, ended_s: float, sent_s: float,
             back_s: float) -> None:  # fmt: skip
        """A result came back: when its input was there, computing began and ended, the result left, and was here."""
        self.down_bytes += task.down_bytes
        self.down_s += max(0.0, received_s - max(task.down_from_s + rates.downlink_delay_s, self._down_last_s))
        self._down_last_s = received_s
        self.flops += task.flops
        self.work_s += ended_s - began_s
        self.up_bytes += task.up_bytes
        self.up_s += max(0.0, back_s - max(sent_s + rates.uplink_delay_s, self._up_last_s))
        self._up_last_s = back_s

    def measured(self, rates: Rates, weight: float) -> Rates:
        """`rates` moved by `weight` towards what was measured (an exponentially weighted mean over the steps)."""
        down = _mean(rates.downlink_bps, 8 * self.down_bytes, self.down_s, weight, self.down_bytes >= LEAST_BYTES)
        up = _mean(rates.uplink_bps, 8 * self.up_bytes, self.up_s, weight, self.up_bytes >= LEAST_BYTES)
        flops = _mean(rates.flops, self.flops, self.work_s, weight, self.work_s > 0)
        return replace(rates, downlink_bps=down, uplink_bps=up, flops=flops)


def _mean(old: float, amount: float, seconds: float, weight: float, enough: bool) -> float:
    if not enough or seconds <= 0:
        return old
    measured = min(amount / seconds, 4 * old)  # short of that, what was measured is the clock
    return 1 / ((1 - weight) / old + weight / measured)  # times add up, not rates


class Peer:
    """One life of a device.

    waiting: heap of (priority, order, Task | Prefetch). tasks: sent and not answered, in order.
    suspect: its work is long overdue. resident_bytes: of its tasks. clear: the next message drops all it holds.
    """

    __slots__ = (
        "clear", "distrusted", "down_free_s", "faults", "generation", "held", "memory_bytes", "meter", "name",
        "planned", "rates", "resident_bytes", "stale_bytes", "suspect", "tasks", "unasked_bytes", "unasked_from_s",
        "up_free_s", "waiting", "work_free_s", "_going", "_going_bytes",
    )  # fmt: skip

    def __init__(self, name: str, generation: int, rates: Rates, memory_bytes: float, *, cache: bool):
        self.name, self.generation, self.rates, self.memory_bytes = name, generation, rates, memory_bytes
        self.waiting: list[tuple[int, int, Task | Prefetch]] = []
        self.tasks: dict[int, Task] = {}
        self.held = Held(CACHE_SHARE * memory_bytes if cache else 0)
        self.meter = Meter()
        self.planned = rates  # what plans were made with
        self.suspect = False
        self.distrusted = False
        self.faults = 0
        self.clear = False
        self.stale_bytes = 0  # of the step before, until it hears that they are
        self.resident_bytes = 0
        self._going: dict[int, int] = {}  # task -> bytes that the device has let go of once the task is answered
        self._going_bytes = 0
        self.unasked_bytes = 0  # prefetched since the last task
        self.unasked_from_s: float | None = None
        self.down_free_s = self.work_free_s = self.up_free_s = 0.0

    @property
    def used_bytes(self) -> int:
        """Of its memory, at most: tasks, what it keeps, and what it was told to drop but may not have dropped yet."""
        return self.resident_bytes + self.held.bytes + self._going_bytes

    def room(self, later: bool, nbytes: int) -> bool:
        """Whether another task may be sent that takes so much of the device's memory."""
        if not self.tasks:
            return True
        return len(self.tasks) < (WINDOW_LATER if later else WINDOW) and self.used_bytes + nbytes <= self.memory_bytes

    def cramped(self, nbytes: int) -> bool:
        """Whether nothing but what it keeps is in the way of a task of that size."""
        fits = self.memory_bytes - self.resident_bytes - nbytes
        return 0 <= fits < self.held.bytes and len(self.tasks) < WINDOW_LATER

    def lets_go(self, nbytes: int, task: int | None = None) -> None:
        """It will drop so much: by the answer to that task, or to the last one that is under way."""
        if task is None:
            task = next(reversed(self.tasks), None)
        if nbytes > 0 and task is not None:
            self._going[task] = self._going.get(task, 0) + nbytes
            self._going_bytes += nbytes

    def answered(self, task: Task) -> None:
        self.tasks.pop(task.id, None)
        self.resident_bytes -= task.resident_bytes
        self._going_bytes -= self._going.pop(task.id, 0)

    def expect_s(self, now: float, down_bytes: float, flops: float, up_bytes: float) -> float:
        """When the result of a task sent now should be here; tasks follow each other on every part of the way."""
        r = self.rates
        down_free_s = self.down_free_s = max(now, self.down_free_s) + 8 * down_bytes / r.downlink_bps
        work_free_s = self.work_free_s = max(down_free_s + r.downlink_delay_s, self.work_free_s) + flops / r.flops
        up_free_s = self.up_free_s = max(work_free_s, self.up_free_s) + 8 * up_bytes / r.uplink_bps
        return up_free_s + r.uplink_delay_s

    def forget_clocks(self) -> None:
        """Nothing is expected of it any more."""
        self.down_free_s = self.work_free_s = self.up_free_s = 0.0

    def changed(self) -> bool:
        """Whether its rates are far from those that plans were made with."""
        pairs = (
            (self.rates.flops, self.planned.flops), (self.rates.uplink_bps, self.planned.uplink_bps),
            (self.rates.downlink_bps, self.planned.downlink_bps),
        )  # fmt: skip
        return any(abs(a - b) > MEASURED_CHANGE * b for a, b in pairs)
