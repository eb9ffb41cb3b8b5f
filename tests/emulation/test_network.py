"""The emulated network, as programs in its hosts see it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from steady import measured
from traffic import Flow, connect, flood, goodputs, ping_ms

from testbed.cluster import Link, SharedLink
from testbed.emulation.kernel.namespaces import run_in
from testbed.errors import InputError

pytestmark = [pytest.mark.emulation, measured]


def interface_state(network, host: str) -> str:
    """Address, route, ARP entries of a host; qdiscs, classes, filters and bridge of the run's namespace."""
    commands = [(network.hosts[host].netns, f"ip {what}") for what in ("addr", "route", "neigh")]
    commands += [
        (network.net_namespace, what)
        for what in (
            "tc qdisc show",
            f"tc class show dev {network.hosts[host].inner}",
            f"tc class show dev {network.hosts[host].bridge_port}",
            f"tc filter show dev {network.hosts[host].port} ingress",
            f"tc filter show dev {network.hosts[host].inner} ingress",
            "bridge fdb show",
        )
    ]
    text = "\n".join(run_in(netns, command.split(), check=True).stdout for netns, command in commands)
    return re.sub(r"(tokens|ctokens): -?\d+", "", text)


def test_hosts_reach_each_other_and_the_root_namespace_holds_nothing(build):
    before = set(os.listdir("/sys/class/net"))
    network = build(3)
    assert network.net.pingAll() == 0.0
    assert set(os.listdir("/sys/class/net")) == before
    assert all(name.startswith(f"tb-{network.state.run_id}-") for name in network.state.values("netns"))


def test_mininet_nodes_start_their_shell_with_the_first_command(build):
    network = build(2)
    h1, h2 = network.net.get("h1", "h2")
    assert h1.pid is None
    assert h1.IP() == network.hosts["h1"].ip
    assert h1.IP() in h1.cmd("hostname -I").split()
    assert h1.pid is not None
    assert h2.pid is None
    out, _, code = h2.pexec("cat /sys/class/net/h2-eth0/address")
    assert (out.strip(), code) == (network.hosts["h2"].mac, 0) or code  # /sys is the root's outside a shell
    assert network.hosts["h2"].mac in h2.cmd("cat /sys/class/net/h2-eth0/address")
    assert "1 received" in h1.cmd(f"ping -c1 {network.hosts['server'].ip}")


def test_mininet_cli_runs_commands_by_host_name(build, tmp_path, monkeypatch):
    from mininet.cli import CLI
    from mininet.log import lg, setLogLevel

    network = build(2)
    script = tmp_path / "commands"
    script.write_text("nodes\nnet\nlinks\nh1 ping -c1 server\nlink h1 core down\nh1 ping -c1 -W1 server\n")
    monkeypatch.setattr(lg.ch, "stream", io.StringIO())
    setLogLevel("info")
    try:
        with open(os.devnull) as terminal:
            CLI(network.net, stdin=terminal, script=str(script))
    finally:
        setLogLevel("warning")
    said = lg.ch.stream.getvalue()
    assert "core h1 h2 server" in said
    assert "h1-eth0:y1" in said
    assert "1 received" in said
    assert "0 received" in said
    assert network.down == {"h1"}


def test_a_host_has_no_ipv6_and_knows_every_neighbour(build):
    network = build(3)
    host = network.hosts["h2"]
    assert "inet6" not in network.run("h2", ["ip", "addr"]).stdout
    entries = network.run("h2", ["ip", "neigh"]).stdout
    assert entries.count("PERMANENT") == 3
    assert f"inet {host.ip}/16" in network.run("h2", ["ip", "addr", "show", "dev", host.interface]).stdout


def test_home_names_of_any_kind_work(build):
    network = build(("net", "Zürich flat/2", "h" * 40))
    assert len(set(network.state.values("netns"))) == 5
    for name in network.topology.homes:
        assert ping_ms(network, name, "server", 1)


@pytest.mark.parametrize("mbps", [1, 10, 100, 200])
def test_tcp_reaches_the_set_rate_within_2_percent_in_both_directions(build, mbps):
    network = build(2, mbps, mbps)
    with Flow(network, "h1", "server") as up, Flow(network, "server", "h2") as down:
        found = goodputs([up, down], 3.0 if mbps < 10 else 2.0, warm_up_s=1.5)
    assert found == pytest.approx([mbps * 1e6] * 2, rel=0.02)


