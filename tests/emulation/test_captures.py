"""Captures in an emulated network against what the kernel itself counted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.capture.flows import read_flows
from testbed.capture.reading import Capture
from testbed.cluster import Link, LinkState, Topology
from testbed.emulation.process.captures import Captures
from testbed.emulation.shaped import ShapedNetwork
from testbed.scenario.captures import CaptureSettings
from testbed.scenario.network import NetworkSetup

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.skipif(shutil.which("tcpdump") is None, reason="tcpdump is not installed"),
]

RTT_S = 0.04
SEND = """
import socket, sys, time, subprocess
peer = socket.create_connection((sys.argv[1], 5000))
for _ in range(int(sys.argv[2])):
    peer.sendall(bytes(int(sys.argv[3])))
    time.sleep(float(sys.argv[4]))
peer.recv(1)
print(subprocess.run(["ss", "-tinH", "dst", sys.argv[1]], capture_output=True, text=True).stdout)
"""
SINK = """
import socket, sys
listener = socket.create_server(("", 5000))
print("ready", flush=True)
peer, _ = listener.accept()
left = int(sys.argv[1])
while left:
    left -= len(peer.recv(1 << 20))
peer.send(b"x")
peer.recv(1)
"""


@pytest.fixture
def shaped(state, capabilities, tmp_path):
    made = []

    def start(loss: float = 0.0) -> ShapedNetwork:
        link = LinkState(20e6, 20e6, RTT_S, 0.0, loss)
        topology = Topology(("h1",), Link(1e9, 1e9, 0.001, 0.001))
        setup = NetworkSetup(topology, {"h1": [(0.0, link)]})
        made.append(ShapedNetwork(state, setup, caps=capabilities, log_dir=tmp_path))
        return made[-1].__enter__()

    yield start
    for network in reversed(made):
        network.__exit__(None, None, None)


def transfer(network, count, size, pause) -> str:
    """What ss says of the sender's connection at its end."""
    sink = network.popen("server", [sys.executable, "-c", SINK, str(count * size)], stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout.readline() == "ready\n"
        argv = [sys.executable, "-c", SEND, network.hosts["server"].ip, str(count), str(size), str(pause)]
        return network.run("h1", argv, timeout=120).stdout
    finally:
        sink.kill()
        sink.wait()
        sink.stdout.close()


def captured(state, network, folder, action, **settings):
    told = {}
    with Captures(state, network.hosts, CaptureSettings(("h1", "server"), **settings), folder,
                  comments=["seed 1"], on_end=told.__setitem__):  # fmt: skip
        result = action()
        time.sleep(0.3)
    return result, told


def data_flow(path):
    table = read_flows(path).table
    return table[(table.destination_port == 5000) & (table.protocol == "tcp")].iloc[0]


def test_bytes_are_those_of_tc_and_round_trips_those_of_the_link(shaped, state, tmp_path):
    network = shaped().network
    before = network.counters()["h1"]["up"]
    _, told = captured(state, network, tmp_path / "c", lambda: transfer(network, 1, 10_000_000, 0))
    after = network.counters()["h1"]["up"]
    # the home sent what its full buffer then dropped, too: full frames
    sent = after.bytes - before.bytes + 1514 * (after.drops - before.drops)
    table = read_flows(tmp_path / "c/h1.pcapng").table
    assert table[table.source == "h1"].bytes.sum() == pytest.approx(sent, rel=1e-3)
    assert told["h1"]["dropped"] == 0
    assert told["h1"]["packets"] > 0
    assert 0 <= told["h1"]["cpu"] < 1
    captured(state, network, tmp_path / "d", lambda: transfer(network, 60, 100, 0.02))
    assert data_flow(tmp_path / "d/h1.pcapng").rtt_p50_s == pytest.approx(RTT_S, abs=0.5e-3)
    names = Capture(tmp_path / "d/h1.pcapng")
    list(names.batches())
    assert set(names.names.values()) == {"h1", "server"}
    assert names.comments == ["seed 1"]


def test_retransmissions_are_those_that_ss_counts(shaped, state, tmp_path):
    network = shaped(loss=0.02).network
    said, _ = captured(state, network, tmp_path / "c", lambda: transfer(network, 1, 12_000_000, 0))
    counted = int(re.search(r"retrans:\d+/(\d+)", said).group(1))
    assert counted >= 20
    assert data_flow(tmp_path / "c/h1.pcapng").retransmissions == pytest.approx(counted, rel=0.05)


def test_a_capture_at_its_limit_leaves_a_readable_file_and_says_so(shaped, state, tmp_path):
    network = shaped().network
    _, told = captured(
        state,
        network,
        tmp_path / "c",
        lambda: transfer(network, 1, 20_000_000, 0),
        most_bytes=1_000_000,
        snaplen=262_144,
    )
    assert "limit" in told["h1"]["text"]
    assert read_flows(tmp_path / "c/h1.pcapng").packets > 100


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_opens_it(shaped, state, tmp_path):
    network = shaped().network
    captured(state, network, tmp_path / "c", lambda: transfer(network, 1, 100_000, 0))
    argv = ["tshark", "-N", "n", "-r", str(tmp_path / "c/h1.pcapng"), "-T", "fields", "-e", "ip.src_host",
            "-e", "frame.interface_name"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    interface = network.hosts["h1"].interface
    rows = set(done.stdout.splitlines())
    assert {f"h1\t{interface}", f"server\t{interface}"} <= rows


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_leaves_no_capturer_and_a_readable_file(tmp_path, number):
    argv = [sys.executable, "-m", "testbed", "run", "smoke", "--capture", "h1", "--set", "training.steps=1000",
            "--set", "probes.enabled=false", "--out", str(tmp_path)]  # fmt: skip
    run = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/captures/h1.pcap")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(6)
        run.send_signal(number)
        run.wait(60)
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    (folder,) = tmp_path.glob("*/captures")
    if number == signal.SIGKILL:
        run_id = next(i for i, where in _recorded() if where == str(folder.parent))
        subprocess.run([sys.executable, "-m", "testbed", "clean", run_id], check=True, capture_output=True)
    assert not _capturers(folder)
    (file,) = folder.iterdir()
    assert file.suffix == (".pcapng" if number == signal.SIGINT else ".pcap")
    assert read_flows(file).packets > 0


def _recorded():
    from testbed.emulation.state import STATE_DIR

    for path in STATE_DIR.glob("*.json"):
        content = json.loads(path.read_text())
        yield content["run_id"], content["run_dir"]


def _capturers(folder: Path) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/fd/1").startswith(str(folder)):
                found.append(pid)
        except OSError:
            continue
    return found
