"""A node of the simulation: `runtime.Node` in virtual time."""

from __future__ import annotations

import asyncio
import functools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from testbed.cluster import Device
from testbed.runtime import Message, PeerLost, Plan, Runner, wire
from testbed.runtime.mailbox import Mailbox, View
from testbed.runtime.virtual_time import VirtualLoop
from testbed.simulation.connection import Connection
from testbed.simulation.memory import MemoryMeter
from testbed.simulation.network import Network
from testbed.simulation.totals import Totals

_FRAME_BYTES = 9  # ZMTP's before each frame; 2 for short ones
_ENVELOPE_BYTES = 8


class Places(Protocol):
    """Where nodes are: what `Engine.arrived` delivers to."""

    def place(self, name: str) -> Any: ...


class Engine(Protocol):
    """What the parts of a simulation need of the whole."""

    plan: Plan
    loop: VirtualLoop
    network: Network
    random: random.Random
    totals: dict[str, Totals]
    detailed: bool

    @property
    def lives(self) -> Places: ...
    def record(self, event: str, node: str = "testbed", /, **fields: Any) -> None: ...
    def detail(self, event: str, node: str, /, **fields: Any) -> None: ...
    def arrived(self, to: Any, item: tuple[Message, int, int, list[int]]) -> None: ...
    def copies(self, tensors: Sequence[torch.Tensor]) -> tuple[list, list[torch.Tensor], list[int]]: ...
    def new_process(self, name: str) -> Process: ...
    def run_part(self, node: SimulatedNode, part: Any) -> asyncio.Task: ...
    def check_alive(self) -> None: ...


class Process:
    """A device's process, from its launch until it is killed: its runner, its one compute thread, its connections."""

    __slots__ = ("engine", "device", "runner", "dead", "frozen", "ending", "memory", "connections", "life",
                 "computing", "turns", "_deferred")  # fmt: skip

    def __init__(self, engine: Engine, device: Device, runner: Runner):
        self.engine, self.device, self.runner = engine, device, runner
        self.dead = False
        self.frozen = False
        self.ending = False  # its life is over, and `work` has a moment to end
        self.memory = MemoryMeter(device.name, device.memory_bytes)
        self.connections: dict[tuple[str, int], Connection] = {}
        self.life: SimulatedNode | None = None
        self.computing = False
        self.turns: deque[asyncio.Future] = deque()
        self._deferred: list[asyncio.Future] = []

    def wake(self, future: asyncio.Future) -> None:
        """Let a coroutine of this process go on: now, or when it is thawed."""
        if self.dead:
            return
        if self.frozen:
            self._deferred.append(future)
        elif not future.done():
            future.set_result(None)

    def thaw(self) -> None:
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        for future in deferred:
            self.wake(future)

    def connection(self, to: str, generation: int) -> Connection:
        key = (to, generation)
        found = self.connections.get(key)
        if found is None:
            deliver = functools.partial(self.engine.arrived, self.engine.lives.place(to))
            found = self.connections[key] = self.engine.network.connect(self.device.name, to, deliver)
        return found

    def lose(self, peer: str) -> None:
        """Close the connections to a peer, with everything that waits in them."""
        for key in [k for k in self.connections if k[0] == peer]:
            self.connections.pop(key).close()

    def lose_all(self) -> None:
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()

    async def turn(self) -> None:
        """Wait for the compute thread, which is busy (`computing`)."""
        future = self.engine.loop.create_future()
        self.turns.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self.turns:
                self.turns.remove(future)
            else:  # its turn had come
                self.release()
            raise

    def release(self, _: Any = None) -> None:
        """The compute thread is free for the next."""
        while self.turns:
            future = self.turns.popleft()
            if not future.done():
                self.wake(future)
                return
        self.computing = False


class _Route:
    """The way to a peer's present incarnation, as long as this node's view is at `version`."""

    __slots__ = ("version", "generation", "connection", "sequence")

    def __init__(self) -> None:
        self.version = self.generation = self.sequence = -1
        self.connection: Connection | None = None


