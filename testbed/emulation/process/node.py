"""A node of the emulation: `runtime.Node` on a real process, a real clock and real links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import zmq

from testbed.cluster import Device
from testbed.emulation.process.pacing import Pacer
from testbed.emulation.process.transport import Transport
from testbed.runtime import MembershipEvent, Message, wire
from testbed.runtime.mailbox import Mailbox, View


class Clock:
    """Emulated seconds since `t0` on CLOCK_MONOTONIC, which all processes share; 0 until it is set."""

    def __init__(self, tdf: float):
        self.tdf = tdf
        self.t0: float | None = None

    def now(self) -> float:
        return 0.0 if self.t0 is None else max(0.0, (time.monotonic() - self.t0) / self.tdf)

    def at(self, monotonic_s: float) -> float:
        return 0.0 if self.t0 is None else (monotonic_s - self.t0) / self.tdf


class EmulatedNode:
    """One life of a node: made when it joins, of no use after its lease ran out."""

    def __init__(
        self, device: Device, generation: int, view: View, *, always: frozenset[str], transport: Transport,
        clock: Clock, executor: ThreadPoolExecutor, on_event: Callable[[dict[str, Any]], None],
    ):  # fmt: skip
        self.name = device.name
        self.device = device
        self.generation = generation
        self.membership = view
        self.mailbox = Mailbox(device.name, generation, view, always)
        self._transport = transport
        self._clock = clock
        self._executor = executor
        self._on_event = on_event
        self._pacer = Pacer()
        self._expected: dict[tuple[str, int], int] = {}

    async def send(self, to: str, tag: str, tensors: Sequence[torch.Tensor] = (), **meta: Any) -> None:
        start = self.now()
        self.mailbox.check(to)
        to_generation = self.membership.alive.get(to, 1)
        described = wire.describe(tensors)
        # A copy, taken now: the caller may change its tensors (an optimizer's step in place) while
        # the message still waits for a slow link. From here on nothing is copied.
        buffers = [_snapshot(t) for t in tensors]
        nbytes = sum(map(len, buffers))
        header_bytes = 0

        def frames(sequence: int) -> list[Any]:
            nonlocal header_bytes
            header = wire.Header(
                self.name, self.generation, to_generation, self.membership.version, sequence, tag, start,
                described, meta,
            )  # fmt: skip
            head = wire.encode_header(header)
            header_bytes = len(head)
            return [head, *buffers]

        await self._transport.send(to, to_generation, frames)
        nbytes += header_bytes
        self._transport.sent(to, nbytes)
        self.record("send", start=start, end=self.now(), peer=to, tag=tag, bytes=nbytes)

    async def recv(self, source: str | None, tag: str) -> Message:
        start = self.now()
        if self.mailbox.has(source, tag):
            return await self.mailbox.recv(source, tag)
        peer = source
        try:
            message = await self.mailbox.recv(source, tag)
            peer = message.source
            return message
        finally:
            self.record("wait", start=start, end=self.now(), peer=peer, tag=tag)

    async def compute(self, fn: Callable[..., Any], *args: Any, flops: float, label: str = "compute") -> Any:
        if flops < 0:
            raise ValueError(f"flops={flops}: expected 0 or more")
        target_s = flops / self.device.flops * self._clock.tdf
        loop = asyncio.get_running_loop()
        asked_s = time.monotonic()
        took = await loop.run_in_executor(self._executor, self._pacer.run, fn, args, target_s, asked_s)
        self.record(
            "compute", start=self._clock.at(took.start_s), end=self._clock.at(took.end_s),
            label=label, flops=flops, busy=took.busy_s, overrun=took.overrun_s / self._clock.tdf,
        )  # fmt: skip
        return took.result

    def now(self) -> float:
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._clock.tdf)

    def record(self, event: str, **fields: Any) -> None:
        self._on_event({"t": self.now(), "node": self.name, "event": event, **fields})

    # What follows is for the worker, not for runners.

    def receive(self, header: wire.Header, frames: Sequence[zmq.Frame]) -> None:
        """A message of this node's generation came off the transport."""
        nbytes = sum(len(f) for f in frames)
        now = self.now()
        message = wire.message(header, [f.buffer for f in frames[1:]], nbytes=nbytes, received_s=now)
        self._transport.received(header.source, nbytes)
        pair = (header.source, header.generation)
        missing = header.sequence - self._expected.get(pair, 0)
        self._expected[pair] = header.sequence + 1
        if missing > 0:  # TCP gave a connection up that the failure detector did not
            self.record("warning", text=f"{missing} message(s) from {header.source} to {self.name} were lost")
        if self.mailbox.deliver(message, to_generation=header.to_generation, view=header.view):
            self.record(
                "transfer", start=header.sent_s, end=now, peer=header.source, tag=header.tag, bytes=nbytes
            )  # fmt: skip

    def see(self, event: MembershipEvent) -> None:
        """The view changed."""
        self.membership.apply(event)
        self._transport.lose(event.name)
        self.mailbox.viewed(event)
        t = self.now() if event.at_s else 0.0  # a change before the start is not news of its first moments
        self._on_event({
            "t": t, "node": self.name, "event": "member", "kind": event.kind, "peer": event.name,
            "generation": event.generation, "detection": event.detection_s,
        })  # fmt: skip


def _snapshot(tensor: torch.Tensor) -> memoryview:
    owned = tensor.detach().contiguous()
    if owned.data_ptr() == tensor.data_ptr():
        owned = owned.clone()
    return wire.buffer(owned)
