"""The delay line: throughput, RTT error, rate error, start of many hosts.

    sudo python tests/bench/bench_delay.py              # the nfqueue backend, both its loops
    sudo python tests/bench/bench_delay.py --loop python --only throughput
    sudo python tests/bench/bench_delay.py --backend netem --only rtt,rate

Prints one JSON object a line. (Beside Mahimahi's way to delay: bench_mahimahi.py.) Targets: 400 Mbit/s of 1500-byte TCP through one link, RTT error at 20 ms up to
1 ms (median) and 3 ms (p99), rate error up to 2 % from 1 to 200 Mbit/s. The machine should be idle otherwise;
its load is printed with each line.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator

from testbed.cluster import Link, LinkState, Topology
from testbed.cluster.model import SERVER
from testbed.emulation import cleanup
from testbed.emulation.delay.base import DelayBackend
from testbed.emulation.delay.compiled_line import CHOICE, library_path
from testbed.emulation.network.emulated import EmulatedNetwork
from testbed.emulation.probing.echoes import echo_rtts
from testbed.emulation.probing.light_traffic import FlowSpec, open_flows, saturate
from testbed.emulation.probing.probes import probe_links
from testbed.emulation.state import RunState
from testbed.scenario.link_model import access_links, server_delay
from testbed.scenario.network import NetworkSettings

CORE = Link(2e9, 2e9, 0.001, 0.001)
RTT_S = 0.020
LOOPS = ["compiled", "python"]
RATES_MBPS = (1, 2, 5, 10, 20, 50, 100, 200)


def make(backend: str) -> DelayBackend:
    if backend == "netem":
        from testbed.emulation.delay.netem import NetemBackend

        return NetemBackend()
    from testbed.emulation.delay.nfqueue import NfqueueBackend

    return NfqueueBackend()


@contextlib.contextmanager
def shaped(backend: str, states: dict[str, LinkState]) -> Iterator[tuple[EmulatedNetwork, DelayBackend]]:
    """A star of homes with these links, delayed."""
    state = RunState.create(command="bench_delay")
    access = access_links(states, CORE)
    links = {home: a.link for home, a in access.items()}
    line = make(backend)
    try:
        with EmulatedNetwork(state, Topology(tuple(states), CORE), links, NetworkSettings()) as network:
            delays = {home: a.delay for home, a in access.items()} | {SERVER: server_delay(CORE)}
            try:
                line.start(network.delay_ports(), delays, network.shared_ports(), 1)
                yield network, line
            finally:
                line.stop()
    finally:
        cleanup.teardown(state)


def report(**fields) -> None:
    fields["load_1min"] = round(os.getloadavg()[0], 2)
    print(json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in fields.items()}), flush=True)


def flow(network: EmulatedNetwork, source: str, sink: str, rate_bps: float) -> FlowSpec:
    hosts = network.hosts
    return FlowSpec(source, hosts[source].netns_path, hosts[sink].netns_path, hosts[sink].ip, rate_bps)


def pump(near: socket.socket, far: socket.socket, warm_up_s: float, seconds: float) -> float:
    """Send from a process of its own and receive here; payload rate after the warm-up [bit/s]."""
    near.setblocking(True)
    far.setblocking(True)
    pid = os.fork()
    if not pid:
        block = bytes(1 << 18)
        with contextlib.suppress(OSError):
            while True:
                near.sendall(block)
        os._exit(0)
    try:
        buffer, received, start = bytearray(1 << 20), 0, None
        begin = now = time.monotonic()
        while now < begin + warm_up_s + seconds:
            count = far.recv_into(buffer)
            now = time.monotonic()
            if start is not None:
                received += count
            elif now >= begin + warm_up_s:
                start = now
        return 8 * received / (now - start)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def throughput(backend: str, seconds: float = 5.0) -> None:
    """One TCP flow through one link: as fast as it goes, and at set rates; and what a packet costs, in each loop."""
    if backend == "netem":
        _throughput(backend, "kernel", seconds)
        return
    before = os.environ.get(CHOICE)
    for loop in [before] if before else LOOPS if library_path() else ["python"]:
        os.environ[CHOICE] = loop
        try:
            _throughput(backend, loop, seconds)
        finally:
            os.environ.pop(CHOICE)
            if before:
                os.environ[CHOICE] = before


def _throughput(backend: str, loop: str, seconds: float) -> None:
    for rate_bps, source, sink in ((1e9, "h1", SERVER), (1e9, SERVER, "h1"), (4e8, SERVER, "h1"), (2e8, SERVER, "h1")):
        with shaped(backend, {"h1": LinkState(rate_bps, rate_bps, RTT_S)}) as (network, line):
            line.stats()
            before, began = line.stats(), time.monotonic()
            spec = dataclasses.replace(flow(network, source, sink, rate_bps), paced=False)
            with open_flows([spec]) as (one,):
                bps = pump(one.sender, one.receiver, 2.0, seconds)
            time.sleep(0.1)
            after, took = line.stats(), time.monotonic() - began
            packets, cpu_s = after.packets - before.packets, after.cpu_s - before.cpu_s
            report(
                bench="delay_throughput",
                backend=backend,
                loop=loop,
                direction="up" if sink == SERVER else "down",
                set_mbps=rate_bps / 1e6,
                mbps=bps / 1e6,
                target_mbps=min(400, 0.98 * rate_bps / 1e6),
                met=bps >= min(400e6, 0.98 * rate_bps),
                packets_per_s=packets / took,
                daemon_cpu=cpu_s / took,
                packets_per_s_per_core=packets / cpu_s if cpu_s else None,
                lag_p50_ms=1e3 * after.lag_p50_s,
                lag_p99_ms=1e3 * after.lag_p99_s,
                lag_max_ms=1e3 * after.lag_max_s,
                overflowed=after.overflowed,
            )


def rtt_errors_ms(netns: str, address: str, count: int = 300) -> tuple[list[float], float, float]:
    """By how much echo requests to that address take longer than RTT_S: all, ascending; median; 99th percentile."""
    found = echo_rtts([("h1", netns, address)], count=count, interval_s=0.01, wait_s=0.5)["h1"]
    errors = sorted(1e3 * (x - RTT_S) for x in found)
    return errors, statistics.median(errors), errors[int(0.99 * (len(errors) - 1))]


def rtt(backend: str, count: int = 300) -> None:
    """Echo requests at 20 ms: on a quiet line, and while another home's 50 Mbit/s pass the same one."""
    states = {"h1": LinkState(100e6, 20e6, RTT_S), "h2": LinkState(50e6, 20e6, RTT_S)}
    with shaped(backend, states) as (network, _):
        for busy in (False, True):
            with open_flows([flow(network, SERVER, "h2", 50e6)] if busy else []) as flows:
                if busy:
                    pid = os.fork()
                    if not pid:
                        saturate(flows, {SERVER: count * 0.01 + 2.0}, settle_s=0.5)
                        os._exit(0)
                    time.sleep(1.0)
                errors, p50, p99 = rtt_errors_ms(network.hosts["h1"].netns_path, network.hosts[SERVER].ip, count)
                if busy:
                    os.waitpid(pid, 0)
            report(
                bench="delay_rtt",
                backend=backend,
                busy=busy,
                answers=len(errors),
                asked_ms=1e3 * RTT_S,
                error_p50_ms=p50,
                error_p99_ms=p99,
                error_min_ms=errors[0],
                error_max_ms=errors[-1],
                met=abs(p50) <= 1 and abs(p99) <= 3,
            )


