"""What the link monitor takes for its own and what for somebody else's, without a network."""

from dataclasses import dataclass, field

import pytest

from testbed.emulation import shaping
from testbed.emulation.expectations import GRACE_S, Expectations
from testbed.emulation.hosts import HostPort, SharedPort
from testbed.emulation.link_monitor import LinkMonitor
from testbed.emulation.netlink import attribute
from testbed.emulation.notices import (
    BOTTLENECK_CLASS,
    BUFFER_HANDLE,
    ClassNotice,
    FilterNotice,
    LinkNotice,
    QueueNotice,
    parse,
)
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
        self.hosts = {n: HostPort(n, n, f"h{i}-eth0", "10.0.0.1", "02:00:00:00:00:01", i, None, "none")
                      for i, n in enumerate(("server", "h1", "h2"))}
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
        ("street", "rate"), ("h1", "buffer"), ("h2", "queue"), ("h1", "queue"), ("h2", "filter")]


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
        "h2 uplink: the access link was taken down (x2 down)", "h2: its other end went down (p2)"]
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
    data += _message(16, bytes(4) + (7).to_bytes(4, "little") + (0x10001).to_bytes(4, "little") + bytes(4)
                     + attribute(3, b"x1\0"))
    data += _message(24, bytes(12))  # a route: of no interest
    data += _message(45, _tc(8, 0))
    assert list(parse(data)) == [
        ClassNotice(5, BOTTLENECK_CLASS, 20e6, 20e6), QueueNotice(6, BUFFER_HANDLE, "bfifo", 4000),
        LinkNotice(7, "x1", True, True), FilterNotice(8, True)]
    fast = htb + attribute(6, (10**10).to_bytes(8, "little")) + attribute(7, (10**10).to_bytes(8, "little"))
    (notice,) = parse(_message(40, _tc(5, 1) + attribute(2, fast)))
    assert notice.rate_bps == notice.ceil_bps == 8e10


# the verdict while the run goes on


def test_each_check_speaks_once():
    live = LiveVerdict(Thresholds(), tdf=2.0)
    late = {"event": "link", "node": "h1", "late": 0.04, "t": 1.0}
    assert live.feed(late) == ["a change of h1's link was applied late: 80 ms (threshold 50 ms)"]
    assert live.feed(late) == []
    paused = {"event": "host", "cpu": 0.2, "sched_delay": 0.0, "delay_paused": 1, "t": 2.0}
    assert live.feed(paused) == ["the delay line's process was paused: 1 times (threshold 0 times)"]
    assert live.feed({"event": "interference", "node": "h1", "text": "h1 uplink: rate"}) == [
        "changed behind the tool's back: h1 uplink: rate"]
    assert len(live.reasons) == 3


def test_fractions_wait_until_there_is_enough():
    live = LiveVerdict(Thresholds(), tdf=1.0)
    busy = {"event": "host", "cpu": 1.0, "sched_delay": 0.0, "t": 1.0}
    assert [bool(live.feed(busy)) for _ in range(10)] == [False] * 9 + [True]
    slow = {"event": "compute", "node": "h1", "flops": 1e6, "start": 0.0, "end": 1.1, "overrun": 0.1}
    said = [live.feed(slow) for _ in range(60)]
    assert [bool(s) for s in said] == [False] * 49 + [True] + [False] * 10
    assert "computations overran, of all paced time so far: 10 % (threshold 2 %)" in said[49]


def test_a_good_run_says_nothing():
    live = LiveVerdict(Thresholds(), tdf=1.0)
    for _ in range(60):
        assert not live.feed({"event": "host", "cpu": 0.4, "sched_delay": 0.001, "delay_lag_p99": 0.001, "t": 1.0,
                              "delay_lag_max": 0.01, "delay_age": 0.1, "delay_paused": 0, "delay_overflowed": 0,
                              "memory_bytes": 1e9, "memory_available_bytes": 1e9, "memory_stall": None,
                              "replay_overdue": 0.0, "churn_overdue": 0.0})
        assert not live.feed({"event": "compute", "node": "h1", "flops": 1e6, "start": 0.0, "end": 1.0, "overrun": 0.0})
        assert not live.feed({"event": "compute", "node": "h1", "flops": 0, "start": 0.0, "end": 1.0, "overrun": 1.0})
        assert not live.feed({"event": "step", "node": "server"})
