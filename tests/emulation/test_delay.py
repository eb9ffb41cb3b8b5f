"""The delay line on a real network: delay, jitter, loss and order as set, changes, and its own faults."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from steady import RTT_MS, measured
from traffic import Flow, ping_ms, socket_in

from testbed.cluster import SharedLink
from testbed.emulation.delay.base import DelayBackend
from testbed.emulation.delay.compiled_line import CHOICE, library_path
from testbed.emulation.delay.netem import NetemBackend
from testbed.emulation.delay.nfqueue import NfqueueBackend
from testbed.emulation.kernel.namespaces import run_in
from testbed.emulation.machine.capabilities import Capabilities
from testbed.errors import TestbedError
from testbed.scenario.link_model import PathDelay

pytestmark = [pytest.mark.emulation, measured]
FAST = {"up_mbps": 1000, "down_mbps": 1000}


BACKENDS = {"nfqueue": NfqueueBackend, "netem": NetemBackend}


@pytest.fixture(params=BACKENDS)
def delay(request, capabilities: Capabilities) -> Iterator[Callable[..., DelayBackend]]:
    """Starts delay lines on networks: delay(network, delays, seed=1)."""
    found = capabilities.delay[request.param]
    if not found.available:
        pytest.skip(f"{request.param}: {found.how}")
    with contextlib.ExitStack() as stack:

        def start(network, delays: dict[str, PathDelay], seed: int = 1) -> DelayBackend:
            backend = BACKENDS[request.param]()
            stack.callback(backend.stop)
            backend.start(network.delay_ports(), delays, network.shared_ports(), seed)
            return backend

        yield start


nfqueue_only = pytest.mark.parametrize("delay", ["nfqueue"], indirect=True)


def one_way(network, source: str, target: str, count: int, gap_s: float = 0.0) -> list[tuple[int, float]]:
    """Numbered UDP packets from source to target: (number, seconds on the way) of each, as they arrive."""
    with socket_in(network.hosts[source].netns, 2) as near, socket_in(network.hosts[target].netns, 2) as far:
        far.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE: none may be lost at the end
        far.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS: when the kernel got it, not when we look
        far.bind((network.hosts[target].ip, 0))
        near.connect(far.getsockname())
        for number in range(count):
            near.send(struct.pack("!IQ", number, time.time_ns()))
            time.sleep(gap_s)
        far.settimeout(0.5)
        arrived = []
        with contextlib.suppress(TimeoutError):
            while True:
                data, extra, _, _ = far.recvmsg(64, 64)
                number, sent_ns = struct.unpack("!IQ", data)
                seconds, ns = struct.unpack("ll", extra[0][2])
                arrived.append((number, (seconds * 1_000_000_000 + ns - sent_ns) * 1e-9))
    return arrived


def rule_present(network) -> bool:
    """Whether the kernel of the run's namespace still hands packets to a queue."""
    from testbed.emulation.delay import netfilter
    from testbed.emulation.kernel.namespaces import in_thread, inside

    def look() -> bool:
        with inside(network.net_namespace), netfilter.open_socket() as sock:
            return netfilter.has_rule(sock)

    return in_thread(look)


def traces_left(network) -> list[str]:
    """What a delay line has put into the run's namespace and not taken away."""
    shown = [run_in(network.net_namespace, argv.split()).stdout for argv in ("tc qdisc show", "ip -br link")]
    lines = [line for text in shown for line in text.splitlines()]
    found = [line for line in lines if "netem" in line or line.startswith("i")]
    found += [line for line in lines if "clsact" in line and "dev y" in line]
    return found + ["nf_tables rule"] * rule_present(network)