def rate(backend: str) -> None:
    """TCP goodput against the set rate, each alone, in both directions."""
    states = {f"r{mbps}": LinkState(mbps * 1e6, mbps * 1e6, RTT_S) for mbps in RATES_MBPS}
    core = LinkState(CORE.downlink_bps, CORE.uplink_bps, CORE.uplink_delay_s + CORE.downlink_delay_s)
    worst = 0.0
    with shaped(backend, states) as (network, _):
        for home, state in states.items():
            for result in probe_links(network, {home: state}, server=core, seconds=2.0):
                if result.quantity == "rtt":
                    continue
                error = result.measured / result.set - 1
                worst = max(worst, abs(error))
                report(
                    bench="delay_rate",
                    backend=backend,
                    quantity=result.quantity,
                    set_mbps=result.set / 1e6,
                    measured_mbps=result.measured / 1e6,
                    error=error,
                )
    report(bench="delay_rate_worst", backend=backend, error=worst, target=0.02, met=worst <= 0.02)


def start(backend: str, homes: int = 256) -> None:
    """Put delay lines in place for many homes, change them all at once, remove them."""
    states = {f"h{i}": LinkState(50e6, 10e6, 0.03) for i in range(homes)}
    access = access_links(states, CORE)
    state = RunState.create(command="bench_delay")
    line = make(backend)
    links = {home: a.link for home, a in access.items()}
    try:
        with EmulatedNetwork(state, Topology(tuple(states), CORE), links, NetworkSettings()) as network:
            laps = [time.perf_counter()]
            try:
                line.start(network.delay_ports(), {h: a.delay for h, a in access.items()}, {}, 1)
                laps.append(time.perf_counter())
                line.set({h: a.delay for h, a in access.items()})
                laps.append(time.perf_counter())
            finally:
                line.stop()
            laps.append(time.perf_counter())
    finally:
        cleanup.teardown(state)
    report(
        bench="delay_start",
        backend=backend,
        homes=homes,
        start_s=laps[1] - laps[0],
        set_all_s=laps[2] - laps[1],
        stop_s=laps[3] - laps[2],
    )


BENCHES = {"throughput": throughput, "rtt": rtt, "rate": rate, "start": start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=("nfqueue", "netem"), default="nfqueue")
    parser.add_argument("--only", default=",".join(BENCHES), help="some of: " + ", ".join(BENCHES))
    parser.add_argument("--loop", choices=LOOPS, help="of the nfqueue backend alone (default: both where both are)")
    args = parser.parse_args()
    if args.loop:
        os.environ[CHOICE] = args.loop
    for name in args.only.split(","):
        BENCHES[name.strip()](args.backend)


if __name__ == "__main__":
    main()