class SimulatedNode:
    """One life of a node: made when it joins, of no use after its lease ran out."""

    __slots__ = ("process", "name", "device", "generation", "membership", "mailbox", "task", "totals", "_engine",
                 "_loop", "_routes", "__weakref__")  # fmt: skip

    def __init__(self, process: Process, generation: int, view: View, always: frozenset[str]):
        self.process = process
        self.name = process.device.name
        self.device = process.device
        self.generation = generation
        self.membership = view
        self.mailbox = Mailbox(self.name, generation, view, always)
        self.task: asyncio.Task | None = None
        self.totals = process.engine.totals[self.name]
        self._engine = process.engine
        self._loop = process.engine.loop
        self._routes: dict[str, _Route] = {}

    def _gate(self) -> None:
        if self.process.dead:
            raise asyncio.CancelledError

    def _route(self, to: str) -> _Route:
        """Raises PeerLost."""
        route = self._routes.get(to)
        if route is not None and route.version == self.membership.version and not self.mailbox.closed:
            return route
        self.mailbox.check(to)
        if route is None:
            route = self._routes[to] = _Route()
        generation = self.membership.generation_of(to) or 1
        if generation != route.generation:
            route.generation, route.sequence = generation, -1
        route.version = self.membership.version
        route.connection = self.process.connection(to, generation)
        return route

    async def send(self, to: str, tag: str, tensors: Sequence[torch.Tensor] = (), **meta: Any) -> None:
        if self.process.dead:
            raise asyncio.CancelledError
        route = self._route(to)
        route.sequence += 1
        connection, to_generation, start = route.connection, route.generation, self._loop.now
        described, copies, sizes = self._engine.copies(tensors)
        head_bytes, meta = wire.as_received(wire.Header(
            self.name, self.generation, to_generation, route.version, route.sequence, tag, start, described, meta,
        ))  # fmt: skip
        nbytes = head_bytes + sum(sizes)
        message = Message(self.name, tag, copies, meta, self.generation, nbytes, start)
        if connection.full:
            if not await connection.room():
                raise PeerLost(to)
            self._gate()
        item = (message, to_generation, self.membership.version, sizes)
        connection.send(nbytes + _ENVELOPE_BYTES + _FRAME_BYTES * (1 + len(copies)), item)
        totals = self.totals
        totals.bytes_up += nbytes
        totals.messages_up += 1
        if self._engine.detailed:
            self._engine.detail("send", self.name, start=start, end=self._loop.now, peer=to, tag=tag, bytes=nbytes)

    async def recv(self, source: str | None, tag: str) -> Message:
        if self.process.dead:
            raise asyncio.CancelledError
        message = self.mailbox.take(source, tag)
        if message is not None:
            return message
        start = self._loop.now
        peer = source
        try:
            message = await self.mailbox.wait(source, tag)
            peer = message.source
            return message
        finally:
            now = self._loop.now
            if now > start and not self.process.dead:
                self.totals.wait_s += now - start
                if self._engine.detailed:
                    self._engine.detail("wait", self.name, start=start, end=now, peer=peer, tag=tag)

    async def compute(self, fn: Callable[..., Any], *args: Any, flops: float, label: str = "compute") -> Any:
        if flops < 0:
            raise ValueError(f"flops={flops}: expected 0 or more")
        process, loop = self.process, self._loop
        if process.dead:
            raise asyncio.CancelledError
        if process.computing:
            await process.turn()
        else:
            process.computing = True
        start = loop.now
        try:
            result = fn(*args)
        except BaseException:
            process.release()
            raise
        if result is not None:
            process.memory.take_result(result)
        seconds = flops / self.device.flops
        if seconds > 0:
            done = loop.create_future()
            loop.at(start + seconds, self._computed, done)  # also when who asked is cancelled: the thread goes on
            await done
        else:
            process.release()
        totals = self.totals
        totals.computations += 1
        totals.flops += flops
        totals.compute_s += loop.now - start
        if self._engine.detailed:
            self._engine.detail("compute", self.name, start=start, end=loop.now, label=label, flops=flops, overrun=0.0)
        return result

    def _computed(self, done: asyncio.Future) -> None:
        process = self.process
        if process.frozen:
            process._deferred.append(done)
            done.add_done_callback(process.release)
            return
        if process.turns:
            process.release()
        else:
            process.computing = False
        if not process.dead and not done.done():
            done.set_result(None)

    def now(self) -> float:
        return self._loop.now

    async def sleep(self, seconds: float) -> None:
        self._gate()
        future = self._loop.create_future()
        self._loop.at(self._loop.now + max(0.0, seconds), self.process.wake, future)
        await future

    def record(self, event: str, **fields: Any) -> None:
        if not self.process.dead:
            self._engine.record(event, self.name, **fields)

    # What follows is for the engine, not for runners.

    def receive(self, message: Message, to_generation: int, view: int, sizes: Sequence[int]) -> None:
        message.received_s = self._loop.now
        totals = self.totals
        totals.bytes_down += message.bytes
        totals.messages_down += 1
        if sizes:
            take = self.process.memory.take
            for tensor, nbytes in zip(message.tensors, sizes):
                take(tensor, nbytes)
        if self.mailbox.deliver(message, to_generation=to_generation, view=view) and self._engine.detailed:
            self._engine.detail(
                "transfer",
                self.name,
                start=message.sent_s,
                end=message.received_s,
                peer=message.source,
                tag=message.tag,
                bytes=message.bytes,
            )
