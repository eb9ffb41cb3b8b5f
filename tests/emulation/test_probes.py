"""Probes on a real network: they find what was set, and what was not."""

from __future__ import annotations

import dataclasses
import math
import subprocess
from collections.abc import Callable, Iterator

import pytest
from steady import measured

from testbed.cluster import Link, LinkState, SharedLink
from testbed.cluster.model import SERVER
from testbed.emulation.delay.nfqueue import NfqueueBackend
from testbed.emulation.probing.probes import ProbeResult, probe_links
from testbed.scenario.link_model import access_links, server_delay

pytestmark = [pytest.mark.emulation, measured]

CORE = Link(1e9, 1e9, 0.001, 0.001)
CORE_STATE = LinkState(1e9, 1e9, 0.002)


@pytest.fixture
def shaped(build, capabilities) -> Iterator[Callable]:
    """shaped(states, shared=(), tdf=1, server_mbps=1000): a network with these links and their delays."""
    if not capabilities.delay["nfqueue"].available:
        pytest.skip(f"NFQUEUE: {capabilities.delay['nfqueue'].how}")
    backends = []

    def start(
        states: dict[str, LinkState], shared: tuple[SharedLink, ...] = (), tdf: float = 1.0, server_mbps: float = 1000
    ):
        access = access_links(states, CORE, shared, tdf)
        dilated = tuple(
            dataclasses.replace(
                s, uplink_bps=s.uplink_bps / tdf, downlink_bps=s.downlink_bps / tdf, delay_s=s.delay_s * tdf
            )
            for s in shared
        )
        network = build(
            tuple(states),
            links={h: a.link for h, a in access.items()},
            shared=dilated,
            server_mbps=server_mbps / tdf,
            buffer_s=0.1 * tdf,
        )
        backend = NfqueueBackend()
        backends.append(backend)
        delays = {h: a.delay for h, a in access.items()} | {SERVER: server_delay(CORE, tdf)}
        backend.start(network.delay_ports(), delays, network.shared_ports(), 1)
        return network

    yield start
    for backend in backends:
        backend.stop()


def by_quantity(results: list[ProbeResult]) -> dict[tuple[str, str], ProbeResult]:
    found = {(r.home, r.quantity): r for r in results}
    assert len(found) == len(results)
    return found


def test_every_link_is_found_as_set(shaped):
    states = {
        "cable": LinkState(60e6, 6e6, 0.022),
        "dsl": LinkState(12e6, 1e6, 0.045, jitter_s=0.001),
        "radio": LinkState(25e6, 4e6, 0.060, jitter_s=0.002, loss=0.01),
    }
    network = shaped(states)
    before = network.counters()
    found = by_quantity(probe_links(network, states, server=CORE_STATE, seconds=0.6))
    assert set(found) == {(home, q) for home in states for q in ("rtt", "rate_down", "rate_up")}
    for home, state in states.items():
        down, up, rtt = (found[home, q] for q in ("rate_down", "rate_up", "rtt"))
        assert (down.set, up.set, rtt.set) == (state.down_bps, state.up_bps, state.rtt_s)
        tolerance = 0.05 if state.loss else 0.02
        assert down.measured == pytest.approx(down.set, rel=tolerance)
        assert up.measured == pytest.approx(up.set, rel=tolerance)
        assert rtt.measured == pytest.approx(rtt.set, abs=0.0015 + state.jitter_s)
        assert 10 <= rtt.count <= 16
    assert network.counters()["cable"]["down"].bytes > before["cable"]["down"].bytes + 60e6 / 8 * 0.5
    assert (
        subprocess.run(["ip", "netns", "pids", network.hosts["cable"].netns], capture_output=True, check=True).stdout
        == b""
    )


def test_links_that_differ_from_what_is_expected_show(shaped):
    real = {"a": LinkState(20e6, 4e6, 0.030), "b": LinkState(10e6, 5e6, 0.020)}
    network = shaped(real)
    told = {"a": LinkState(20e6, 5e6, 0.020), "b": LinkState(12e6, 5e6, 0.020)}
    found = by_quantity(probe_links(network, told, server=CORE_STATE, seconds=0.5))
    assert found["a", "rate_up"].measured == pytest.approx(4e6, rel=0.02)
    assert found["a", "rtt"].measured == pytest.approx(0.030, abs=0.0015)
    assert found["b", "rate_down"].measured == pytest.approx(10e6, rel=0.02)
    assert found["b", "rate_up"].measured == pytest.approx(5e6, rel=0.02)


