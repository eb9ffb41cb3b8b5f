"""Replay on a real network: rates and delays change under a running flow, without a break."""

from __future__ import annotations

import statistics
import time

import pytest
from steady import measured
from traffic import Flow, ping_ms

from testbed.cluster import Link, LinkState, Topology
from testbed.emulation.delay.nfqueue import NfqueueBackend
from testbed.emulation.schedule.replay import Replayer, ReplayPlan
from testbed.scenario.link_model import WIRE_PER_GOODPUT, access_links
from testbed.scenario.network import NetworkSetup

pytestmark = [pytest.mark.emulation, measured]
CORE = Link(1e9, 1e9)
FAST, SLOW = LinkState(50e6, 20e6, 0.010), LinkState(50e6, 4e6, 0.040)


def test_changes_are_in_force_when_reported_and_the_flow_goes_on(build, capabilities):
    if not capabilities.delay["nfqueue"].available:
        pytest.skip(f"NFQUEUE: {capabilities.delay['nfqueue'].how}")
    start = access_links({"h1": FAST}, CORE)["h1"]
    network = build(1, links={"h1": start.link})
    backend = NfqueueBackend()
    backend.start(network.delay_ports(), {"h1": start.delay}, {}, 1)
    steps = []
    plan = ReplayPlan.of(NetworkSetup(Topology(("h1",), CORE), {"h1": [(0, FAST), (0.4, SLOW), (2, FAST)]}))
    replayer = Replayer(plan, network, backend, on_step=lambda *step: steps.append((time.monotonic(), *step)))
    try:
        assert statistics.median(ping_ms(network, "h1", "server")) == pytest.approx(10, abs=1.5)
        flow = Flow(network, "h1", "server")
        began = time.monotonic()
        replayer.start(began)
        time.sleep(0.9)  # the change came after 0.4 s, and what the buffer held then is out
        # at the bottleneck: what TCP delivers in order comes in bursts while it mends the change's losses
        first, at = network.counters()["h1"]["up"].bytes, time.monotonic()
        time.sleep(0.8)
        rate_bps = 8 * (network.counters()["h1"]["up"].bytes - first) / (time.monotonic() - at) / WIRE_PER_GOODPUT
        assert rate_bps == pytest.approx(4e6, rel=0.08)
        assert flow.received_bytes > 0
        assert replayer.join(5)
        flow.stop()
        time.sleep(0.2)
        assert statistics.median(ping_ms(network, "h1", "server")) == pytest.approx(10, abs=1.5)
    finally:
        replayer.stop()
        backend.stop()
    applied = [(round(t, 3), home, state) for _, t, home, state, _ in steps]
    assert applied == [(0.4, "h1", SLOW), (2.0, "h1", FAST)]
    for done, t_s, _, _, late_s in steps:
        assert 0 <= late_s <= done - began - t_s
