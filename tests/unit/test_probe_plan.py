"""How probes group homes and read their flows; the measurement itself is in tests/emulation."""

from __future__ import annotations

import contextlib
import math
import socket
from types import SimpleNamespace

import pytest

from testbed.cluster import Link, LinkState, SharedLink, Topology
from testbed.emulation.network.counters import QueueCounters
from testbed.emulation.probing import probes
from testbed.emulation.probing.light_traffic import Flow, FlowSpec
from testbed.emulation.probing.queue_watch import QueueWatch
from testbed.scenario.link_model import WIRE_PER_GOODPUT
from testbed.scenario.network import NetworkSettings

SERVER = LinkState(1e9, 1e9, 0.0)


def topology(*shared: SharedLink) -> Topology:
    return Topology(("a", "b", "c", "d"), Link(1e9, 1e9), shared)


def path(direction: str = "down", server: LinkState = SERVER, tdf: float = 1.0, shared=()) -> probes._Path:
    return probes._Path(topology(*shared), server, direction, tdf)


def test_homes_are_measured_together_while_they_leave_room_on_the_servers_link():
    server = LinkState(down_bps=1e9, up_bps=100e6, rtt_s=0)
    groups = list(path("down", server).groups({"a": 30e6, "b": 50e6, "c": 1e6, "d": 200e6}))
    assert groups == [["a", "b"], ["c"], ["d"]]
    assert len(list(path("up", server).groups({"a": 30e6, "b": 50e6, "c": 1e6, "d": 10e6}))) == 1


def test_no_more_is_sent_at_once_than_the_machine_carries():
    rates = dict.fromkeys("abcd", probes.MACHINE_BPS / 2)
    assert list(path(server=LinkState(1e12, 1e12, 0)).groups(rates)) == [["a", "b"], ["c", "d"]]


def test_a_lighter_load_makes_smaller_groups():
    rates = dict.fromkeys("abcd", 10e6)
    assert len(list(path().groups(rates))) == 1
    assert list(path().groups(rates, load=0.2)) == [["a", "b"], ["c", "d"]]


def measured(monkeypatch, fraction, **options):
    """Run probe_links on links that reach fraction(home, group) of the expected: groups, fractions found."""
    groups = []

    def fake(network, expected, rates, direction, seconds, tdf, tcp_tdf, pushed):
        if direction == "down":
            groups.append([f"{home} by datagrams" if home in pushed else home for home in rates])
        return {
            h: probes.ProbeResult(h, f"rate_{direction}", bps, bps * fraction(h, rates), 1.0)
            for h, bps in rates.items()
        }

    monkeypatch.setattr(probes, "_probe_rates", fake)
    monkeypatch.setattr(probes, "_probe_rtts", lambda *_: [])
    network = SimpleNamespace(hosts={}, topology=topology())
    states = {h: LinkState(down_bps=20e6, up_bps=1e6, rtt_s=0.01) for h in "abcd"}
    results = probes.probe_links(network, states, server=SERVER, **options)
    return groups, {r.home: r.measured / r.set for r in results if r.quantity == "rate_down"}


@pytest.mark.parametrize("fraction", [0.7, 1.1])
def test_homes_that_were_off_in_company_are_measured_again_with_less(monkeypatch, fraction):
    groups, found = measured(monkeypatch, lambda home, group: 1.0 if len(group) < 4 or home == "a" else fraction)
    assert groups == [["a", "b", "c", "d"], ["b"], ["c"], ["d"]]
    assert set(found.values()) == {1.0}


def test_a_link_that_is_slow_even_alone_keeps_its_number(monkeypatch):
    groups, found = measured(monkeypatch, lambda home, group: 0.9 if home == "c" else 1.0)
    assert groups == [["a", "b", "c", "d"], ["c"]]
    assert found["c"] == pytest.approx(0.9)


def test_a_dead_link_is_not_tried_again(monkeypatch):
    groups, found = measured(monkeypatch, lambda home, group: 0.0 if home == "c" else 1.0)
    assert groups == [["a", "b", "c", "d"]]
    assert found["c"] == 0.0


def test_a_link_that_tcp_did_not_fill_is_tried_again_with_datagrams(monkeypatch):
    """300 Mbit/s at 200 ms read 279, and the link was blamed."""
    missed = []

    def fraction(home, group):
        if home != "c" or missed:
            return 1.0
        missed.append(home)
        return float("nan")

    groups, found = measured(monkeypatch, fraction)
    assert groups == [["a", "b", "c", "d"], ["c by datagrams"]]
    assert found["c"] == 1.0


