"""Watches the machine while a run goes on: a `host` event a second, in real seconds and fractions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.threads import StoppableThread

_PROC = Path("/proc")
_NAP_S = 0.05  # the thread wakes this often to see how late it is woken


def cpu_times(proc: Path = _PROC) -> tuple[float, float, float]:
    """Total, idle and stolen CPU time of all cores since boot, in ticks (proc(5), /proc/stat)."""
    ticks = [float(v) for v in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = (ticks + [0.0] * 8)[:8]
    return user + nice + system + idle + iowait + irq + softirq + steal, idle + iowait, steal


def memory(proc: Path = _PROC) -> tuple[float, float]:
    """Memory in use and memory still available [bytes] (proc(5), /proc/meminfo)."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    found = {words[0].rstrip(":"): float(words[1]) * 1024 for words in lines if len(words) > 1}
    available = found.get("MemAvailable", found.get("MemFree", 0.0))
    return found["MemTotal"] - available, available


def stalled(resource: str, line: str, proc: Path = _PROC) -> float | None:
    """Fraction of the last 10 s in which processes waited for `resource` (pressure stall information).

    Args:
        resource: 'cpu', 'memory' or 'io'.
        line: 'some' (at least one process waited) or 'full' (all did).

    Returns:
        None where the kernel does not say.
    """
    try:
        for text in (proc / "pressure" / resource).read_text().splitlines():
            kind, average = text.split()[:2]
            if kind == line:
                return float(average.removeprefix("avg10=")) / 100
    except (OSError, ValueError):
        pass
    return None


class HostMonitor:
    """A thread that samples the machine until stopped.

    Args:
        on_event: gets each event (a dict, docs/events.md), in the monitor's thread.
        now: emulated seconds since the experiment's start, which stamp the events.
        delay_stats: the delay backend's stats(), if it has any: an object with lag_p99_s, lag_max_s,
        overflowed (a
            count since its start), age_s and cpu_s; or None where nothing can be measured.
        interval_s: real seconds between events.
        more: further fields of each event (docs/events.md), as the engine knows them at that moment.
    """

    def __init__(
        self,
        on_event: Callable[[dict[str, Any]], None],
        now: Callable[[], float],
        delay_stats: Callable[[], Any] | None = None,
        interval_s: float = 1.0,
        more: Callable[[], dict[str, Any]] | None = None,
    ):
        self._more = more
        self._on_event, self._now, self._delay_stats = on_event, now, delay_stats
        self._interval_s = interval_s
        self._thread = StoppableThread(self._run, "host-monitor")
        self._overflowed = self._delay_cpu = 0.0
        self._pauses = 0

    def start(self) -> HostMonitor:
        self._thread.start()
        return self

    def stop(self) -> None:
        """No event comes after this returns. Idempotent."""
        self._thread.stop()

    def __enter__(self) -> HostMonitor:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        before = cpu_times()
        while not self._thread.stopped:
            delay = self._nap_through(self._interval_s)
            if delay is None:
                return
            after = cpu_times()
            try:
                self._on_event(self._sample(before, after, delay))
            except TestbedError:  # events can't be written any more: the engine hears of it by its own appends
                return
            before = after

    def _nap_through(self, seconds: float) -> float | None:
        """Sleep that long in short naps; how late the worst wake-up was [s], or None when asked to stop."""
        end, worst = time.monotonic() + seconds, 0.0
        while (left := end - time.monotonic()) > 0:
            nap = min(_NAP_S, left)
            began = time.monotonic()
            if self._thread.wait(nap):
                return None
            worst = max(worst, time.monotonic() - began - nap)
        return worst

    def _sample(self, before: tuple, after: tuple, delay: float) -> dict[str, Any]:
        total, idle, steal = (b - a for a, b in zip(before, after))
        used, available = memory()
        event = {
            "t": self._now(),
            "node": "testbed",
            "event": "host",
            "cpu": 1 - idle / total if total > 0 else 0.0,
            "steal": steal / total if total > 0 else 0.0,
            "load": os.getloadavg()[0],
            "memory_bytes": used,
            "memory_available_bytes": available,
            "memory_stall": stalled("memory", "full"),
            "cpu_stall": stalled("cpu", "some"),
            "sched_delay": delay,
        }
        try:
            stats = self._delay_stats() if self._delay_stats else None
        except Exception as error:  # a fault of the delay line must not blind the monitor; say it and go on
            self._delay_stats, stats = None, None
            text = f"the delay line's counters can't be read any more: {error}"
            self._on_event({"t": self._now(), "node": "testbed", "event": "warning", "text": text})
        if stats is not None:
            event["delay_lag_p99"] = stats.lag_p99_s
            event["delay_lag_max"] = stats.lag_max_s
            event["delay_overflowed"] = stats.overflowed - self._overflowed
            event["delay_age"] = stats.age_s
            event["delay_cpu"] = (stats.cpu_s - self._delay_cpu) / self._interval_s
            self._overflowed, self._delay_cpu = stats.overflowed, stats.cpu_s
            pauses = getattr(stats, "pauses", None)
            if pauses is not None:
                event["delay_paused"] = pauses - self._pauses
                self._pauses = pauses
        if self._more is not None:
            event |= self._more()
        return event
