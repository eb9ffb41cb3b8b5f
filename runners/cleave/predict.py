"""Predicts a step by running it: the server's own code, on tensors without data, against devices that are arithmetic.

So the prediction has everything that the run will have: which products wait for which, tasks in flight, pieces,
weights sent
ahead, blocks that are there already. What the devices, links and TCP do is a model, a first-in first-out queue for
each: the
server's event loop and link, a device's downlink, its processor, its uplink.

TCP's slow start and idle restart are `testbed.cluster.tcp`'s: on home links a few round trips for the first message
and nothing while the traffic goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from runners.cleave.capture import layer_graph, products
from runners.cleave.options import CleaveOptions
from runners.cleave.planned import Plans
from runners.cleave.precision import Codec
from runners.cleave.products import RESULT
from runners.cleave.server import Server
from runners.costs import layer_costs
from runners.models.gpt import layer_count
from runners.planning.gemm import default_rates
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.cluster.tcp import Window
from testbed.runtime import Message, Plan
from testbed.runtime.local_node import VirtualClock

BUFFER_S = 0.1  # of the bottleneck's queue, where the experiment does not say otherwise
# Real seconds that the emulation's own software takes: a message in an event loop, a computation in its thread.
MESSAGE_S = 150e-6
BYTE_S = 0.5e-9
HOP_S = 300e-6
MOST_DEVICES = 64  # of more, a step is the sum of its products' makespans: seconds of arithmetic otherwise
STEPS = 2  # the first has cold connections and knows no rates; the last one counts


class TcpPath:
    """One direction of a connection: how long messages take to the far end of its bottleneck, one after the other."""

    def __init__(self, rate_bps: float, delay_s: float, back_s: float):
        self._rate = rate_bps / 8
        self._delay = delay_s
        self._rtt = delay_s + back_s
        self._window = Window()
        self._free_s = 0.0

    def deliver(self, nbytes: float, at_s: float) -> float:
        """When the last byte of a message handed over at `at_s` arrives."""
        if at_s > self._free_s:  # it was idle: another burst
            self._window.end(self._rate, self._rtt, BUFFER_S, self._free_s)
            self._window.begin(self._rtt, at_s)
        self._free_s = max(at_s, self._free_s) + nbytes / self._rate
        self._free_s += self._window.pause(nbytes, self._rate, self._rtt)
        return self._free_s + self._delay


class _Device:
    def __init__(self, flops: float, down: TcpPath, up: TcpPath):
        self.flops, self.down, self.up = flops, down, up
        self.free_s = 0.0
        self.kept: dict[int, tuple[int, ...]] = {}  # shapes of what it keeps

    def product(self, tensors: Sequence[torch.Tensor], meta: dict[str, Any], parts: int) -> tuple[int, ...]:
        """Shape of a task's result."""
        left = self._operand(meta["a"], tensors[:parts])
        right = self._operand(meta["b"], tensors[-parts:])
        return (*left[:-1], right[-1])

    def _operand(self, spec: Sequence[int], tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        have, keep, turned = spec[:3]
        if not have:
            shape = tuple(tensors[0].shape)
            if keep:
                self.kept[keep] = shape
        elif len(spec) > 3:
            sizes = tuple(b - a for a, b in zip(spec[3::2], spec[4::2]))
            shape = sizes if len(self.kept[have]) == 3 else sizes[1:]
        else:
            shape = self.kept[have]
        return (*shape[:-2], shape[-1], shape[-2]) if turned else shape


class _Membership:
    def __init__(self, names: Sequence[str]):
        self._alive = dict.fromkeys(names, 1)

    @property
    def alive(self) -> Mapping[str, int]:
        return MappingProxyType(self._alive)

    async def next_event(self):
        await asyncio.Event().wait()


class ModelNode:
    """The server's node, in virtual time, with modelled devices behind it: a `runtime.Node` for one coordinator."""

    def __init__(self, cluster: Cluster, clock: VirtualClock, codec: Codec):
        self.name, self.device = cluster.server.name, cluster.server
        self.membership = _Membership([d.name for d in cluster.devices])
        self.events: list[dict[str, Any]] = []
        self._clock, self._codec = clock, codec
        self._devices = {
            name: _Device(
                r.flops, TcpPath(r.downlink_bps, r.downlink_delay_s, r.uplink_delay_s),
                TcpPath(r.uplink_bps, r.uplink_delay_s, r.downlink_delay_s),
            ) for name, r in default_rates(cluster).items()
        }  # fmt: skip
        self._results: asyncio.Queue[Message] = asyncio.Queue()
        self._lock = asyncio.Lock()
        self._loop_free_s = self._out_free_s = self._in_free_s = 0.0

    async def send(self, to: str, tag: str, tensors: Sequence[torch.Tensor] = (), **meta: Any) -> None:
        nbytes = 200.0 + sum(t.nbytes for t in tensors)
        device, link = self._devices[to], self.device.link
        self._loop_free_s = max(self.now(), self._loop_free_s) + MESSAGE_S + BYTE_S * nbytes
        start = self._loop_free_s
        # devices' flows share the server's link: it holds up only what all of them together can't get through it
        self._out_free_s = max(start, self._out_free_s) + 8 * nbytes / link.uplink_bps
        received = max(device.down.deliver(nbytes, start), self._out_free_s)
        if "i" not in meta:
            if "s" in meta:
                device.kept[meta["s"]] = tuple(tensors[0].shape)
            return
        began = max(received + MESSAGE_S, device.free_s)
        device.free_s = began + meta["f"] / device.flops + HOP_S
        result = torch.empty(device.product(tensors, meta, self._codec.parts), dtype=self._codec.dtype, device="meta")
        back = 200.0 + self._codec.nbytes(result.numel())
        arrived = device.up.deliver(back, device.free_s + MESSAGE_S)
        self._in_free_s = max(self._in_free_s, arrived - 8 * back / link.downlink_bps) + 8 * back / link.downlink_bps
        self._loop_free_s = max(self._loop_free_s, self.now())
        message = Message(to, RESULT, [result], {"i": meta["i"], "t": [received, began, device.free_s]}, 1, int(back),
                          device.free_s, self._in_free_s)  # fmt: skip
        self._clock.call_at(self._in_free_s + MESSAGE_S, lambda: self._results.put_nowait(message))

    async def recv(self, source: str | None, tag: str) -> Message:
        return await self._results.get()

    async def compute(self, fn: Callable[..., Any], *args: Any, flops: float, label: str = "compute") -> Any:
        async with self._lock:
            result = fn(*args)
            await self._clock.sleep(flops / self.device.flops + HOP_S)
        return result

    def now(self) -> float:
        return self._clock.now

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def record(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


@dataclass(frozen=True)
class Prediction:
    """A step in the steady state. Bytes are of message contents; by device: down (to it), up (from it)."""

    step_time_s: float
    server_out_bytes: int
    server_in_bytes: int
    saved_bytes: int
    messages: int
    down_bytes: dict[str, int]
    up_bytes: dict[str, int]


def predict(cluster: Cluster, model: ModelSpec, training: TrainingSpec, options: CleaveOptions,
            plans: Plans) -> Prediction:  # fmt: skip
    """The last of a few steps. Of deep models two are run that have few layers, and the rest is by their difference."""
    if len(cluster.devices) > MOST_DEVICES:
        return _by_formula(cluster, model, training, plans)
    if model.layers <= 2:
        return _run(cluster, model, training, options)
    few, more = (_run(cluster, replace(model, layers=n), training, options) for n in (1, 2))
    times = model.layers - 1

    def further(a, b):
        return a + times * (b - a)

    return Prediction(
        further(few.step_time_s, more.step_time_s),
        *(int(further(getattr(few, f), getattr(more, f))) for f in (
            "server_out_bytes", "server_in_bytes", "saved_bytes", "messages")),
        *({n: int(further(a.get(n, 0), b.get(n, 0))) for n in {*a, *b}}
          for a, b in ((few.down_bytes, more.down_bytes), (few.up_bytes, more.up_bytes))),
    )  # fmt: skip


def _by_formula(cluster: Cluster, model: ModelSpec, training: TrainingSpec, plans: Plans) -> Prediction:
    """Products one after the other, and no operand is found cached."""
    seconds, out, back = 0.0, 0, 0
    down: dict[str, int] = {}
    up: dict[str, int] = {}
    for _, gemm, times in products(model, training.batch):
        plan = plans.of(gemm).plan
        seconds += times * plan.makespan_s
        out += times * plan.server_out_bytes
        back += times * plan.server_in_bytes
        for name, share in plan.per_device.items():
            down[name] = down.get(name, 0) + times * share.down_bytes
            up[name] = up.get(name, 0) + times * share.up_bytes
    costs = layer_costs(model)
    graphs = {i: layer_graph(model, i, training.batch, training.batch * model.sequence)
              for i in (0, 1, layer_count(model) - 1)}  # fmt: skip
    for i, cost in enumerate(costs):
        graph = graphs[min(i, 1) if i < len(costs) - 1 else i]
        flops = sum(step.flops for step in graph.steps.values()) + cost.update_flops
        seconds += flops / cluster.server.flops
    messages = 2 * len(down) * sum(times for _, _, times in products(model, training.batch))
    return Prediction(seconds, out, back, 0, messages, down, up)


def _run(cluster: Cluster, model: ModelSpec, training: TrainingSpec, options: CleaveOptions) -> Prediction:
    async def main() -> list[dict[str, Any]]:
        clock = VirtualClock()
        node = ModelNode(cluster, clock, Codec(options.wire))
        plan = Plan("cleave", model, training, cluster)
        server = asyncio.ensure_future(Server(node, plan, options).run(STEPS))
        drive = asyncio.ensure_future(clock.drive(lambda: None))
        try:
            await asyncio.wait([server, drive], return_when=asyncio.FIRST_COMPLETED)
            if not server.done():
                raise RuntimeError("the predicted step came to a halt")
            server.result()
        finally:
            server.cancel()
            drive.cancel()
            await asyncio.gather(server, drive, return_exceptions=True)
        return node.events

    with torch.device("meta"):
        events = asyncio.run(main())
    step = [e for e in events if e["event"] == "step"][-1]
    traffic = [e for e in events if e["event"] == "traffic"][-1]
    return Prediction(
        step["end"] - step["start"], traffic["server_out"], traffic["server_in"], traffic["saved"],
        traffic["messages"], traffic["down"], traffic["up"],
    )  # fmt: skip