def test_a_link_that_nothing_fills_is_tried_to_the_end_and_not_judged(monkeypatch):
    groups, found = measured(monkeypatch, lambda home, group: float("nan") if home == "c" else 1.0)
    assert groups == [["a", "b", "c", "d"], ["c by datagrams"]]
    assert math.isnan(found["c"])


def test_where_it_is_tcp_that_is_asked_for_nothing_else_is_tried(monkeypatch):
    groups, found = measured(monkeypatch, lambda h, _: float("nan") if h == "c" else 1.0, tcp_tdf=math.inf)
    assert groups == [["a", "b", "c", "d"], ["c"]]
    assert math.isnan(found["c"])


def test_homes_behind_a_shared_link_leave_room_on_it():
    east = SharedLink("east", ("a", "c"), uplink_bps=10e6, downlink_bps=100e6)
    rates = {"a": 50e6, "b": 50e6, "c": 40e6, "d": 50e6}
    assert list(path(shared=[east]).groups(rates)) == [["a", "b"], ["c", "d"]]


def test_a_home_is_expected_to_reach_the_least_rate_on_its_path():
    server = LinkState(down_bps=80e6, up_bps=60e6, rtt_s=0)
    east = SharedLink("east", ("a",), uplink_bps=2e6, downlink_bps=30e6)  # as emulated: real bit/s
    state = LinkState(down_bps=100e6, up_bps=40e6, rtt_s=0)
    assert path("down", server, shared=[east]).expected_bps("a", state) == 30e6
    assert path("up", server, shared=[east]).expected_bps("a", state) == 2e6
    assert path("down", server).expected_bps("b", state) == 60e6
    assert path("up", server, tdf=10).expected_bps("b", state) == 4e6


@pytest.fixture
def flow():
    near, far = socket.socketpair()
    with near, far:
        yield Flow(FlowSpec("a", "", "", "", rate_bps=8e6), near, far, payload=1000)


def arrivals(flow: Flow, *marks: tuple[float, int]) -> None:
    flow.times_s, flow.received = [t for t, _ in marks], [n for _, n in marks]


def test_goodput_is_taken_between_arrivals_inside_the_window(flow):
    arrivals(flow, *[(i / 1000, i) for i in range(1001)])  # 1000 packets of 1000 bytes a second
    assert flow.goodput_bps(0.2005, 0.7005) == pytest.approx(8e6)
    assert flow.goodput_bps(5, 6) == flow.goodput_bps(0.5, 0.5) == 0.0


def test_a_late_reader_does_not_change_the_goodput(flow):
    arrivals(flow, *[(i / 1000, i) for i in range(300)], *[(0.6 + i / 1000, 600 + i) for i in range(300)])
    assert flow.goodput_bps(0.1, 0.8) == pytest.approx(8e6)
    assert flow.goodput_bps(0.1, 0.5) == pytest.approx(8e6)


def test_a_burst_at_the_start_is_not_a_steady_state(flow):
    arrivals(flow, *[(i / 10_000, i) for i in range(10)])
    assert not flow._has_settled(0.001)
    arrivals(flow, *[(i / 1000, i) for i in range(300)])
    assert flow._has_settled(0.299)
    arrivals(flow, *[(i / 900, i) for i in range(300)])
    assert not flow._has_settled(0.299)


def test_tcp_is_not_waited_for_where_packets_are_lost_or_time_is_much_dilated(monkeypatch):
    sent = []

    @contextlib.contextmanager
    def opened(specs, timeout_s):
        sent.append(({spec.name: spec.datagrams for spec in specs}, timeout_s))
        yield []

    settled = []
    monkeypatch.setattr(probes, "open_flows", opened)
    monkeypatch.setattr(probes, "saturate", lambda flows, lengths, settle_s, watch: settled.append(settle_s) or {})
    monkeypatch.setattr(probes, "_probe_rtts", lambda *_: [])
    host = SimpleNamespace(netns_path="", ip="")
    network = SimpleNamespace(
        hosts=dict.fromkeys([*"abc", "server"], host),
        topology=topology(),
        settings=NetworkSettings(),
        bottlenecks=lambda home, direction: [],
        queue=None,
    )
    states = {"a": LinkState(1e6, 1e6, 0.01), "b": LinkState(1e6, 1e6, 0.01, 0.0, 0.01), "c": LinkState(1e6, 1e6, 0.2)}
    probes.probe_links(network, states, server=SERVER, tdf=10)
    assert sent[0][0] == {"a": True, "b": True, "c": True}
    assert settled[0] == pytest.approx(0.5 + 2.0)  # the first packet of c comes after a second
    probes.probe_links(network, states, server=SERVER, tdf=10, tcp_tdf=math.inf)
    assert sent[2][0] == {"a": False, "b": True, "c": False}
    assert settled[2] == pytest.approx(0.5 * 10 + 12 * 2.0)


