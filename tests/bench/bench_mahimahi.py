"""The delay line beside Mahimahi's way to delay: RTT error, and packets a second of processor time, in the same run.

    sudo python tests/bench/bench_mahimahi.py

Mahimahi's shells are a TUN device at each end and a process that reads, holds and writes single packets. One like
that (packet_shell.c, needs a C compiler) is measured between the same two hosts as the delay line, with an exact
clock and with Mahimahi's own of whole milliseconds. Where mm-delay and mm-link are on PATH, they are measured too (as an ordinary user:
they refuse root); else a line says that they are absent. Prints one JSON object a line, ratios last: of RTT error, ours - theirs [ms];
of packets per core, ours / theirs, once for the processor time of the delaying process and once for all that the
machine used beyond its idle state (sender, receiver and, with the delay line, bottlenecks and bridge included).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench_delay import RTT_S, flow, pump, report, rtt_errors_ms, shaped

from testbed.cluster import Link, LinkState
from testbed.cluster.model import SERVER
from testbed.emulation.namespaces import run_in
from testbed.emulation.network import EmulatedNetwork
from testbed.emulation.shaping import add_bottleneck, shape
from testbed.measurement.light_traffic import FlowSpec, open_flows
from testbed.processes import stat_fields

SHELL_SOURCE = Path(__file__).with_name("packet_shell.c")
SHELL_ENDS = {"h1": "10.99.0.1", SERVER: "10.99.0.2"}
FAST_BPS, SLOW_BPS = 1e9, 2e8
ROUNDS = 3  # each takes its turn in each: machines change their speed
Used = tuple[int, float]  # packets passed and processor time [s], since the start


@dataclasses.dataclass(frozen=True)
class Measured:
    """rtt_error_ms: median and 99th percentile. fast, slow: packets a second of processor time, of the delaying
    process and of the whole machine, at set rates of 1 Gbit/s and 200 Mbit/s."""

    rtt_error_ms: tuple[float, float]
    fast: tuple[float, float]
    slow: tuple[float, float]


def build_shell(folder: Path) -> Path | None:
    """The packet shell, compiled; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return None
    subprocess.run([compiler, "-O2", "-o", folder / "packet_shell", SHELL_SOURCE], check=True)
    return folder / "packet_shell"


