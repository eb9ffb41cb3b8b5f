"""Cross traffic on a real network: it takes its share of the home's link, is recorded, and ends with the network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from steady import measured

from testbed.cluster import Link, LinkState, Topology
from testbed.cluster.model import SERVER
from testbed.emulation import cleanup
from testbed.emulation.probing.light_traffic import FlowSpec, open_flows, saturate
from testbed.emulation.shaped import ShapedNetwork
from testbed.emulation.state import RunState
from testbed.errors import CapabilityError, TestbedError
from testbed.measurement.events import read_events
from testbed.scenario.cross_traffic import Stream
from testbed.scenario.network import NetworkSettings, NetworkSetup

pytestmark = [pytest.mark.emulation, pytest.mark.root]

HOMES = ("h1", "h2")
STATE = LinkState(20e6, 8e6, 0.02)


@pytest.fixture
def state(tmp_path):
    run = RunState.create(tmp_path, command="pytest")
    yield run
    assert cleanup.teardown(run).ok


def shaped(state: RunState, capabilities, streams=(), *, on_cross_traffic=None, **settings) -> ShapedNetwork:
    # The server's downlink is narrow: cross traffic that passed it would show in every home's uplink.
    topology = Topology(HOMES, Link(100e6, 17e6, 0.001, 0.001))
    changes = {h: [(0.0, STATE)] for h in HOMES}
    setup = NetworkSetup(topology, changes, NetworkSettings(**settings), cross_traffic=tuple(streams))
    return ShapedNetwork(state, setup, caps=capabilities, on_cross_traffic=on_cross_traffic)


def training_rate(network, home: str, direction: str = "down") -> float:
    """What one TCP flow between a home and the server gets [bit/s], after the other traffic has found its place."""
    hosts = network.hosts
    source, sink = (SERVER, home) if direction == "down" else (home, SERVER)
    expected = STATE.down_bps if direction == "down" else STATE.up_bps
    spec = FlowSpec(home, hosts[source].netns_path, hosts[sink].netns_path, hosts[sink].ip, expected, paced=False)
    with open_flows([spec]) as flows:
        return saturate(flows, {home: 1.5}, settle_s=1.0)[home]


def source_of(state: RunState) -> int:
    """The process that sends, found among those recorded for clean-up."""
    pids = [int(value.partition(":")[0]) for value in state.values("process")]
    (found,) = [pid for pid in pids if "cross_traffic" in Path(f"/proc/{pid}/cmdline").read_text()]
    return found


@measured
def test_a_homes_training_gets_what_the_other_traffic_leaves(state, capabilities):
    events = []
    streams = [Stream("h1", "down", ((0.0, 12e6),)), Stream("h1", "up", ((0.0, 5e6), (60.0, 0.0)))]
    with shaped(state, capabilities, streams, on_cross_traffic=lambda *e: events.append(e)) as net:
        pid = source_of(state)
        assert set(net.network.hosts) == {*HOMES, SERVER}  # where it comes from is none of the experiment's hosts
        before = net.network.counters()[SERVER]
        assert training_rate(net.network, "h1") > 19e6
        net.begin_cross_traffic(time.monotonic())
        with_it = training_rate(net.network, "h1")
        assert 6e6 < with_it < 8.5e6  # 8 of 20 Mbit/s are left
        up = training_rate(net.network, "h1", "up")
        assert 2e6 < up < 3.3e6  # 3 of 8
        assert training_rate(net.network, "h2") > 19e6  # not its traffic
        net.pause_cross_traffic()
        assert training_rate(net.network, "h1") > 19e6
        after = net.network.counters()[SERVER]
        assert after["down"].bytes - before["down"].bytes < 25e6  # the uplink flows and acknowledgements alone
    assert not Path(f"/proc/{pid}").exists()
    assert [e[:4] for e in events] == [(0.0, "h1", "down", 12e6), (0.0, "h1", "up", 5e6)]
    assert all(late < 1 for *_, late in events)


@measured
def test_traffic_follows_its_schedule_in_dilated_time(state, capabilities):
    events = []
    stream = Stream("h1", "down", ((0.2, 8e6), (0.6, 0.0)))  # 0.8 and 2.4 real seconds
    with shaped(state, capabilities, [stream], tdf=4, on_cross_traffic=lambda *e: events.append(e)) as net:
        before = net.network.counters()["h1"]["down"].bytes
        began = time.monotonic()
        net.begin(began)
        time.sleep(max(0.0, began + 3.0 - time.monotonic()))
        sent = net.network.counters()["h1"]["down"].bytes - before
    assert [(t, rate) for t, _, _, rate, _ in events] == [(0.2, 8e6), (0.6, 0.0)]
    assert sent == pytest.approx(8e6 / 4 / 8 * 1.6 * 1514 / 1448, rel=0.15)


def test_the_network_notices_when_its_source_is_gone(state, capabilities):
    with shaped(state, capabilities, [Stream("h1", "down", ((0.0, 1e6),))]) as net:
        net.begin(time.monotonic())
        net.check()
        pid = source_of(state)
        os.kill(pid, 9)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is None:
            time.sleep(0.01)
        with pytest.raises(TestbedError, match="source of cross traffic ended"):
            net.check()


@measured
@pytest.mark.parametrize("queue", ["fq_codel", "cake"])
def test_a_queue_that_the_kernel_lacks_is_refused_and_one_that_it_has_works(state, capabilities, queue):
    if not getattr(capabilities, queue).available:
        with pytest.raises(CapabilityError, match=f"links.queue '{queue}' doesn't work here") as refused:
            shaped(state, capabilities, queue=queue)
        assert "links.queue=fifo" in refused.value.hint
        return
    with shaped(state, capabilities, queue=queue) as net:
        listed = "\n".join(net.commands())
        assert f"handle 10: {queue} " in listed
        assert training_rate(net.network, "h1") > 18e6
        changed = Link(10e6, 10e6)
        net.network.set_links({"h1": changed})
        assert training_rate(net.network, "h1") < 10.5e6


def test_a_run_records_it_and_its_report_shows_it(tmp_path):
    """After the probes, which measure the links without it; its source is gone at the end."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "testbed",
            "run",
            "cross-traffic",
            "--out",
            str(tmp_path),
            "--set",
            "probes.seconds=0.3 s",
            "--set",
            "training.steps=6",
            "--set",
            "outputs.timeline=false",
        ],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    events = read_events(folder)
    cross = events[events["event"] == "cross_traffic"]
    assert {(n, d) for n, d in zip(cross["node"], cross["direction"])} == {("h1", "down"), ("h1", "up"), ("h2", "up")}
    assert cross[cross["direction"] == "down"]["rate_bps"].iloc[0] == 8e6
    assert (cross["late"] >= 0).all()
    probes = events[events["event"] == "probe"]
    assert set(probes["node"]) == {"h1", "h2", "h3"}  # where it comes from is no home
    down = events[(events["event"] == "throughput") & (events["direction"] == "down")].groupby("node")["bytes"].sum()
    assert down["h1"] > down["h3"] + 1e6  # at least a second of the 8 Mbit/s
    assert "<h3>Cross traffic</h3>" in (folder / "report.html").read_text()
