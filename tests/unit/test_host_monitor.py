import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.measurement.host_monitor import HostMonitor, cpu_times, memory, stalled


@dataclass
class Stats:
    lag_p99_s: float = 0.001
    lag_max_s: float = 0.004
    overflowed: int = 0
    age_s: float = 0.2
    cpu_s: float = 0.0


def _collect(count, delay_stats=None, on_event=None):
    events = []
    monitor = HostMonitor(on_event or events.append, lambda: 12.5, delay_stats, interval_s=0.06)
    with monitor:
        deadline = time.monotonic() + 10
        while len(events) < count and time.monotonic() < deadline:
            time.sleep(0.01)
    return events


def test_events_of_this_machine():
    event = _collect(2)[-1]
    assert event["t"] == 12.5
    assert (event["node"], event["event"]) == ("testbed", "host")
    assert 0 <= event["cpu"] <= 1
    assert event["memory_bytes"] > 1e6
    assert event["memory_available_bytes"] > 1e6
    assert event["sched_delay"] >= 0
    assert "delay_lag_p99" not in event


def test_the_delay_lines_counters_become_differences():
    stats = Stats()

    def read():
        stats.overflowed += 3
        return stats

    events = _collect(3, read)
    assert [e["delay_overflowed"] for e in events[:3]] == [3, 3, 3]
    assert events[0]["delay_lag_max"] == 0.004


def test_counters_that_can_not_be_read_are_warned_of_once():
    def broken():
        raise RuntimeError("the daemon is gone")

    events = _collect(4, broken)
    assert [e["event"] for e in events].count("warning") == 1
    assert "the daemon is gone" in next(e["text"] for e in events if e["event"] == "warning")
    assert events[-1]["event"] == "host"


def test_it_ends_quietly_when_events_can_not_be_written():
    def refuse(event):
        raise TestbedError("disk full")

    monitor = HostMonitor(refuse, lambda: 0.0, interval_s=0.01)
    with monitor:
        time.sleep(0.05)
    monitor.stop()


def test_stop_without_start():
    HostMonitor(print, lambda: 0.0).stop()


def _proc(tmp_path: Path, **files):
    for name, content in files.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(content)
    return tmp_path


def test_proc_is_read_as_documented(tmp_path):
    proc = _proc(
        tmp_path,
        stat="cpu  100 5 50 800 20 0 5 20 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
        meminfo="MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n",
        pressure__memory="some avg10=5.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=2.50 avg60=0\n",
    )
    assert cpu_times(proc) == (1000, 820, 20)  # guest time (7) is in user time already
    assert memory(proc) == (600 * 1024, 400 * 1024)
    assert stalled("memory", "full", proc) == pytest.approx(0.025)
    assert stalled("cpu", "some", proc) is None
