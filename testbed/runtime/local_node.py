"""Nodes of the in-process engine, and its clock."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from testbed.cluster.model import SERVER
from testbed.runtime import wire
from testbed.runtime.interface import Message
from testbed.runtime.mailbox import Mailbox, View

if TYPE_CHECKING:
    from testbed.runtime.local import LocalEngine


class VirtualClock:
    """Virtual time: moves to the next timer once every coroutine waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def call_at(self, when: float, fn: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (max(when, self.now), next(self._order), fn))

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self.call_at(self.now + max(0.0, seconds), lambda: future.done() or future.set_result(None))
        await future

    async def drive(self, on_idle: Callable[[], None]) -> None:
        ready = asyncio.get_running_loop()._ready  # the only sign that all coroutines wait
        while True:
            await asyncio.sleep(0)
            if ready:
                continue
            if not self._timers:
                on_idle()
                return
            self.now, _, fn = heapq.heappop(self._timers)
            fn()


class Incarnation:
    """One life of a node, from its joining to its loss."""

    def __init__(self, engine: LocalEngine, name: str, generation: int, view: View):
        self.engine = engine
        self.name = name
        self.generation = generation
        self.view = view
        self.mailbox = Mailbox(name, generation, view, frozenset() if name == SERVER else frozenset({SERVER}))
        self.node = LocalNode(engine, self)
        self.runner = engine.new_runner()
        self.task: asyncio.Task | None = None
        self.dead = False  # killed: nothing of it happens any more
        self.running = asyncio.Event()  # cleared while suspended
        self.running.set()
        self.cut = False  # nothing crosses its link
        self.silence = 0  # counts cuts, so that a detection knows which one it was set for
        self.silent_since = 0.0
        self.declared_lost = False
        self.held: list[Callable[[], None]] = []  # what would have crossed the link while it was cut

    async def gate(self) -> None:
        """Every call of the node passes here: a dead node stops, a suspended one waits."""
        if self.dead:
            raise asyncio.CancelledError
        await self.running.wait()
        if self.dead:
            raise asyncio.CancelledError


class LocalNode:
    """`interface.Node` of a LocalEngine."""

    def __init__(self, engine: LocalEngine, incarnation: Incarnation):
        self._engine = engine
        self._me = incarnation
        self._busy = asyncio.Lock()
        self.name = incarnation.name
        self.device = engine.plan.cluster.device(self.name)
        self.membership = incarnation.view
        self.seconds_computed = 0.0

    async def send(self, to: str, tag: str, tensors: Sequence[torch.Tensor] = (), **meta: Any) -> None:
        me = self._me
        await me.gate()
        me.mailbox.check(to)
        start = self.now()
        header = wire.Header(
            source=self.name, generation=me.generation, to_generation=me.view.alive.get(to, 1),
            view=me.view.version, sequence=0, tag=tag, sent_s=start, tensors=wire.describe(tensors),
            meta=meta,
        )  # fmt: skip
        head = wire.encode_header(header)
        buffers = [bytearray(wire.buffer(t)) for t in tensors]
        nbytes = len(head) + sum(map(len, buffers))
        self._engine.post(me, to, wire.decode_header(head), buffers, nbytes)
        await asyncio.sleep(0)
        self.record("send", start=start, end=self.now(), peer=to, tag=tag, bytes=nbytes)

    async def recv(self, source: str | None, tag: str) -> Message:
        me = self._me
        await me.gate()
        start = self.now()
        message = await me.mailbox.recv(source, tag)
        await me.gate()
        if self.now() > start:
            self.record("wait", start=start, end=self.now(), peer=message.source, tag=tag)
        return message

    async def compute(self, fn: Callable[..., Any], *args: Any, flops: float, label: str = "compute") -> Any:
        me = self._me
        await me.gate()
        async with self._busy:
            start = self.now()
            result = fn(*args)
            await self._engine.clock.sleep(flops / self.device.flops)
            await me.gate()
            took = {"start": start, "end": self.now(), "busy": 0.0, "overrun": 0.0}
            self.record("compute", label=label, flops=flops, **took)
        return result

    def now(self) -> float:
        return self._engine.clock.now

    async def sleep(self, seconds: float) -> None:
        await self._me.gate()
        await self._engine.clock.sleep(seconds)
        await self._me.gate()

    def record(self, event: str, **fields: Any) -> None:
        if not self._me.dead:
            self._engine.record(self.name, event, fields)
