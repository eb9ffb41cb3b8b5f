"""The verdict while a run goes on: says at once, and once for each check, when a threshold is passed.

`fidelity.judge` has the last word, from all events; this sees them one by one and keeps only sums. Checks of
single values (a late change, a paused delay line) are final. So are those of seconds (a saturated machine, a lagging
delay line), unless the run takes longer than expected: they speak when more seconds were bad than the whole run may
have. Overruns may still recover, and wait until there is enough to judge.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from testbed.measurement.checks import shown
from testbed.measurement.checks_machine import tolerated
from testbed.measurement.thresholds import Thresholds

SHORTEST_RUN_S = 60  # that bad seconds are held against, where a shorter one is expected or none
ENOUGH_COMPUTATIONS = 50
ENOUGH_PACED_S = 20.0  # emulated; the first computations, on cold caches, are the slowest


class Violation(NamedTuple):
    """text: what is wrong. at_s: emulated time of its first sign, as the verdict will state it."""

    text: str
    at_s: float


class LiveVerdict:
    """Feed it every event; not thread-safe.

    expected_s: real seconds that the run is expected to take, if that is known.
    """

    def __init__(self, limits: Thresholds, tdf: float, expected_s: float | None = None):
        self._limits, self._tdf = limits, tdf
        self._expected = max(SHORTEST_RUN_S, math.ceil(expected_s or 0))
        self._said: set[str] = set()
        self._seconds: Counter[str] = Counter()  # by check: in which there was something to judge …
        self._bad: Counter[str] = Counter()  # … and which were bad
        self._first: dict[str, float] = {}  # when a check that takes more than one event first saw something bad
        self._paced_s = self._overrun_s = 0.0
        self._computations = 0

    def feed(self, event: dict[str, Any]) -> list[Violation]:
        """The checks that fail for the first time with this event."""
        kind, found = event.get("event"), []
        judges = {
            "host": self._host,
            "compute": self._compute,
            "link": self._link,
            "churn": self._churn,
            "interference": self._interference,
        }
        for name, text in judges.get(kind, _nothing)(event):
            if name not in self._said:
                self._said.add(name)
                found.append(Violation(text, self._first.get(name, event["t"])))
        return found

    def _link(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        late_s = (e.get("late") or 0.0) * self._tdf
        yield from self._over(
            "replay_late", f"a change of {e['node']}'s link was applied late", late_s, self._limits.replay_late_s
        )

    def _churn(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        late_s = (e.get("late") or 0.0) * self._tdf
        yield from self._over("churn_late", f"{e['node']} was toggled late", late_s, self._limits.churn_late_s)

    def _interference(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if self._limits.interference < 1:
            yield f"interference {e.get('text')}", f"changed behind the tool's back: {e.get('text')}"

    def _host(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        limits = self._limits
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
            yield from self._over(
                "memory", "memory is in use", e["memory_bytes"] / total, 1 - limits.memory_available, ""
            )
        for field, title, limit in (
            ("cpu", "the CPU was saturated", limits.cpu_busy),
            ("delay_lag_p99", "the delay line lagged", limits.delay_lag_p99_s),
            ("sched_delay", "wake-ups came late", limits.sched_delay_s),
        ):
            if (value := e.get(field)) is None:
                continue
            self._seconds[field] += 1
            if value > limit:
                self._bad[field] += 1
                self._first.setdefault(field, e["t"])
            run = max(self._expected, self._seconds[field])
            most = math.floor(limits.cpu_saturated_time * run) if field == "cpu" else tolerated(run)
            if self._bad[field] > most:
                yield (
                    field,
                    (
                        f"{title} in {self._bad[field]} of {self._seconds[field]} s so far; in the whole run, of "
                        f"{run} s at least, {most} s may be so"
                    ),
                )

    def _compute(self, e: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if not e.get("flops"):
            return
        overrun = e.get("overrun") or 0.0
        self._computations += 1
        self._overrun_s += overrun
        paced_s = max(0.0, e["end"] - e["start"] - overrun)
        self._paced_s += paced_s
        if overrun > self._limits.overrun_time * paced_s:
            self._first.setdefault("overrun_time", e["t"])
        if self._computations >= ENOUGH_COMPUTATIONS and self._paced_s >= ENOUGH_PACED_S:
            yield from self._over(
                "overrun_time",
                "computations overran, of all paced time so far",
                self._overrun_s / self._paced_s,
                self._limits.overrun_time,
                "",
            )

    @staticmethod
    def _over(name: str, title: str, value: float | None, limit: float, unit: str = "s") -> Iterator[tuple[str, str]]:
        if value is not None and math.isfinite(value) and value > limit:
            yield name, f"{title}: {shown(value, unit)} (threshold {shown(limit, unit)})"


def _nothing(event: dict[str, Any]) -> tuple:
    return ()
