"""What the link monitor takes for its own and what for somebody else's, without a network."""

import random
from dataclasses import dataclass, field

import pytest

from testbed.emulation.kernel.netlink import attribute
from testbed.emulation.network import shaping
from testbed.emulation.network.expectations import GRACE_S, Expectations
from testbed.emulation.network.hosts import HostPort, SharedPort
from testbed.emulation.network.link_monitor import LinkMonitor
from testbed.emulation.network.notices import (
    BOTTLENECK_CLASS,
    BUFFER_HANDLE,
    ClassNotice,
    FilterNotice,
    LinkNotice,
    QueueNotice,
    parse,
)
from testbed.measurement.checks import Context
from testbed.measurement.checks_machine import delay_lag, machine, sched_delay, tolerated
from testbed.measurement.events import frame
from testbed.measurement.live_verdict import LiveVerdict
from testbed.measurement.thresholds import Thresholds

OLD, NEW = shaping.shape(20e6, 0.1), shaping.shape(5e6, 0.1)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@dataclass
class Network:
    clock: Clock = field(default_factory=Clock)
    net_namespace: str = "none"

    def __post_init__(self):
        self.hosts = {
            n: HostPort(n, n, f"h{i}-eth0", "10.0.0.1", "02:00:00:00:00:01", i, None, "none")
            for i, n in enumerate(("server", "h1", "h2"))
        }
        self.shared = {"street": SharedPort("street", ("h1",), 0.0, "none", "u1", "d1")}
        self.expected = Expectations(self.clock)
        self.expected.set(dict.fromkeys(("x0", "y0", "x1", "y1", "x2", "y2", "u1", "d1"), OLD))


@pytest.fixture
def watched():
    """(network, monitor, what it found): interface k has index 1000 + its position below."""
    network, found = Network(), []
    monitor = LinkMonitor(network, found.append)
    monitor._by_index = {1000 + i: place for i, place in enumerate(monitor._places.values())}
    return network, monitor, found


def _index(monitor, interface):
    return next(i for i, place in monitor._by_index.items() if place.interface == interface)


def _class(monitor, interface, shape, **changes):
    return ClassNotice(_index(monitor, interface), BOTTLENECK_CLASS, shape.rate_bps, shape.rate_bps, **changes)


def _link(monitor, interface, up=True, carrier=True):
    return LinkNotice(_index(monitor, interface), interface, up, carrier)


# expectations


def test_values_count_until_three_seconds_after_they_were_superseded():
    clock = Clock()
    e = Expectations(clock)
    e.set({"x": 1})
    clock.now += 60
    e.set({"x": 2})
    assert e.allowed("x") == [1, 2]
    clock.now += GRACE_S + 0.1
    assert e.allowed("x") == [2]
    assert e.current("x") == 2
    assert e.allowed("y") == []
    assert e.current("y") is None


# judgements


def test_the_tools_own_changes_are_fine(watched):
    network, monitor, found = watched
    network.expected.set({"y1": NEW})
    monitor._judge(_class(monitor, "y1", NEW))
    monitor._judge(_class(monitor, "y1", OLD))  # the notice of a moment ago
    monitor._judge(QueueNotice(_index(monitor, "y1"), BUFFER_HANDLE, "bfifo", NEW.limit_bytes))
    monitor._judge(QueueNotice(_index(monitor, "y1"), BUFFER_HANDLE, "fq_codel"))
    assert found == []
    network.clock.now += GRACE_S + 1
    monitor._judge(_class(monitor, "y1", OLD))  # ... but not a minute later
    assert [(f.node, f.quantity, f.direction) for f in found] == [("h1", "rate", "down")]


def test_a_wrong_rate_is_found_once_and_again_after_it_was_right(watched):
    _, monitor, found = watched
    for _ in range(3):
        monitor._judge(_class(monitor, "x2", NEW))
    assert len(found) == 1
    assert "h2 uplink: rate set to 5.2" in found[0].text
    assert found[0].set == OLD.rate_bps
    assert found[0].measured == NEW.rate_bps
    monitor._judge(_class(monitor, "x2", OLD))
    monitor._judge(_class(monitor, "x2", NEW))
    assert len(found) == 2


