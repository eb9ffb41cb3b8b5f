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
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class Paced:
    """What a paced computation gave. start_s, end_s: on `clock`; busy_s: real time the work itself took."""

    result: Any
    start_s: float
    end_s: float
    busy_s: float
    overrun_s: float  # real time beyond the target; 0 when in time


def paced(
    fn: Callable[..., Any], args: tuple, target_s: float, *,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> Paced:  # fmt: skip
    """Run `fn(*args)` so that it takes `target_s` real seconds, or what it needs if that is more."""
    start = clock()
    result = fn(*args)
    busy = clock() - start
    rest = target_s - busy
    if rest > 0:
        sleep(rest)
    return Paced(result, start, clock(), busy, max(0.0, -rest))


def _prepare_thread() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPUTE_NICENESS)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # sleep to the microsecond, not to 50


def compute_thread() -> ThreadPoolExecutor:
    """The one thread in which a node computes."""
    return ThreadPoolExecutor(1, "compute", initializer=_prepare_thread)
