"""How probes group homes and read their flows; the measurement itself is in tests/emulation."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace

import pytest

from testbed.cluster import Link, LinkState, SharedLink, Topology
from testbed.emulation.probing import probes
from testbed.emulation.probing.light_traffic import Flow, FlowSpec

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


def measured(monkeypatch, fraction):
    """Run probe_links on links that reach fraction(home, group) of the expected: groups, fractions found."""
    groups = []

    def fake(hosts, expected, rates, direction, seconds, tdf, tcp_tdf):
        if direction == "down":
            groups.append(list(rates))
        return {
            h: probes.ProbeResult(h, f"rate_{direction}", bps, bps * fraction(h, rates), 1.0)
            for h, bps in rates.items()
        }

    monkeypatch.setattr(probes, "_probe_rates", fake)
    monkeypatch.setattr(probes, "_probe_rtts", lambda *_: [])
    network = SimpleNamespace(hosts={}, topology=topology())
    states = {h: LinkState(down_bps=20e6, up_bps=1e6, rtt_s=0.01) for h in "abcd"}
    results = probes.probe_links(network, states, server=SERVER)
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
    monkeypatch.setattr(probes, "saturate", lambda flows, lengths, settle_s: settled.append(settle_s) or {})
    monkeypatch.setattr(probes, "_probe_rtts", lambda *_: [])
    host = SimpleNamespace(netns_path="", ip="")
    network = SimpleNamespace(hosts=dict.fromkeys([*"abc", "server"], host), topology=topology())
    states = {"a": LinkState(1e6, 1e6, 0.01), "b": LinkState(1e6, 1e6, 0.01, 0.0, 0.01), "c": LinkState(1e6, 1e6, 0.2)}
    probes.probe_links(network, states, server=SERVER, tdf=10)
    assert sent[0][0] == {"a": True, "b": True, "c": True}
    assert settled[0] == pytest.approx(0.5 + 2.0)  # the first packet of c comes after a second
    probes.probe_links(network, states, server=SERVER, tdf=10, tcp_tdf=float("inf"))
    assert sent[2][0] == {"a": False, "b": True, "c": False}
    assert settled[2] == pytest.approx(0.5 * 10 + 12 * 2.0)
