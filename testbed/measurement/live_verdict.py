"""The verdict while a run goes on: says at once, and once for each check, when a threshold is passed.

`fidelity.judge` has the last word, from all events; this sees them one by one and keeps only sums. Checks of
single values (a late change, a paused delay line) are final; checks of fractions (overruns, a saturated
machine) may still recover, and wait until there is enough to judge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from testbed.measurement.checks import shown
from testbed.measurement.thresholds import Thresholds

ENOUGH_SECONDS = 10  # of host events, before a fraction of them is judged
ENOUGH_COMPUTATIONS = 50
ENOUGH_PACED_S = 20.0  # emulated; the first computations, on cold caches, are the slowest


class LiveVerdict:
    """Feed it every event; not thread-safe.

    Attributes:
        reasons: text of each violation so far, in the order found.
    """

    def __init__(self, limits: Thresholds, tdf: float):
        self._limits, self._tdf = limits, tdf
        self._seen: set[str] = set()
        self._seconds = self._saturated = self._laggard = self._sleepy = 0
        self._paced_s = self._overrun_s = 0.0
        self._computations = 0
        self.reasons: list[str] = []

    def feed(self, event: dict[str, Any]) -> list[str]:
        """Texts of the checks that fail for the first time with this event."""
        kind, found = event.get("event"), []
        judges = {"host": self._host, "compute": self._compute, "link": self._link, "churn": self._churn,
                  "interference": self._interference}
        for name, text in judges.get(kind, _nothing)(event):
            if name not in self._seen:
                self._seen.add(name)
                found.append(text)
        self.reasons += found
        return found

    def _link(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        late_s = (e.get("late") or 0.0) * self._tdf
        yield from self._over("replay_late", f"a change of {e['node']}'s link was applied late", late_s,
                              self._limits.replay_late_s)

    def _churn(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        late_s = (e.get("late") or 0.0) * self._tdf
        yield from self._over("churn_late", f"{e['node']} was toggled late", late_s, self._limits.churn_late_s)

    def _interference(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if self._limits.interference < 1:
            yield f"interference {e.get('text')}", f"changed behind the tool's back: {e.get('text')}"

    def _host(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        limits = self._limits
        self._seconds += 1
        for field, title, limit, unit in (
            ("delay_lag_max", "a packet was released late", limits.delay_lag_max_s, "s"),
            ("delay_age", "the delay line gives no sign of life", limits.delay_stuck_s, "s"),
            ("delay_paused", "the delay line's process was paused", limits.delay_pauses, "times"),
            ("delay_overflowed", "the delay line's queue was full", limits.overflow_drops, "packets"),
            ("replay_overdue", "a change of the links is due and not done", limits.replay_late_s, "s"),
            ("churn_overdue", "a device is due to be toggled and was not", limits.churn_late_s, "s"),
            ("sched_delay", "the engine stood still", limits.sched_delay_max_s, "s"),
            ("memory_stall", "every process waited for memory", limits.memory_stall, ""),
        ):
            yield from self._over(f"{field} {limit}", title, e.get(field), limit, unit)
        total = e.get("memory_bytes", 0.0) + e.get("memory_available_bytes", 0.0)
        if total:
            yield from self._over("memory", "memory is in use", e["memory_bytes"] / total, 1 - limits.memory_available,
                                  "")
        self._saturated += e.get("cpu", 0.0) > limits.cpu_busy
        self._laggard += (e.get("delay_lag_p99") or 0.0) > limits.delay_lag_p99_s
        self._sleepy += e.get("sched_delay", 0.0) > limits.sched_delay_s
        if self._seconds >= ENOUGH_SECONDS:
            for name, title, count, limit in (
                ("cpu", "the CPU was saturated, of all seconds so far", self._saturated, limits.cpu_saturated_time),
                ("delay_lag_p99", "the delay line lagged, of all seconds so far", self._laggard, 0.05),
                ("sched_delay", "wake-ups came late, of all seconds so far", self._sleepy, 0.05),
            ):
                yield from self._over(name, title, count / self._seconds, limit, "")

    def _compute(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if not e.get("flops"):
            return
        overrun = e.get("overrun") or 0.0
        self._computations += 1
        self._overrun_s += overrun
        self._paced_s += max(0.0, e["end"] - e["start"] - overrun)
        if self._computations >= ENOUGH_COMPUTATIONS and self._paced_s >= ENOUGH_PACED_S:
            yield from self._over("overrun_time", "computations overran, of all paced time so far",
                                  self._overrun_s / self._paced_s, self._limits.overrun_time, "")

    @staticmethod
    def _over(name: str, title: str, value: float | None, limit: float, unit: str = "s") -> Iterator[tuple[str, str]]:
        if value is not None and math.isfinite(value) and value > limit:
            yield name, f"{title}: {shown(value, unit)} (threshold {shown(limit, unit)})"


def _nothing(event: dict[str, Any]) -> tuple:
    return ()