def test_dilated_links_are_reported_in_emulated_units(shaped):
    states = {"a": LinkState(80e6, 20e6, 0.020)}
    found = by_quantity(probe_links(shaped(states, tdf=4), states, server=CORE_STATE, seconds=0.5, tdf=4))
    assert found["a", "rate_down"].measured == pytest.approx(80e6, rel=0.02)
    assert found["a", "rate_up"].measured == pytest.approx(20e6, rel=0.02)
    assert found["a", "rtt"].measured == pytest.approx(0.020, abs=0.001)
    assert found["a", "rate_up"].seconds == pytest.approx(0.5 / 4)


def test_slow_links_far_dilated_are_measured_in_few_packets(shaped):
    """Datagrams, a few of them; neither a shaper's first burst counts, nor what is left of the group before."""
    real = {name: LinkState(80e6, 20e6, 0.010) for name in "abcd"} | {"e": LinkState(40e6, 6e6, 0.020)}
    told = real | {"e": LinkState(40e6, 7e6, 0.020)}
    server = LinkState(90e6, 90e6, CORE_STATE.rtt_s)
    found = by_quantity(probe_links(shaped(real, tdf=40, server_mbps=90), told, server=server, seconds=0.3, tdf=40))
    for home, state in real.items():
        assert found[home, "rate_down"].measured == pytest.approx(state.down_bps, rel=0.02)
        assert found[home, "rate_up"].measured == pytest.approx(state.up_bps, rel=0.02)


def test_homes_behind_a_narrow_shared_link_are_measured_one_at_a_time(shaped):
    states = {"a": LinkState(20e6, 5e6, 0.040), "b": LinkState(20e6, 5e6, 0.040)}
    network = shaped(states, shared=(SharedLink("east", ("a", "b"), 8e6, 15e6, 0.005),))
    found = by_quantity(probe_links(network, states, server=CORE_STATE, seconds=0.5))
    for home in states:
        assert found[home, "rate_down"].set == 15e6
        assert found[home, "rate_down"].measured == pytest.approx(15e6, rel=0.03)
        assert found[home, "rate_up"].measured == pytest.approx(5e6, rel=0.02)
        assert found[home, "rtt"].measured == pytest.approx(0.040, abs=0.0015)


def test_a_link_that_is_down_measures_nothing(shaped, monkeypatch):
    states = {"a": LinkState(10e6, 5e6, 0.010), "b": LinkState(10e6, 5e6, 0.010)}
    network = shaped(states)
    network.link_down("b")
    monkeypatch.setattr("testbed.emulation.probing.probes.CONNECT_S", 0.5)
    found = by_quantity(probe_links(network, states, server=CORE_STATE, seconds=0.3))
    assert found["a", "rate_down"].measured == pytest.approx(10e6, rel=0.03)
    assert found["b", "rate_down"].measured == found["b", "rate_up"].measured == 0.0
    assert found["b", "rtt"].measured == math.inf
    assert found["b", "rtt"].count == 0


@pytest.mark.parametrize("slower", [1.0, 0.94], ids=["as told", "6 % slower"])
def test_a_long_link_is_judged_by_its_shaper_not_by_one_flow(shaped, slower):
    """One TCP flow read 279 of 300 Mbit/s at 200 ms, and the link was blamed."""
    told = {"far": LinkState(300e6, 40e6, 0.2), "near": LinkState(100e6, 20e6, 0.02)}
    real = {h: dataclasses.replace(s, down_bps=slower * s.down_bps, up_bps=slower * s.up_bps) for h, s in told.items()}
    for result in probe_links(shaped(real), told, server=CORE_STATE):
        if result.quantity != "rtt":
            assert result.measured == pytest.approx(slower * result.set, rel=0.015), result
