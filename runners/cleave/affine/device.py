"""A device's part: keep a group's weights for the step, pass slabs through it, hand over the gradient."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from runners.cleave.affine.group import Group
from runners.cleave.affine.protocol import BACKWARD, FORWARD, GRADIENT, TO_DEVICE, TO_SERVER, WEIGHTS
from runners.cleave.affine.slabs import HeadSequence, Sequence, slab_edges
from runners.cleave.hollow import hollow
from runners.cleave.precision import Codec
from runners.costs import BACKWARD as BACKWARD_FLOPS
from runners.costs import FLOPS_PER_BYTE
from runners.data import Batches
from runners.planning.affine_units import HEAD, Unit
from testbed.cluster.model import SERVER
from testbed.runtime import Message, Node, Plan

SENDING = 4  # results that wait for the link; more, and computing waits


class _Held:
    """A group with this step's weights."""

    def __init__(self, group: Group, weights: torch.Tensor):
        self.group, self.weights = group, weights
        self.head = group.units[0].kind == HEAD


class _Duty:
    def __init__(self, held: _Held):
        self.held = held
        self.gradient: torch.Tensor | None = None
        self.samples: dict[int, Sequence | HeadSequence] = {}


class AffineWorker:
    """One life of a device."""

    def __init__(self, node: Node, plan: Plan, codec: Codec):
        self._node, self._plan, self._codec = node, plan, codec
        self._edges: tuple[int, ...] = ()
        self._batches = Batches(plan.model, plan.training)
        self._step = -1
        self._targets: torch.Tensor | None = None
        self._groups: dict[int, _Held] = {}
        self._duties: dict[int, _Duty] = {}
        self._out: asyncio.Queue[tuple[list[torch.Tensor], dict[str, Any]]] = asyncio.Queue(SENDING)

    async def run(self) -> None:
        """Until cancelled. Raises PeerLost when this device's lease ran out."""
        sending = asyncio.create_task(self._send())
        working = asyncio.create_task(self._work())
        try:
            done, _ = await asyncio.wait([sending, working], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            sending.cancel()
            working.cancel()
            await asyncio.gather(sending, working, return_exceptions=True)

    async def _send(self) -> None:
        while True:
            tensors, meta = await self._out.get()
            await self._node.send(SERVER, TO_SERVER, tensors, **meta)

    async def _work(self) -> None:
        does = {WEIGHTS: self._weights, FORWARD: self._slab, BACKWARD: self._slab, GRADIENT: self._hand_over}
        while True:
            message = await self._node.recv(SERVER, TO_DEVICE)
            await does[message.meta["k"]](message)
            del message  # its tensors are not to outlive their use

    # -- weights -------------------------------------------------------------------------

    async def _weights(self, message: Message) -> None:
        meta, tensors = message.meta, message.tensors
        if meta["s"] != self._step:  # what is left of the step before is of no use any more
            self._step, self._targets = meta["s"], None
            self._edges = slab_edges(self._plan.model.sequence, meta["t"])
            self._groups.clear()
            self._duties.clear()

        def take() -> torch.Tensor | None:
            piece = self._codec.decode(tensors)
            if meta["i"] == 0:
                group = Group(self._plan.model, [Unit(*u) for u in meta["u"]])
                flat = hollow((group.size,)) if piece.is_meta else torch.empty(group.size)
                self._groups[meta["g"]] = _Held(group, flat)
            held = self._groups[meta["g"]]
            if not piece.is_meta:
                held.weights[meta["a"] : meta["a"] + piece.numel()] = piece
                if meta["i"] == meta["n"] - 1:
                    held.group.bind(held.weights)
            return held.weights

        await self._node.compute(take, flops=self._moved(sum(t.numel() for t in tensors), 8), label="weights")

    # -- slabs ---------------------------------------------------------------------------

    async def _slab(self, message: Message) -> None:
        meta, tensors = message.meta, message.tensors
        back = meta["k"] == BACKWARD
        duty = self._duties.get(meta["u"])
        if duty is None:
            duty = self._duties[meta["u"]] = _Duty(self._groups[meta["g"]])
        held = duty.held
        edges, c = self._edges, meta["c"]
        tokens = edges[c + 1] - edges[c]
        flops = sum(u.flops(self._plan.model, tokens, edges[c + 1]) for u in held.group.units)
        if back:
            flops *= BACKWARD_FLOPS + (0 if held.head else 1)  # blocks compute the slab forward once more
        flops += self._moved(sum(t.numel() for t in tensors) * (2 if meta["r"] else 1), 8)
        out = await self._node.compute(self._pass, duty, meta, tensors, back, flops=flops, label=f"{meta['k']} slab")
        await self._out.put((out[0], {"k": meta["k"], "u": meta["u"], "j": meta["j"], "c": c}))

    def _pass(self, duty: _Duty, meta: dict[str, Any], tensors: list[torch.Tensor], back: bool) -> list:
        """In the compute thread. [[what is sent], and all that takes memory]."""
        held, j, c = duty.held, meta["j"], meta["c"]
        sequence = duty.samples.get(j)
        if sequence is None:
            kind = HeadSequence if held.head else Sequence
            sequence = duty.samples[j] = kind(held.group, self._edges)
        more = (self._words(j),) if held.head else ()
        if back:
            if duty.gradient is None:
                duty.gradient = hollow((held.group.size,)) if tensors[0].is_meta else torch.zeros(held.group.size)
            if not tensors[0].is_meta:
                held.group.gather_into(duty.gradient)
            y = sequence.backward(c, tensors[0] if held.head else self._codec.decode(tensors), *more)
        else:
            y = sequence.forward(c, self._codec.decode(tensors), *more)
        kept = [sequence.kept, duty.gradient]
        if back and not sequence.waits:
            del duty.samples[j]
        if not meta["r"]:
            return [[], kept]
        return [[y] if held.head and not back else self._codec.encode(y), kept]

    def _words(self, j: int) -> torch.Tensor | None:
        """The sample's targets; every node makes the same batch by itself."""
        if self._targets is None:
            self._targets = self._batches.batch(self._step)[1]
        return self._targets[j]

    # -- gradients -----------------------------------------------------------------------

    async def _hand_over(self, message: Message) -> None:
        meta = message.meta
        duty = self._duties[meta["u"]]
        for number, a, b in meta["p"]:
            out = await self._node.compute(
                lambda a=a, b=b: self._codec.encode(
                    hollow((b - a,)) if duty.gradient.is_meta else duty.gradient[a:b].clone()
                ),
                flops=self._moved(b - a, 8), label="gradient",
            )  # fmt: skip
            await self._out.put((out, {"k": GRADIENT, "u": meta["u"], "p": number}))
        del self._duties[meta["u"]]

    def _moved(self, numbers: int, nbytes: int) -> float:
        """FLOPs that take as long as so many numbers cross the memory; nothing where they are used as they come."""
        return 0.0 if self._codec.wire == "fp32" else float(FLOPS_PER_BYTE * nbytes * numbers)