def test_round_trip_is_the_sum_of_both_access_links(build, delay):
    """By ping, which goes by the kernel's receive time: a delay behind the host's interface wouldn't show."""
    network = build(2, **FAST)
    backend = delay(network, {"h1": PathDelay(0.010, 0.004), "server": PathDelay(0.003, 0.003)})
    assert statistics.median(ping_ms(network, "h1", "server")) == pytest.approx(20, abs=RTT_MS)
    assert statistics.median(ping_ms(network, "h2", "server")) == pytest.approx(6, abs=RTT_MS)
    assert statistics.median(ping_ms(network, "h1", "h2")) == pytest.approx(14, abs=RTT_MS)
    time.sleep(0.1)
    stats = backend.stats()
    assert stats.packets == stats.released > 20
    assert (stats.lost_by_setting, stats.queued, stats.overflowed) == (0, 0, 0)
    assert stats.age_s < 1
    assert any(backend.name in line.lower() or "queue" in line for line in backend.commands())
    if backend.name == "nfqueue":
        assert 0 < stats.lag_p50_s <= stats.lag_p99_s <= stats.lag_max_s
        assert stats.cpu_s > 0


def test_shared_links_add_their_delay_between_neighbourhoods_only(build, delay):
    shared = (SharedLink("east", ("h1", "h2"), 1e9, 1e9, 0.004), SharedLink("west", ("h3",), 1e9, 1e9, 0.006))
    network = build(3, shared=shared, **FAST)
    delay(network, {name: PathDelay(0.002, 0.002) for name in network.hosts})
    assert statistics.median(ping_ms(network, "h1", "h2")) == pytest.approx(8, abs=RTT_MS + 0.5)
    assert statistics.median(ping_ms(network, "h1", "server")) == pytest.approx(16, abs=RTT_MS + 0.5)
    assert statistics.median(ping_ms(network, "h1", "h3")) == pytest.approx(28, abs=RTT_MS + 0.5)


def test_delay_adds_to_the_wait_in_a_full_bottleneck(build, delay):
    """The kernel's arrival time is taken behind the bottleneck, or the wait there would count as delay."""
    network = build(1, up_mbps=10, down_mbps=100, buffer_s=0.05)
    delay(network, {"h1": PathDelay(0.020, 0.020)})
    flow = Flow(network, "h1", "server")
    try:
        time.sleep(1.0)
        busy = statistics.median(ping_ms(network, "h1", "server"))
    finally:
        flow.stop()
    assert 60 < busy < 95


def test_changes_hold_at_once_and_zero_resets(build, delay):
    network = build(1, **FAST)
    backend = delay(network, {"h1": PathDelay(0.005, 0.005)})
    for each_way_ms in (20, 2, 0, 8):
        backend.set({"h1": PathDelay(each_way_ms / 1e3, each_way_ms / 1e3)})
        median = statistics.median(ping_ms(network, "h1", "server"))
        assert median == pytest.approx(2 * each_way_ms, abs=RTT_MS)
    backend.set({"h1": PathDelay(up_loss=1.0)})
    assert one_way(network, "h1", "server", 20) == []
    backend.set({"h1": PathDelay()})
    assert len(one_way(network, "h1", "server", 20)) == 20
    with pytest.raises(KeyError):
        backend.set({"nobody": PathDelay()})


def test_loss_is_within_its_binomial_interval_and_repeats_from_the_seed(build, delay):
    network, count, p = build(1, **FAST), 4000, 0.05
    patterns = []
    for seed in (2, 2, 6):
        backend = delay(network, {"h1": PathDelay(0.001, 0.001, up_loss=p)}, seed)
        patterns.append({number for number, _ in one_way(network, "h1", "server", count)})
        lost = count - len(patterns[-1])
        assert abs(lost - count * p) <= 1.96 * math.sqrt(count * p * (1 - p))
        time.sleep(0.1)
        assert backend.stats().lost_by_setting == lost
        backend.stop()
    assert patterns[0] != patterns[2]
    assert (patterns[0] == patterns[1]) == backend.seeded


def test_jitter_has_the_deviation_set_and_keeps_the_order(build, delay):
    network = build(1, **FAST)
    delay(network, {"h1": PathDelay(0.030, 0, up_jitter_s=0.003)})
    spaced = [seconds for _, seconds in one_way(network, "h1", "server", 150, gap_s=0.012)]
    assert statistics.fmean(spaced) == pytest.approx(0.030, abs=0.0012)
    assert statistics.stdev(spaced) == pytest.approx(0.003, rel=0.3)
    dense = [number for number, _ in one_way(network, "h1", "server", 3000)]
    assert dense == list(range(3000))