def test_what_was_removed_put_or_changed_beside_it_is_found(watched):
    _, monitor, found = watched
    monitor._judge(_class(monitor, "u1", OLD, gone=True))
    monitor._judge(QueueNotice(_index(monitor, "y1"), BUFFER_HANDLE, "bfifo", 1000))
    monitor._judge(QueueNotice(_index(monitor, "y2"), BUFFER_HANDLE, "bfifo", gone=True))
    monitor._judge(QueueNotice(_index(monitor, "p1"), 0x80010000, "netem"))
    monitor._judge(FilterNotice(_index(monitor, "p2"), gone=True))
    assert [(f.node, f.quantity) for f in found] == [
        ("street", "rate"),
        ("h1", "buffer"),
        ("h2", "queue"),
        ("h1", "queue"),
        ("h2", "filter"),
    ]


def test_links_follow_churn_and_nothing_else(watched):
    network, monitor, found = watched
    network.expected.set({("cut", "h1"): True})
    monitor._judge(_link(monitor, "x1", up=False, carrier=False))
    monitor._judge(_link(monitor, "y1", carrier=False))
    network.clock.now += 60
    network.expected.set({("cut", "h1"): False})
    monitor._judge(_link(monitor, "y1", carrier=False))  # not yet
    monitor._judge(_link(monitor, "x1"))
    monitor._judge(_link(monitor, "y1"))
    assert found == []
    monitor._judge(_link(monitor, "x2", up=False, carrier=False))
    monitor._judge(_link(monitor, "p2", carrier=False))
    assert [f.text for f in found] == [
        "h2 uplink: the access link was taken down (x2 down)",
        "h2: its other end went down (p2)",
    ]
    network.expected.set({("cut", "h2"): True})
    network.clock.now += GRACE_S + 1
    monitor._judge(_link(monitor, "x2"))
    assert "the access link was mended (x2 up)" in found[-1].text


def test_interfaces_of_others_are_not_looked_at(watched):
    _, monitor, found = watched
    monitor._judge(LinkNotice(7, "eth0", False, False))
    assert found == []


# the kernel's messages


def _message(kind: int, body: bytes) -> bytes:
    return (16 + len(body)).to_bytes(4, "little") + kind.to_bytes(2, "little") + bytes(10) + body


def _tc(index: int, handle: int) -> bytes:
    return bytes(4) + index.to_bytes(4, "little") + handle.to_bytes(4, "little") + bytes(8)


def test_messages_are_read_as_the_kernel_writes_them():
    rate = bytes(8) + (2_500_000).to_bytes(4, "little")
    htb = attribute(1, rate + rate + bytes(20))
    data = _message(40, _tc(5, BOTTLENECK_CLASS) + attribute(1, b"htb\0") + attribute(2, htb))
    data += _message(36, _tc(6, BUFFER_HANDLE) + attribute(1, b"bfifo\0") + attribute(2, (4000).to_bytes(4, "little")))
    data += _message(
        16, bytes(4) + (7).to_bytes(4, "little") + (0x10001).to_bytes(4, "little") + bytes(4) + attribute(3, b"x1\0")
    )
    data += _message(24, bytes(12))  # a route: of no interest
    data += _message(45, _tc(8, 0))
    assert list(parse(data)) == [
        ClassNotice(5, BOTTLENECK_CLASS, 20e6, 20e6),
        QueueNotice(6, BUFFER_HANDLE, "bfifo", 4000),
        LinkNotice(7, "x1", True, True),
        FilterNotice(8, True),
    ]
    fast = htb + attribute(6, (10**10).to_bytes(8, "little")) + attribute(7, (10**10).to_bytes(8, "little"))
    (notice,) = parse(_message(40, _tc(5, 1) + attribute(2, fast)))
    assert notice.rate_bps == notice.ceil_bps == 8e10


# the verdict while the run goes on


def texts(live, event):
    return [v.text for v in live.feed(event)]


def test_each_check_speaks_once():
    live = LiveVerdict(Thresholds(), tdf=2.0)
    late = {"event": "link", "node": "h1", "late": 0.04, "t": 1.0}
    assert live.feed(late) == [("a change of h1's link was applied late: 80 ms (threshold 50 ms)", 1.0)]
    assert live.feed(late) == []
    paused = {"event": "host", "cpu": 0.2, "sched_delay": 0.0, "delay_paused": 1, "t": 2.0}
    assert live.feed(paused) == [("the delay line's process was paused: 1 times (threshold 0 times)", 2.0)]
    assert texts(live, {"event": "interference", "node": "h1", "text": "h1 uplink: rate", "t": 3.0}) == [
        "changed behind the tool's back: h1 uplink: rate"
    ]