def test_both_directions_of_one_link_carry_their_rates_at_once(build):
    network = build(1, 10, 30)
    with flood(network, "h1", "server", 15e6), flood(network, "server", "h1", 40e6):
        time.sleep(0.5)
        before, start = network.counters()["h1"], time.monotonic()
        time.sleep(2)
        after, elapsed = network.counters()["h1"], time.monotonic() - start
    rates = [(after[way].bytes - before[way].bytes) * 8 / elapsed for way in ("up", "down")]
    assert rates == pytest.approx([10e6 * 1514 / 1448, 30e6 * 1514 / 1448], rel=0.02)


def test_packets_leave_the_host_one_by_one(build):
    network = build(1, 20, 20)
    with Flow(network, "h1", "server"):
        time.sleep(1)
    up = network.counters()["h1"]["up"]
    assert 1400 < up.bytes / up.packets <= 1514


def test_uplink_queue_fills_and_drops_as_a_routers_does(build):
    """A queue on the sender's own side would stay at half and never drop: TCP small queues."""
    network = build(1, 20, 100, buffer_s=0.1)
    idle = ping_ms(network, "h1", "server", 3)
    with Flow(network, "h1", "server"):
        time.sleep(2)
        loaded = ping_ms(network, "h1", "server", 10)
    counters = network.counters()["h1"]["up"]
    assert max(idle) < 10
    assert 70 < max(loaded) < 115
    assert min(loaded) > 40
    assert counters.drops > 0


def test_downlink_queue_is_its_own(build):
    network = build(1, 20, 20, buffer_s=0.1)
    with Flow(network, "server", "h1"):
        time.sleep(2)
        loaded = ping_ms(network, "h1", "server", 10)
        backlog = network.counters()["h1"]
    assert 70 < max(loaded) < 115
    assert backlog["down"].backlog_bytes > 100_000
    assert backlog["up"].backlog_bytes < 10_000


def test_links_change_in_place_under_load(build):
    network = build(2, 20, 100)
    made = len(network.commands)
    with Flow(network, "h1", "server") as flow:
        assert flow.goodput_bps(1.5, warm_up_s=1.5) == pytest.approx(20e6, rel=0.05)
        before = network.counters()["h1"]["up"]
        network.set_links({"h1": Link(5e6, 100e6)})
        assert network.counters()["h1"]["up"].packets >= before.packets
        assert flow.goodput_bps(2, warm_up_s=1.5) == pytest.approx(5e6, rel=0.05)
        network.set_links({"h1": Link(40e6, 100e6)})
        assert flow.goodput_bps(2, warm_up_s=1.5) == pytest.approx(40e6, rel=0.05)
        assert network.counters()["h1"]["up"].packets > before.packets
    changes = network.commands[made:]
    assert len(changes) == 4  # rate and buffer of the uplink, twice; nothing else
    assert all(" change dev x1 " in line for line in changes)


def test_bad_changes_are_refused_before_any_is_applied(build):
    network = build(2)
    made = list(network.commands)
    with pytest.raises(InputError, match="did you mean 'h1'"):
        network.set_links({"h2": Link(1e6, 1e6), "h01": Link(1e6, 1e6)})
    with pytest.raises(InputError, match="downlink"):
        network.set_links({"h2": Link(1e6, 1e6), "h1": Link(1e6, 0)})
    assert network.commands == made


def test_link_down_stops_an_established_connection_and_up_resumes_it(build):
    network = build(2, 20, 20)
    before = interface_state(network, "h1")
    with Flow(network, "h1", "server") as up, Flow(network, "server", "h1") as down:
        time.sleep(0.5)
        network.link_down("h1")
        time.sleep(0.2)
        received = up.received_bytes, down.received_bytes
        time.sleep(0.7)
        assert (up.received_bytes, down.received_bytes) == received
        assert not ping_ms(network, "h1", "server", 1)
        assert ping_ms(network, "h2", "server", 1)
        network.link_up("h1")
        assert ping_ms(network, "h1", "server", 1)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and up.received_bytes == received[0]:
            time.sleep(0.05)
        assert up.received_bytes > received[0]
    assert interface_state(network, "h1") == before


def test_changes_during_an_outage_hold_afterwards(build):
    network = build(1, 20, 20)
    network.link_down("h1")
    network.set_links({"h1": Link(5e6, 20e6)})
    assert network.counters()["h1"]["up"].backlog_bytes == 0
    network.link_up("h1")
    with Flow(network, "h1", "server") as flow:
        assert flow.goodput_bps(1.5, warm_up_s=1.0) == pytest.approx(5e6, rel=0.05)