@contextlib.contextmanager
def packet_shell(program: Path, network: EmulatedNetwork, tick_us: int) -> Iterator[Callable[[], Used]]:
    """A packet shell between h1 and the server."""
    ends = {host: network.hosts[host].netns_path for host in SHELL_ENDS}
    argv = [program, *ends.values(), str(round(5e5 * RTT_S)), str(tick_us)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        try:
            if shell.stdout.readline() != "ready\n":
                raise SystemExit("the packet shell did not start")
            for host, netns in ends.items():
                # Single packets, from a bottleneck like the one ahead of the delay line.
                run_in(netns, ["ip", "link", "set", "shell0", "up", "txqueuelen", "10000", "gso_max_segs", "1"], check=True)
                run_in(netns, ["ip", "address", "add", f"{SHELL_ENDS[host]}/24", "dev", "shell0"], check=True)
                run_in(netns, ["ip", "route", "change", "10.99.0.0/24", "dev", "shell0", "congctl", "cubic"], check=True)
            children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()

            def used() -> Used:
                found = run_in(ends["h1"], ["ip", "-j", "-s", "link", "show", "shell0"], check=True).stdout
                passed = json.loads(found)[0]["stats64"]
                cpu_s = sum(_cpu_s(pid) for pid in children)
                return passed["rx"]["packets"] + passed["tx"]["packets"], cpu_s

            yield used
        finally:
            shell.stdin.close()
            shell.wait()


def shape_shell(network: EmulatedNetwork, rate_bps: float) -> None:
    """The bottleneck at both ends of a packet shell."""
    for host in SHELL_ENDS:
        netns = network.hosts[host].netns_path
        run_in(netns, ["tc", "qdisc", "del", "dev", "shell0", "root"])
        commands = "\n".join(add_bottleneck("shell0", shape(rate_bps, 0.1)))
        run_in(netns, ["tc", "-batch", "-"], input=commands, check=True)


def _cpu_s(pid: str) -> float:
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Processor time since the start, all processors [s]: what was not idle."""
    with open("/proc/uptime") as file:
        up, idle = map(float, file.read().split())
    return up * os.cpu_count() - idle


def per_core(spec: FlowSpec, used: Callable[[], Used], seconds: float) -> tuple[float, float, float, float]:
    """A flow's rate [bit/s]; bits that it carries in a second of the delaying process's processor time; and packets a
    second of processor time, acknowledgements included: of that process, and of the machine beyond what it does anyway."""
    idle = busy_s()
    time.sleep(1.0)
    idle = busy_s() - idle
    with open_flows([dataclasses.replace(spec, paced=False)]) as (one,):
        (packets, cpu_s), machine_s, began = used(), busy_s(), time.monotonic()
        bps = pump(one.sender, one.receiver, 1.0, seconds)
        took = time.monotonic() - began
        machine_s = busy_s() - machine_s - idle * took
        after = used()
    packets, cpu_s = after[0] - packets, after[1] - cpu_s
    return bps, bps * took / cpu_s, packets / cpu_s, packets / machine_s


def measure(name: str, network: EmulatedNetwork, address: str, used: Callable[[], Used], seconds: float,
            shape_to: Callable[[float], None]) -> Measured:
    shape_to(FAST_BPS)
    errors, p50, p99 = rtt_errors_ms(network, address)
    report(bench="mahimahi_rtt", of=name, answers=len(errors), error_p50_ms=p50, error_p99_ms=p99)
    costs = []
    for rate_bps in (FAST_BPS, SLOW_BPS):
        shape_to(rate_bps)
        spec = dataclasses.replace(flow(network, "h1", SERVER, rate_bps), address=address)
        bps, per_core_bps, own, machine = per_core(spec, used, seconds)
        report(bench="mahimahi_throughput", of=name, set_mbps=rate_bps / 1e6, mbps=bps / 1e6,
               mbps_per_core=per_core_bps / 1e6, packets_per_s_per_core=own, machine_packets_per_s_per_core=machine)
        costs.append((own, machine))
    return Measured((p50, p99), *costs)


def beside_packet_shells(seconds: float = 4.0) -> None:
    """Delay line and packet shells, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        program = build_shell(Path(folder))
        if not program:
            report(bench="mahimahi", absent="no C compiler for packet_shell.c")
            return
        ticks = {"packet shell": 1, "packet shell, whole ms": 1000}
        found: dict[str, list[Measured]] = {}
        for _ in range(ROUNDS):
            with shaped("nfqueue", {"h1": LinkState(FAST_BPS, FAST_BPS, RTT_S)}) as (network, line):
                server = network.hosts[SERVER].ip
                found.setdefault("delay line", []).append(measure(
                    "delay line", network, server, lambda: (line.stats().packets, line.stats().cpu_s), seconds,
                    lambda bps: network.set_links({"h1": Link(bps, bps)}),
                ))
                for name, tick_us in ticks.items():
                    with packet_shell(program, network, tick_us) as used:
                        found.setdefault(name, []).append(measure(
                            name, network, SHELL_ENDS[SERVER], used, seconds, lambda bps: shape_shell(network, bps)
                        ))
        middle = {name: _median(each) for name, each in found.items()}
        ours = middle.pop("delay line")
        for name, theirs in middle.items():
            report(
                bench="mahimahi_ratios", beside=name,
                rtt_error_p50_less_ms=theirs.rtt_error_ms[0] - ours.rtt_error_ms[0],
                rtt_error_p99_less_ms=theirs.rtt_error_ms[1] - ours.rtt_error_ms[1],
                fast_ratio=ours.fast[0] / theirs.fast[0], fast_machine_ratio=ours.fast[1] / theirs.fast[1],
                slow_ratio=ours.slow[0] / theirs.slow[0], slow_machine_ratio=ours.slow[1] / theirs.slow[1],
            )


def _median(each: list[Measured]) -> Measured:
    fields = {
        f.name: tuple(statistics.median(values) for values in zip(*(getattr(m, f.name) for m in each), strict=True))
        for f in dataclasses.fields(Measured)
    }
    return Measured(**fields)


_SENDER = """
import os, resource, socket, sys, time
s = socket.create_connection((os.environ["MAHIMAHI_BASE"], int(sys.argv[1])))
end, block = time.monotonic() + float(sys.argv[2]), bytes(1 << 18)
while time.monotonic() < end:
    s.sendall(block)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


def mahimahi(seconds: float = 5.0) -> None:
    """mm-delay, and mm-link inside it, at the same RTT: its error, and bits a second of CPU time."""
    if not shutil.which("mm-delay"):
        report(bench="mahimahi", absent="mm-delay is not on PATH")
        return
    half_ms = str(round(1e3 * RTT_S / 2))
    done = subprocess.run(["mm-delay", half_ms, "sh", "-c", "ping -c 200 -i 0.02 -q $MAHIMAHI_BASE"], user="nobody",
                          capture_output=True, text=True, check=True)
    mean_ms = float(done.stdout.rpartition("= ")[2].split("/")[1])
    report(bench="mahimahi_rtt", asked_ms=1e3 * RTT_S, error_mean_ms=mean_ms - 1e3 * RTT_S)
    with tempfile.TemporaryDirectory() as folder:
        _mahimahi_throughput({"mm-delay": ["mm-delay", half_ms]}, Path(folder), seconds)


def _mahimahi_throughput(shells: dict[str, list[str]], folder: Path, seconds: float) -> None:
    if shutil.which("mm-link"):
        trace = folder / "full"
        trace.write_text("\n".join(str(1 + i // 83) for i in range(83_000)) + "\n")  # 83 packets a ms: 1 Gbit/s
        trace.parent.chmod(0o755)
        shells["mm-link"] = ["mm-link", str(trace), str(trace), "--"]
    else:
        report(bench="mahimahi", absent="mm-link is not on PATH")
    for name, shell in shells.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with socket.create_server(("0.0.0.0", 0)) as server:
            argv = [*shell, sys.executable, "-c", _SENDER, str(server.getsockname()[1]), str(seconds)]
            with subprocess.Popen(argv, user="nobody", stdout=subprocess.PIPE, text=True) as process:
                flow, _ = server.accept()
                with flow:
                    began, received = time.monotonic(), 0
                    while chunk := flow.recv(1 << 20):
                        received += len(chunk)
                    took = time.monotonic() - began
                sender_s = float(process.stdout.read().strip() or 0)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - sender_s
        report(bench="mahimahi_throughput", of=name, mbps=8e-6 * received / took,
               mbps_per_core=8e-6 * received / cpu_s if cpu_s > 0 else None)


if __name__ == "__main__":
    beside_packet_shells()
    mahimahi()
