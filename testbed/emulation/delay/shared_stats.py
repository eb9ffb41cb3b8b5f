"""Counters in memory that the delay daemon writes and the engine reads: neither ever waits for the other."""

from __future__ import annotations

import mmap
import os
import time

from testbed.emulation.delay.base import DelayStats

PACKETS, RELEASED, LOST, QUEUED, OVERFLOWED, HEARTBEAT, CPU, PAUSES = range(8)
HISTOGRAM = 16  # index of the first lag bucket
_STEP_NS = 20_000
_LINEAR = 1024  # buckets of 20 us up to 20 ms, then one for each doubling
_BUCKETS = _LINEAR + 40
BYTES = 8 * (HISTOGRAM + _BUCKETS)


def create() -> int:
    """A file descriptor of fresh, zeroed shared memory; it goes when its last user closes it."""
    fd = os.memfd_create("testbed-delay")
    os.ftruncate(fd, BYTES)
    return fd


def view(fd: int) -> memoryview:
    """The counters as unsigned 64-bit integers."""
    return memoryview(mmap.mmap(fd, BYTES)).cast("Q")


def bucket(lag_ns: int) -> int:
    """Index of the counter for a packet released this late."""
    step = lag_ns // _STEP_NS
    if step < _LINEAR:
        return HISTOGRAM + step if step > 0 else HISTOGRAM
    return HISTOGRAM + min(_LINEAR - 1 + (step // _LINEAR).bit_length(), _BUCKETS - 1)


def _upper_s(index: int) -> float:
    steps = index + 1 if index < _LINEAR else _LINEAR << (index - _LINEAR + 1)
    return steps * _STEP_NS * 1e-9


def _quantile(counts: list[int], total: int, q: float) -> float:
    rank, seen = q * total, 0
    for index, count in enumerate(counts):
        seen += count
        if count and seen >= rank:
            return _upper_s(index)
    return 0.0


class Reader:
    """The engine's view of the counters. Lag figures are upper edges of buckets: late by at most 20 us."""

    def __init__(self, fd: int):
        self._memory = view(fd)
        self._seen = [0] * _BUCKETS

    def read(self) -> DelayStats:
        m = self._memory
        totals = list(m[HISTOGRAM : HISTOGRAM + _BUCKETS])
        counts = [now - before for now, before in zip(totals, self._seen)]
        self._seen = totals
        total = sum(counts)
        beat = m[HEARTBEAT]
        return DelayStats(
            packets=m[PACKETS],
            released=m[RELEASED],
            lost_by_setting=m[LOST],
            queued=m[QUEUED],
            overflowed=m[OVERFLOWED],
            lag_p50_s=_quantile(counts, total, 0.5),
            lag_p99_s=_quantile(counts, total, 0.99),
            lag_max_s=_quantile(counts, total, 1.0),
            age_s=max(0.0, (time.monotonic_ns() - beat) * 1e-9) if beat else 0.0,
            cpu_s=m[CPU] * 1e-9,
            pauses=m[PAUSES],
        )