def test_no_fin_leaves_a_host_whose_link_is_down(build):
    network = build(1)
    near, far = connect(network, "h1", "server")
    fd = near.fileno()
    sleeper = subprocess.Popen(["sleep", "60"], pass_fds=[fd])  # the connection's last holder
    near.close()
    try:
        network.link_down("h1")
        os.kill(sleeper.pid, signal.SIGKILL)
        sleeper.wait()
        far.settimeout(1)
        with pytest.raises(TimeoutError):
            far.recv(1)
        network.link_up("h1")
        far.settimeout(10)
        assert far.recv(1) == b""  # the kernel repeats the FIN: it was sent, and lost on the way
    finally:
        sleeper.kill()
        far.close()


def test_no_other_home_hears_what_is_meant_for_one_that_is_down(build):
    network = build(3)
    network.link_down("h1")
    before = {name: queues["down"].packets for name, queues in network.counters().items()}
    ping_ms(network, "server", "h1", 3)
    after = {name: queues["down"].packets for name, queues in network.counters().items()}
    assert [after[h] - before[h] for h in ("h2", "h3")] == [0, 0]


def test_two_networks_run_side_by_side(build):
    one, two = build(2, 10, 10), build(2, 20, 20)
    assert one.hosts["h1"].ip == two.hosts["h1"].ip
    with Flow(one, "h1", "server") as a, Flow(two, "h1", "server") as b:
        assert goodputs([a, b], 1.5) == pytest.approx([10e6, 20e6], rel=0.05)
    one.stop()
    assert ping_ms(two, "h1", "server", 1)


@pytest.mark.parametrize("name", ["cubic", "reno"])
def test_congestion_control_is_the_hosts_own(build, name):
    root = {
        p: Path(f"/proc/sys/net/ipv4/{p}").read_text()
        for p in ("tcp_congestion_control", "tcp_allowed_congestion_control")
    }
    network = build(1, congestion_control=name)
    near, far = connect(network, "h1", "server")
    with contextlib.closing(near), contextlib.closing(far):
        for end in (near, far):
            used = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert used.rstrip(b"\0") == name.encode()
    assert root == {p: Path(f"/proc/sys/net/ipv4/{p}").read_text() for p in root}


def test_an_unknown_congestion_control_is_refused_with_the_choices(build):
    with pytest.raises(InputError, match="cubic"):
        build(1, congestion_control="cubik")


def test_shared_link_binds_and_spares_the_others(build):
    shared = (SharedLink("north", ("h1", "h2"), 20e6, 60e6),)
    network = build(3, 50, 50, shared=shared)
    assert network.net.pingAll() == 0.0
    with contextlib.ExitStack() as stack:
        flows = [stack.enter_context(Flow(network, home, "server")) for home in ("h1", "h2", "h3")]
        first, second, other = goodputs(flows, 2.0, warm_up_s=1.5)
    assert first + second == pytest.approx(20e6, rel=0.03)
    assert other == pytest.approx(50e6, rel=0.03)
    counters = network.counters()["north"]
    assert counters["up"].drops > 0
    assert counters["down"].drops == 0
    with Flow(network, "h1", "h2") as inside:  # between neighbours: not over the shared link
        assert inside.goodput_bps(1) == pytest.approx(50e6, rel=0.05)
    network.set_shared_links({"north": SharedLink("north", ("h1", "h2"), 10e6, 60e6)})
    with Flow(network, "h1", "server") as flow:
        assert flow.goodput_bps(1.5) == pytest.approx(10e6, rel=0.05)


def test_counters_agree_with_what_was_sent(build):
    network = build(1, 50, 50)
    near, far = connect(network, "h1", "server")
    with contextlib.closing(near), contextlib.closing(far):
        sender = threading.Thread(target=near.sendall, args=(bytes(1_000_000),))
        sender.start()
        left = 1_000_000
        while left:
            left -= len(far.recv(left))
        sender.join()
    up = network.counters()["h1"]["up"]
    frames = 1_000_000 / 1448
    assert up.packets == pytest.approx(frames, abs=10)
    assert up.bytes == pytest.approx(1_000_000 + 66 * frames, rel=0.01)
    assert network.counters()["server"]["down"].packets == up.packets


def test_stop_is_idempotent_and_ends_what_runs_in_the_hosts(build):
    network = build(1)
    program = network.popen("h1", ["sh", "-c", "sleep 300 & exec sleep 300"])
    network.net.get("h1").cmd("true")
    time.sleep(0.1)
    network.stop()
    assert program.wait(5) == -signal.SIGKILL
    assert not network.state.values("netns")
    network.stop()
