"""Programs in hosts, as `testbed exec` runs them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from steady import measured

from testbed.cluster import Link, LinkState, Topology
from testbed.emulation.process.programs import default_hosts, environment, run_program, start_program, worst
from testbed.emulation.shaped import ShapedNetwork
from testbed.errors import InputError
from testbed.experiment.schema import Experiment
from testbed.scenario.network import NetworkSettings, NetworkSetup

pytestmark = pytest.mark.emulation

DDP = """
import socket, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
weights = [torch.zeros(64, 64) for _ in range(2)]
dist.all_gather(weights, model.module.weight.detach())
same = "same" if weights[0].equal(weights[1]) else "differ"
print("rank", dist.get_rank(), socket.gethostname(), same, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def network(build):
    return build(2)


def run(network, hosts, *argv, **options):
    out, err = io.StringIO(), io.StringIO()
    codes = run_program(network, hosts, argv, state=network.state, out=out, err=err, **options)
    return codes, out.getvalue(), err.getvalue()


def alive(marker):
    """Processes with that argument."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and marker in Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue
    return found


def test_ranks_hosts_file_host_name_and_prefixes(network):
    script = 'echo "$RANK/$WORLD_SIZE $MASTER_ADDR $TESTBED_HOST $(hostname) $(getent hosts h2 | cut -d" " -f1)"'
    before = Path("/etc/hosts").read_text()
    codes, out, err = run(network, ["h1", "h2", "server"], "sh", "-c", script + "; echo oops >&2; printf end")
    assert codes == {"h1": 0, "h2": 0, "server": 0}
    h1, h2 = network.hosts["h1"].ip, network.hosts["h2"].ip
    lines = out.splitlines()
    for rank, name in enumerate(["h1", "h2", "server"]):
        assert f"{name:6} | {rank}/3 {h1} {name} {name} {h2}" in lines
        assert f"{name:6} | end" in lines
        assert f"{name:6} | oops" in err.splitlines()
    assert Path("/etc/hosts").read_text() == before


def test_programs_reach_each_other_by_name(network):
    codes, out, _ = run(network, ["h1"], "ping", "-c", "1", "-W", "2", "server")
    assert codes == {"h1": 0}
    assert f"PING server ({network.hosts['server'].ip})" in out


ADDRESSES = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.connect(("8.8.8.8", 53))
    print("own", s.getsockname()[0], s.send(b"x"))
for address in ("{ip}", "::ffff:{ip}"):
    print("name", socket.getnameinfo((address, 1), 0)[0])
print("first", socket.getaddrinfo("h2", 80, type=socket.SOCK_STREAM)[0][4][0])
try:
    socket.getaddrinfo("nowhere.example", 80)
except socket.gaierror:
    print("unknown")
"""


def test_a_program_finds_its_own_address_and_the_names_of_others(network):
    """Programs ask which address a way to the internet would start from; c10d asks for names of IPv4 clients in IPv6."""
    h2 = network.hosts["h2"].ip
    began = time.monotonic()
    hosts = ["h1", "server"]
    codes, out, err = run(network, hosts, sys.executable, "-c", ADDRESSES.format(ip=h2), timeout=60)
    assert codes == dict.fromkeys(hosts, 0), err
    for name in hosts:
        lines = [line.partition(" | ")[2] for line in out.splitlines() if line.startswith(name)]
        assert lines == [f"own {network.hosts[name].ip} 1", "name h2", "name h2.testbed", f"first {h2}", "unknown"]
    assert time.monotonic() - began < 20  # no name server was waited for


def test_what_is_not_emulated_is_dropped_at_the_server(network):
    before = network.counters()["server"]["down"].packets
    codes, out, _ = run(network, ["h1"], "ping", "-c", "2", "-i", "0.2", "-W", "1", "192.0.2.1")
    assert codes == {"h1": 1}
    assert "2 packets transmitted, 0 received" in out
    assert network.counters()["server"]["down"].packets - before == 2  # it came that far


def test_exit_codes(network):
    assert run(network, ["h1", "h2"], "sh", "-c", "exit $RANK")[0] == {"h1": 0, "h2": 1}
    assert run(network, ["h1"], "sh", "-c", "kill -9 $$")[0] == {"h1": 137}
    codes, _, err = run(network, ["h1"], "no-such-program")
    assert codes == {"h1": 127}
    assert "no-such-program" in err
    assert worst({"a": 0, "b": 3, "c": -15}) == 143
    assert worst({}) == 0


@pytest.mark.skipif(not Path("/proc/sys/net/ipv4/tcp_rto_max_ms").exists(), reason="Linux before 6.15")
def test_tcp_of_a_program_retries_every_emulated_second(state, capabilities):
    link = [(0.0, LinkState(20e6, 8e6, 0.02))]
    settings = NetworkSettings.of(
        Experiment(
            name="x",
            topology={"homes": 1},
            links={"download": "20 Mbit/s", "upload": "8 Mbit/s", "rtt": "20 ms"},
            tdf=3,
        )
    )
    with ShapedNetwork(
        state, NetworkSetup(Topology(("h1",), Link(100e6, 100e6)), {"h1": link}, settings), caps=capabilities
    ) as shaped:
        codes, out, _ = run(shaped.network, ["h1", "server"], "cat", "/proc/sys/net/ipv4/tcp_rto_max_ms")
    assert codes == {"h1": 0, "server": 0}
    assert out.splitlines() == ["h1     | 3000", "server | 3000"]


def test_whatever_a_program_started_ends_with_it(network):
    marker = f"{100000 + os.getpid()}.5"
    script = f"setsid sleep {marker} >/dev/null 2>&1 & sleep 0.2; exit 4"
    codes, _, _ = run(network, ["h1"], "sh", "-c", script)
    assert codes == {"h1": 4}
    assert alive(marker.encode()) == []


def test_a_timeout_ends_all_of_it(network):
    marker = f"{200000 + os.getpid()}.5"
    began = time.monotonic()
    codes, out, _ = run(network, ["h1", "h2"], "sh", "-c", f"echo hi; sleep {marker}", timeout=0.7)
    assert codes == {"h1": 124, "h2": 124}
    assert out.count("hi") == 2
    assert time.monotonic() - began < 10
    assert alive(marker.encode()) == []


def test_ctrl_c_ends_all_of_it(network):
    marker = f"{300000 + os.getpid()}.5"
    recorded = network.state.values("process")

    class Stop(io.StringIO):
        def write(self, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(network, ["h1", "h2"], ["sh", "-c", f"echo; sleep {marker}"], state=network.state, out=Stop())
    assert alive(marker.encode()) == []
    assert network.state.values("process") == recorded


def test_a_killed_testbed_takes_its_programs_with_it(network, tmp_path):
    marker = f"{400000 + os.getpid()}.5"
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = {[*filter(None, sys.path)]!r}
        from types import SimpleNamespace as N
        from testbed.emulation.process.programs import run_program
        h = N(name="h1", netns_path={network.hosts["h1"].netns_path!r}, ip="10.0.0.1", interface="x")
        run_program(N(hosts={{"h1": h}}), ["h1"], ["sh", "-c", "echo started; sleep {marker}"], prefix=False)
    """)
    p = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert p.stdout.readline() == "started\n"
    p.kill()
    p.wait()
    p.stdout.close()
    deadline = time.monotonic() + 5
    while alive(marker.encode()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive(marker.encode()) == []


def test_a_terminal_belongs_to_the_program_and_comes_back(network):
    """One host without prefix: a real terminal, Ctrl-C for the program alone."""
    main, child = os.openpty()
    script = textwrap.dedent(f"""
        import os, sys, signal
        sys.path[:0] = {[*filter(None, sys.path)]!r}
        from types import SimpleNamespace as N
        from testbed.emulation.process.programs import run_program
        h = N(name="h1", netns_path={network.hosts["h1"].netns_path!r}, ip="10.0.0.1", interface="x")
        argv = ["sh", "-c", "test -t 0 && echo tty; exec sleep 30"]
        codes = run_program(N(hosts={{"h1": h}}), ["h1"], argv, prefix=False)
        print("codes", codes, "mine" if os.tcgetpgrp(0) == os.getpgrp() else "lost", flush=True)
    """)
    p = subprocess.Popen(
        [sys.executable, "-c", script], stdin=child, stdout=child, stderr=child, start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0),  # TIOCSCTTY: its controlling terminal
    )  # fmt: skip
    os.close(child)
    text = bytearray()
    timer = threading.Timer(20, p.kill)
    timer.start()
    interrupted = False
    while True:
        try:
            data = os.read(main, 4096)
        except OSError:
            break
        if not data:
            break
        text += data
        if b"tty" in text and not interrupted:
            interrupted = True
            time.sleep(0.3)
            os.write(main, b"\x03")
    p.wait()
    timer.cancel()
    os.close(main)
    assert b"tty" in text
    assert b"codes {'h1': 130} mine" in text


def test_a_program_beside_others(network):
    server = start_program(
        network, ["server"], 0, ["iperf3", "-s", "-1"], state=network.state, stdout=subprocess.DEVNULL
    )
    tries = "for i in 1 2 3 4 5 6 7 8 9; do iperf3 -c server -t 1 -f m && exit 0; sleep 0.2; done; exit 1"
    try:
        codes, out, _ = run(network, ["h1"], "sh", "-c", tries)
        assert codes == {"h1": 0}
        assert "receiver" in out
    finally:
        server.end(network.state)
    assert server.process.returncode is not None


def test_unknown_and_repeated_hosts(network):
    with pytest.raises(InputError, match="unknown host 'h3'"):
        run(network, ["h1", "h3"], "true")
    with pytest.raises(InputError, match="h1 is named 2 times"):
        run(network, ["h1", "h1"], "true")
    with pytest.raises(InputError, match="no directory /nowhere"):
        run(network, ["h1"], "true", cwd="/nowhere")


def test_default_hosts_and_environment(network):
    assert default_hosts(network) == ["h1", "h2"]
    assert default_hosts(network, server=True) == ["h1", "h2", "server"]
    env = environment(network, ["h2", "h1"], 1)
    assert env["MASTER_ADDR"] == network.hosts["h2"].ip
    assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == network.hosts["h1"].interface
    assert [env[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["1", "2", "0", "1"]


@measured  # torch aborted once at its exit: "terminate called without an active exception"
def test_an_unmodified_torchrun_script_trains_between_two_hosts(network, tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    torchrun = (
        f"{sys.executable} -m torch.distributed.run --nnodes=$WORLD_SIZE --node-rank=$RANK "
        f"--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT --log-dir={tmp_path} {script}"
    )
    before = network.counters()["h1"]["up"].bytes
    codes, out, err = run(network, ["h1", "h2"], "sh", "-c", torchrun, timeout=120)
    assert codes == {"h1": 0, "h2": 0}, err
    assert "h1 | rank 0 h1 same" in out
    assert "h2 | rank 1 h2 same" in out
    assert network.counters()["h1"]["up"].bytes - before > 3 * 64 * 64 * 4  # gradients, over the shaped link