def test_overruns_wait_until_there_is_enough():
    live = LiveVerdict(Thresholds(), tdf=1.0)
    said = []
    for i in range(60):
        over = 0.0 if i < 5 else 0.1
        said.append(
            live.feed(
                {
                    "event": "compute",
                    "node": "h1",
                    "flops": 1e6,
                    "start": i,
                    "end": i + 1 + over,
                    "overrun": over,
                    "t": i + 1.0,
                }
            )
        )
    assert [bool(s) for s in said] == [False] * 49 + [True] + [False] * 10
    assert said[49] == [("computations overran, of all paced time so far: 9 % (threshold 2 %)", 6.0)]


def host(t, *, cpu=0.2, lag=0.001, delay=0.001):
    return {"event": "host", "node": "testbed", "t": float(t), "cpu": cpu, "delay_lag_p99": lag, "sched_delay": delay}


def test_bad_seconds_that_a_run_may_have_are_not_announced():
    live = LiveVerdict(Thresholds(), tdf=1.0)
    said = [live.feed(host(t, lag=0.02 if t in (18, 30, 40) else 0.001)) for t in range(1, 60)]
    assert [t for t, s in enumerate(said, 1) if s] == [40]  # two of a minute may be bad, the third is one too many
    assert said[39] == [
        ("the delay line lagged in 3 of 40 s so far; in the whole run, of 60 s at least, 2 s may be so", 18.0)
    ]
    busy = LiveVerdict(Thresholds(), tdf=1.0)
    assert [bool(busy.feed(host(t, cpu=1.0))) for t in range(14)] == [False] * 12 + [True, False]
    longer = LiveVerdict(Thresholds(), tdf=1.0, expected_s=599.5)
    assert [bool(longer.feed(host(t, delay=0.1))) for t in range(31)] == [False] * 29 + [True, False]
    unreported = LiveVerdict(Thresholds(), tdf=1.0)
    assert not any(unreported.feed(host(t, lag=None)) for t in range(100))


@pytest.mark.parametrize("field", ["cpu", "lag", "delay"])
@pytest.mark.parametrize("seconds", [60, 61, 100, 101, 400])
def test_what_is_announced_is_what_the_verdict_says_with_its_first_moment(seconds, field):
    """At every number of bad seconds around the threshold, wherever in the run they are."""
    name = {"cpu": "cpu", "lag": "delay_lag_p99", "delay": "sched_delay"}[field]
    most = seconds // 5 if field == "cpu" else tolerated(seconds)
    for bad in range(max(1, most - 1), most + 3):
        chosen = random.Random(bad).sample(range(seconds), bad)
        events = [host(t, **({field: 1.0 if field == "cpu" else 0.05} if t in chosen else {})) for t in range(seconds)]
        live = LiveVerdict(Thresholds(), tdf=1.0, expected_s=seconds)
        said = [v.at_s for e in events for v in live.feed(e)]
        context = Context(frame(events), Thresholds(), 1.0)
        checks = [c for made in (delay_lag, sched_delay, machine) for c in made(context) if c.name == name]
        assert said == [c.at_s for c in checks if not c.ok]
        assert said == ([min(chosen)] if bad > most else [])


def test_a_good_run_says_nothing():
    live = LiveVerdict(Thresholds(), tdf=1.0)
    for _ in range(60):
        assert not live.feed(
            {
                "event": "host",
                "cpu": 0.4,
                "sched_delay": 0.001,
                "delay_lag_p99": 0.001,
                "t": 1.0,
                "delay_lag_max": 0.01,
                "delay_age": 0.1,
                "delay_paused": 0,
                "delay_overflowed": 0,
                "memory_bytes": 1e9,
                "memory_available_bytes": 1e9,
                "memory_stall": None,
                "replay_overdue": 0.0,
                "churn_overdue": 0.0,
            }
        )
        assert not live.feed(
            {"event": "compute", "node": "h1", "flops": 1e6, "start": 0.0, "end": 1.0, "overrun": 0.0, "t": 1.0}
        )
        assert not live.feed(
            {"event": "compute", "node": "h1", "flops": 0, "start": 0.0, "end": 1.0, "overrun": 1.0, "t": 1.0}
        )
        assert not live.feed({"event": "step", "node": "server", "t": 1.0})
