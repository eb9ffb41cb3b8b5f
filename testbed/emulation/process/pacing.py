"""Computation at a device's speed: run the work, then wait out the rest of the device's time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

COMPUTE_NICENESS = 5  # network, heartbeats and delay lines go first when the machine is short of time
SLACK_S = 1e-3  # real; what the hand-over between threads may take without counting as the device's time
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class Paced:
    """What a paced computation gave. start_s, end_s: on the clock; busy_s: real time the work itself took."""

    result: Any
    start_s: float
    end_s: float
    busy_s: float
    overrun_s: float  # real time beyond the target; 0 when in time


class Pacer:
    """One device's computations, one after another.

    A computation that is asked for right when the one before ends follows on it without a gap: the third of a
    millisecond that a result takes from thread to event loop and back is the emulation's, not the device's.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ):  # fmt: skip
        self._clock = clock
        self._sleep = sleep
        self._free_s = 0.0  # when the one before ended

    def run(self, fn: Callable[..., Any], args: tuple, target_s: float, asked_s: float) -> Paced:
        """Run `fn(*args)` so that it takes `target_s` real seconds, or what it needs if that is more.

        Args:
            asked_s: when it was asked for, on the clock.
        """
        start = self._free_s if asked_s < self._free_s + SLACK_S else asked_s
        began = self._clock()
        result = fn(*args)
        done = self._clock()
        end = start + target_s
        if done < end:
            self._sleep(end - done)
        late = self._clock() - end
        if late > SLACK_S:
            end += late
        self._free_s = end
        return Paced(result, start, end, done - began, max(0.0, done - start - target_s))


def _prepare_thread() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPUTE_NICENESS)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # sleep to the microsecond, not to 50


def compute_thread() -> ThreadPoolExecutor:
    """The one thread in which a node computes."""
    return ThreadPoolExecutor(1, "compute", initializer=_prepare_thread)
