"""How much this machine computes and carries, measured in a second: what an experiment's demand is held against."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from testbed.cluster import Link, LinkState, Topology
from testbed.cluster.model import SERVER
from testbed.emulation import cleanup
from testbed.emulation.machine.capabilities import Capabilities
from testbed.emulation.probing.light_traffic import FlowSpec, open_flows, saturate
from testbed.emulation.shaped import ShapedNetwork
from testbed.emulation.state import RunState
from testbed.errors import TestbedError
from testbed.measurement.host_monitor import cpu_times
from testbed.scenario.network import NetworkSettings, NetworkSetup

COMPUTE_S = 0.6
WARM_UP_S = 0.2
PAUSE_S = 0.005  # between computations, as paced workers have ...
EVICT_BYTES = 8 << 20  # ... and what other workers do meanwhile: caches are cold again
IDLE_S = 0.4
TRAFFIC_S = 1.0
TRAFFIC_BPS = 100e6


@dataclass(frozen=True)
class WorkShape:
    """The computation that a device repeats: one transformer block on `samples` sequences, there and back."""

    samples: int
    sequence: int
    d_model: int
    heads: int
    d_ff: int


@dataclass(frozen=True)
class PacketCost:
    """What it takes to shape and delay one packet, from sender to receiver.

    machine_s: CPU time of the whole machine [core-seconds]. delay_line_s: of the delay line's process, which
    has one core at most; 0 where the kernel delays.
    """

    machine_s: float
    delay_line_s: float


def compute_capacity(shape: WorkShape, cores: int) -> list[float]:
    """FLOP/s of a second of CPU time on each core while all of them train such a block, with pauses, as workers do.

    Matrix products alone are counted. One forked process a core, one torch thread each.

    Raises:
        TestbedError: a core's process failed; says why.
    """
    import torch  # noqa: F401  before the forks: once, not in each

    answers = [_answer(*child) for child in [_forked(lambda: _train_block(shape)) for _ in range(cores)]]
    wrong = [a["error"] for a in answers if "error" in a]
    if wrong and "fork" in wrong[0]:  # this process has computed gradients: torch refuses to in its children
        return _in_a_fresh_process(shape, cores)
    if wrong:
        raise TestbedError(f"the speed of this machine's cores could not be measured: {wrong[0]}")
    return [float(a["result"]) for a in answers]


def _in_a_fresh_process(shape: WorkShape, cores: int) -> list[float]:
    command = [sys.executable, "-m", __name__, json.dumps(asdict(shape)), str(cores)]
    search = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search})
    if done.returncode:
        last = (done.stderr.strip() or "no reason").splitlines()[-1]
        raise TestbedError(f"the speed of this machine's cores could not be measured: {last}")
    return json.loads(done.stdout)


def _answer(pid: int, fd: int) -> dict[str, Any]:
    with os.fdopen(fd) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(text) if text else {"error": f"its process ended with exit code {status}"}


def _forked(work: Callable[[], Any]) -> tuple[int, int]:
    """(pid, file descriptor of its answer as JSON: `result`, or `error`) of a child that does `work`."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 1
    try:  # nothing of the parent may run here: neither its clean-up nor its tests
        gc.disable()
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            try:
                answer = {"result": work()}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            pipe.write(json.dumps(answer))
        code = 0
    finally:
        os._exit(code)


def _train_block(s: WorkShape) -> float:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    d, f = s.d_model, s.d_ff
    parts = nn.ModuleList(
        [nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d), nn.Linear(d, f), nn.Linear(f, d)]
    )
    norm1, qkv, out, norm2, up, down = parts
    x = torch.randn(s.samples, s.sequence, d, requires_grad=True)

    def once() -> None:
        heads = [t.view(s.samples, s.sequence, s.heads, -1).transpose(1, 2) for t in qkv(norm1(x)).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        y = x + out(mixed.transpose(1, 2).reshape(x.shape))
        (y + down(nn.functional.gelu(up(norm2(y))))).sum().backward()

    elsewhere = torch.zeros(EVICT_BYTES // 4)
    forward = s.samples * (s.sequence * (8 * d * d + 4 * d * f) + 4 * s.sequence**2 * d)
    began = time.monotonic()
    while time.monotonic() < began + WARM_UP_S:
        once()
    count, busy_s, end = 0, 0.0, time.monotonic() + COMPUTE_S
    while time.monotonic() < end or not count:
        time.sleep(PAUSE_S)
        elsewhere.add_(1.0)
        began = time.thread_time()
        once()
        busy_s += time.thread_time() - began
        count += 1
    return 3 * forward * count / busy_s


def others_busy() -> float:
    """Cores that other programs keep busy now."""
    return _busy_s(lambda: time.sleep(IDLE_S)) / IDLE_S


def packet_cost(caps: Capabilities, delay_backend: str, seconds: float = TRAFFIC_S) -> PacketCost:
    """Send full packets through a small shaped network of its own, and count. Takes three seconds; needs root."""
    state = RunState.create(None, command="calibration")
    server = Link(1e9, 1e9, 0.001, 0.001)
    link = LinkState(TRAFFIC_BPS, TRAFFIC_BPS, 0.01)
    try:
        settings = NetworkSettings(delay_backend=delay_backend)
        setup = NetworkSetup(Topology(("h1",), server), {"h1": [(0.0, link)]}, settings)
        with ShapedNetwork(state, setup, caps=caps) as shaped:
            hosts = shaped.network.hosts
            spec = FlowSpec("h1", hosts[SERVER].netns_path, hosts["h1"].netns_path, hosts["h1"].ip, TRAFFIC_BPS)
            idle = _busy_s(lambda: time.sleep(0.3)) / 0.3  # core-seconds a second that go to others
            counters, line = shaped.network.counters()["h1"], shaped.backend.stats()
            began = time.monotonic()
            busy_s = _busy_s(lambda: _saturate(spec, seconds))
            took = time.monotonic() - began
            after, after_line = shaped.network.counters()["h1"], shaped.backend.stats()
    finally:
        cleanup.teardown(state)
    packets = sum(after[d].packets - counters[d].packets for d in ("up", "down"))
    if not packets:
        return PacketCost(0.0, 0.0)
    return PacketCost(max(0.0, busy_s - idle * took) / packets, (after_line.cpu_s - line.cpu_s) / packets)


def _saturate(spec: FlowSpec, seconds: float) -> None:
    with open_flows([spec], timeout_s=5.0) as flows:
        saturate(flows, {spec.name: seconds}, settle_s=0.5)


def _busy_s(action: Callable[[], Any]) -> float:
    """Core-seconds that the machine was busy during `action`."""
    ticks = os.sysconf("SC_CLK_TCK")
    total, idle, _ = cpu_times()
    action()
    total2, idle2, _ = cpu_times()
    return ((total2 - total) - (idle2 - idle)) / ticks


if __name__ == "__main__":
    print(json.dumps(compute_capacity(WorkShape(**json.loads(sys.argv[1])), int(sys.argv[2]))))
