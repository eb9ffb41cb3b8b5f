"""The delay line beside Mahimahi's way to delay: RTT error, and packets a second of processor time, in the same run.

    sudo python tests/bench/bench_mahimahi.py

Mahimahi's shells are a TUN device at each end and a process that reads, holds and writes single packets. One like
that (packet_shell.c, needs a C compiler) is measured between the same two hosts as the delay line, with an exact
clock and with Mahimahi's own of whole milliseconds. Where mm-delay is on PATH, it is measured as well, from the same
host and behind the same bottleneck; with mm-link, behind Mahimahi's own. What is absent is said. Prints one JSON object
a line, ratios last: of RTT error, theirs - ours [ms]; of packets per core, ours / theirs, once for the processor time of
the delaying process (with mm-link: and of that) and once for all that the machine used beyond its idle state (sender,
receiver, bottlenecks and bridge included).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pwd
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench_delay import RTT_S, pump, report, rtt_errors_ms, shaped

from testbed.cluster import Link, LinkState
from testbed.cluster.model import SERVER
from testbed.emulation.delay.base import DelayBackend
from testbed.emulation.kernel.namespaces import inside, run_in
from testbed.emulation.network.emulated import EmulatedNetwork
from testbed.emulation.network.shaping import add_bottleneck, shape
from testbed.emulation.probing.light_traffic import FlowSpec, open_flows
from testbed.processes import stat_fields

SHELL_SOURCE = Path(__file__).with_name("packet_shell.c")
SHELL_ENDS = {"h1": "10.99.0.1", SERVER: "10.99.0.2"}
FAST_BPS, SLOW_BPS = 1e9, 2e8
BUFFER_S = 0.1
ROUNDS = 3  # each takes its turn in each: machines change their speed
Used = tuple[int, float]  # packets passed and processor time [s], since the start


@dataclasses.dataclass(frozen=True)
class Route:
    """Where a flow starts and ends (paths of namespaces), the address of its end, and what the delay has used."""

    source: str
    sink: str
    address: str
    used: Callable[[], Used]


Contender = Callable[[EmulatedNetwork, float], contextlib.AbstractContextManager[Route]]  # at a rate [bit/s]


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


def delay_line(line: DelayBackend) -> Contender:
    """Ours, between h1 and the server."""

    @contextlib.contextmanager
    def at(network: EmulatedNetwork, rate_bps: float) -> Iterator[Route]:
        network.set_links({"h1": Link(rate_bps, rate_bps)})
        h1, server = network.hosts["h1"], network.hosts[SERVER]
        yield Route(h1.netns_path, server.netns_path, server.ip, lambda: (line.stats().packets, line.stats().cpu_s))

    return at


def packet_shell(program: Path, tick_us: int) -> Contender:
    """A packet shell between h1 and the server."""

    @contextlib.contextmanager
    def at(network: EmulatedNetwork, rate_bps: float) -> Iterator[Route]:
        ends = {host: network.hosts[host].netns_path for host in SHELL_ENDS}
        argv = [program, *ends.values(), str(round(5e5 * RTT_S)), str(tick_us)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
            try:
                if shell.stdout.readline() != "ready\n":
                    raise SystemExit("the packet shell did not start")
                for host, netns in ends.items():
                    run_in(netns, ["ip", "link", "set", "shell0", "up"], check=True)
                    run_in(netns, ["ip", "address", "add", f"{SHELL_ENDS[host]}/24", "dev", "shell0"], check=True)
                    run_in(
                        netns,
                        ["ip", "route", "change", "10.99.0.0/24", "dev", "shell0", "congctl", "cubic"],
                        check=True,
                    )
                    add_bottleneck_to(netns, "shell0", rate_bps)
                yield Route(*ends.values(), SHELL_ENDS[SERVER], _used("shell0", ends["h1"], _descendants(shell.pid)))
            finally:
                shell.stdin.close()
                shell.wait()

    return at


@contextlib.contextmanager
def mahimahi(network: EmulatedNetwork, rate_bps: float, *, link: bool = False) -> Iterator[Route]:
    """mm-delay in h1's namespace, around one of its own; with mm-link in it, or else behind bottlenecks like ours."""
    outside = network.hosts["h1"].netns_path
    with contextlib.ExitStack() as stack:
        argv = ["mm-delay", str(round(5e2 * RTT_S))]
        if link:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.chmod(0o755)
            per_s = round(rate_bps / 12_000)
            trace = folder / "trace"
            trace.write_text("".join(f"{1 + 1000 * i // per_s}\n" for i in range(per_s)))
            argv += ["mm-link", str(trace), str(trace)]
            for way in ("uplink", "downlink"):
                argv += [f"--{way}-queue=droptail", f"--{way}-queue-args=bytes={round(rate_bps / 8 * BUFFER_S)}"]
            argv.append("--")
        with inside(outside):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # it asks for that
            shell = stack.enter_context(
                subprocess.Popen(
                    [*argv, "cat"],
                    user="nobody",
                    group=pwd.getpwnam("nobody").pw_gid,
                    extra_groups=[],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        stack.callback(shell.stdin.close)  # ends `cat`, and the shells with it
        print(file=shell.stdin, flush=True)
        if not shell.stdout.readline():
            raise SystemExit(f"{argv[0]} did not start")
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in [shell.pid, *_descendants(shell.pid)]}
        within = next(f"/proc/{pid}/ns/net" for pid, name in names.items() if name == "cat")
        shells = [pid for pid, name in names.items() if name.startswith("mm-")]
        address, device = _tunnel(outside)
        if not link:
            for netns, name in ((outside, device), (within, _tunnel(within)[1])):
                add_bottleneck_to(netns, name, rate_bps)
        yield Route(within, outside, address, _used(device, outside, shells))


def _tunnel(netns: str) -> tuple[str, str]:
    """(address, name) of a namespace's point-to-point interface."""
    for each in json.loads(run_in(netns, ["ip", "-j", "-4", "address", "show"], check=True).stdout):
        if "POINTOPOINT" in each["flags"]:
            return each["addr_info"][0]["local"], each["ifname"]
    raise SystemExit("no interface of a Mahimahi shell")


def add_bottleneck_to(netns: str, interface: str, rate_bps: float) -> None:
    """A bottleneck like the one ahead of the delay line; single packets go through it."""
    run_in(netns, ["ip", "link", "set", interface, "txqueuelen", "10000", "gso_max_segs", "1"], check=True)
    commands = "\n".join(add_bottleneck(interface, shape(rate_bps, BUFFER_S)))
    run_in(netns, ["tc", "-batch", "-"], input=commands, check=True)


def _descendants(pid: int) -> list[int]:
    """Its children with theirs, each parent ahead of them."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for child in children for each in (child, *_descendants(child))]


def _used(interface: str, netns: str, pids: list[int]) -> Callable[[], Used]:
    def used() -> Used:
        found = run_in(netns, ["ip", "-j", "-s", "link", "show", interface], check=True).stdout
        passed = json.loads(found)[0]["stats64"]
        return passed["rx"]["packets"] + passed["tx"]["packets"], sum(map(_cpu_s, pids))

    return used


def _cpu_s(pid: int) -> float:
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


def measure(name: str, contender: Contender, network: EmulatedNetwork, seconds: float) -> Measured:
    costs = []
    for rate_bps in (FAST_BPS, SLOW_BPS):
        with contender(network, rate_bps) as route:
            if rate_bps == FAST_BPS:
                errors, p50, p99 = rtt_errors_ms(route.source, route.address)
                report(bench="mahimahi_rtt", of=name, answers=len(errors), error_p50_ms=p50, error_p99_ms=p99)
            spec = FlowSpec("h1", route.source, route.sink, route.address, rate_bps)
            bps, per_core_bps, own, machine = per_core(spec, route.used, seconds)
        report(
            bench="mahimahi_throughput",
            of=name,
            set_mbps=rate_bps / 1e6,
            mbps=bps / 1e6,
            mbps_per_core=per_core_bps / 1e6,
            packets_per_s_per_core=own,
            machine_packets_per_s_per_core=machine,
        )
        costs.append((own, machine))
    return Measured((p50, p99), *costs)


def beside_packet_shells(seconds: float = 4.0) -> None:
    """Delay line and packet shells, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        contenders: dict[str, Contender] = {}
        if program := build_shell(Path(folder)):
            contenders |= {
                "packet shell": packet_shell(program, 1),
                "packet shell, whole ms": packet_shell(program, 1000),
            }
        else:
            report(bench="mahimahi", absent="no C compiler for packet_shell.c")
        if shutil.which("mm-delay"):
            contenders["mm-delay"] = mahimahi
            if shutil.which("mm-link"):
                contenders["mm-delay, mm-link"] = functools.partial(mahimahi, link=True)
        for tool in ("mm-delay", "mm-link"):
            if not shutil.which(tool):
                report(bench="mahimahi", absent=f"{tool} is not on PATH")
        found: dict[str, list[Measured]] = {}
        for _ in range(ROUNDS if contenders else 0):
            with shaped("nfqueue", {"h1": LinkState(FAST_BPS, FAST_BPS, RTT_S)}) as (network, line):
                for name, contender in {"delay line": delay_line(line), **contenders}.items():
                    found.setdefault(name, []).append(measure(name, contender, network, seconds))
        middle = {name: _median(each) for name, each in found.items()}
        for name, theirs in middle.items():
            if (ours := middle["delay line"]) is not theirs:
                report(
                    bench="mahimahi_ratios",
                    beside=name,
                    rtt_error_p50_less_ms=theirs.rtt_error_ms[0] - ours.rtt_error_ms[0],
                    rtt_error_p99_less_ms=theirs.rtt_error_ms[1] - ours.rtt_error_ms[1],
                    fast_ratio=ours.fast[0] / theirs.fast[0],
                    fast_machine_ratio=ours.fast[1] / theirs.fast[1],
                    slow_ratio=ours.slow[0] / theirs.slow[0],
                    slow_machine_ratio=ours.slow[1] / theirs.slow[1],
                )


def _median(each: list[Measured]) -> Measured:
    fields = {
        f.name: tuple(statistics.median(values) for values in zip(*(getattr(m, f.name) for m in each), strict=True))
        for f in dataclasses.fields(Measured)
    }
    return Measured(**fields)


if __name__ == "__main__":
    beside_packet_shells()