def test_on_a_long_link_slow_start_is_not_waited_for(monkeypatch):
    asked = []

    @contextlib.contextmanager
    def opened(specs, timeout_s):
        asked.append({spec.name: spec.datagrams for spec in specs})
        yield []

    monkeypatch.setattr(probes, "open_flows", opened)
    monkeypatch.setattr(probes, "saturate", lambda *_: {})
    monkeypatch.setattr(probes, "_probe_rtts", lambda *_: [])
    network = SimpleNamespace(
        hosts=dict.fromkeys([*"ab", "server"], SimpleNamespace(netns_path="", ip="")),
        topology=topology(),
        settings=NetworkSettings(),
        bottlenecks=lambda home, direction: [],
        queue=None,
    )
    states = {"a": LinkState(300e6, 1e6, 0.2), "b": LinkState(256e6, 1e6, 0.02)}
    probes.probe_links(network, states, server=SERVER)
    assert {name: by for group in asked[:2] for name, by in group.items()} == {"a": True, "b": False}
    assert asked[2] == {"a": False, "b": False}  # their uplinks are slow


def looks(*samples: tuple[float, int, int]) -> QueueWatch:
    watch = QueueWatch({"q": lambda: QueueCounters()}, buffer_s=0.1)
    for at_s, served, waiting in samples:
        watch.saw("q", at_s, QueueCounters(bytes=served, backlog_bytes=waiting))
    return watch


def full(count: int, bps: float, waiting: int = 10**6, start_s: float = 0.0) -> list[tuple[float, int, int]]:
    step = 0.01
    return [(start_s + i * step, int(bps / 8 * WIRE_PER_GOODPUT * i * step), waiting) for i in range(count)]


def test_a_full_queue_tells_what_its_link_lets_through_whoever_fills_it():
    assert looks(*full(101, 282e6)).goodput_bps(["q"], 0, 1) == pytest.approx(282e6, rel=1e-3)


def test_a_queue_that_may_have_been_empty_in_between_tells_nothing():
    assert looks(*full(101, 282e6, waiting=1000)).goodput_bps(["q"], 0, 1) is None
    assert looks(*full(101, 0.0)).goodput_bps(["q"], 0, 1) is None
    assert looks().goodput_bps(["q"], 0, 1) is None


def test_a_slow_link_is_busy_while_its_packets_wait_one_by_one():
    few = looks(*((0.01 * i, 1514 * (i // 8), 9000) for i in range(101)))
    assert few.goodput_bps(["q"], 0, 1) is None  # a rate of twelve packets would be 8 % off
    assert few.busy_s(["q"], 0, 1) == pytest.approx(1.0)
    assert looks(*((0.01 * i, 0, 0) for i in range(101))).busy_s(["q"], 0, 1) == 0


def test_a_moment_in_which_the_machine_stood_still_is_not_the_links_fault():
    """256 Mbit/s read 5.14 % less for 50 ms of one second."""
    before, after = full(50, 256e6), full(50, 256e6, start_s=0.55)
    after = [(t, served + before[-1][1], waiting) for t, served, waiting in after]
    assert looks(*before, *after).goodput_bps(["q"], 0, 1.05) == pytest.approx(256e6, rel=1e-3)


def test_of_several_queues_on_the_way_the_busy_one_counts():
    watch = QueueWatch({"own": QueueCounters, "server": QueueCounters}, buffer_s=0.1)
    for at_s, served, waiting in full(101, 50e6):
        watch.saw("own", at_s, QueueCounters(bytes=served, backlog_bytes=0))
        watch.saw("server", at_s, QueueCounters(bytes=2 * served, backlog_bytes=waiting))
    assert watch.goodput_bps(["own", "server"], 0, 1) == pytest.approx(100e6, rel=1e-3)