def test_reordering_happens_only_when_asked_for(build, delay):
    network = build(1, **FAST)
    delay(network, {"h1": PathDelay(0.010, 0, up_jitter_s=0.002, reorder=0.3)})
    numbers = [number for number, _ in one_way(network, "h1", "server", 1000)]
    assert sorted(numbers) == list(range(1000))
    assert numbers != sorted(numbers)


def test_a_second_start_is_refused_and_the_first_goes_on(build, delay):
    network = build(1, **FAST)
    backend = delay(network, {"h1": PathDelay(0.005, 0.005)})
    with pytest.raises(RuntimeError):
        backend.start(network.delay_ports(), {}, {}, 1)
    with pytest.raises(TestbedError):
        type(backend)().start(network.delay_ports(), {}, {}, 1)
    assert statistics.median(ping_ms(network, "h1", "server")) == pytest.approx(10, abs=RTT_MS)


def test_stop_removes_the_rule_and_traffic_flows_undelayed(build, delay):
    network = build(1, **FAST)
    backend = delay(network, {"h1": PathDelay(0.05, 0.05)})
    before, pid = traces_left(network), backend.pid
    backend.stop()
    backend.stop()
    assert before
    assert not traces_left(network)
    assert not os.path.exists(f"/proc/{pid}")
    assert statistics.median(ping_ms(network, "h1", "server")) < 3 + RTT_MS


@nfqueue_only
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_a_stuck_or_dead_daemon_is_noticed_and_stop_still_ends_and_removes(build, delay, fault):
    network = build(1, **FAST)
    backend = delay(network, {"h1": PathDelay(0.005, 0.005)})
    os.kill(backend.pid, fault)
    time.sleep(0.5)
    assert backend.stats().age_s > 0.3
    assert backend.alive == (fault == signal.SIGSTOP)
    assert one_way(network, "h1", "server", 5) == []  # rather nothing than packets without their delay
    began = time.monotonic()
    backend.stop()
    assert time.monotonic() - began < 10
    assert not rule_present(network)


@nfqueue_only
@pytest.mark.parametrize("loop", ["python", "compiled"])
def test_packets_that_the_kernel_gives_up_while_they_wait_are_forgotten(build, delay, loop, monkeypatch):
    """It drops those for an interface that goes down, and answers their verdicts with errors, which are no packets."""
    if loop == "compiled" and library_path() is None:
        pytest.skip("the compiled loop was not built")
    monkeypatch.setenv(CHOICE, loop)
    network = build(2, **FAST)
    backend = delay(network, {"h1": PathDelay(0.1, 0.1), "h2": PathDelay(0.1, 0.1)})
    assert one_way(network, "h1", "h2", 1)
    port = network.delay_ports()["h2"].bridge_port
    with socket_in(network.hosts["h1"].netns, 2) as near:
        near.connect((network.hosts["h2"].ip, 9))
        for _ in range(20):
            near.send(b"x")
    run_in(network.net_namespace, ["ip", "link", "set", port, "down"], check=True)
    time.sleep(0.4)
    run_in(network.net_namespace, ["ip", "link", "set", port, "up"], check=True)
    assert len(one_way(network, "h1", "h2", 5)) == 5
    before = backend.stats()
    time.sleep(0.4)
    after = backend.stats()
    assert backend.alive
    assert after.queued == 0
    assert after.packets - before.packets < 20  # a few of ARP's and of those above at most
    assert after.packets < 80


def test_the_daemon_ends_with_its_parent(build, capabilities, tmp_path):
    """As after SIGKILL of a run: nobody tells it, and nobody closes its socket."""
    if not capabilities.delay["nfqueue"].available:
        pytest.skip(f"NFQUEUE: {capabilities.delay['nfqueue'].how}")
    network = build(1, **FAST)
    told = tmp_path / "pid"
    child = os.fork()
    if not child:
        try:
            backend = NfqueueBackend()
            backend.start(network.delay_ports(), {}, {}, 1)
            told.write_text(str(backend.pid))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    pid = int(told.read_text())
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid}"):
            break
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")
    assert not rule_present(network)
