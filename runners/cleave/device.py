"""A device's part: take tasks in the order sent, keep the blocks that it is told to keep, multiply, answer."""

from __future__ import annotations

from typing import Any

import torch

from runners.cleave.hollow import hollow
from runners.cleave.options import CleaveOptions
from runners.cleave.precision import Codec
from runners.cleave.products import RESULT
from runners.cleave.sending import TASK
from runners.costs import FLOPS_PER_BYTE
from testbed.cluster.model import SERVER
from testbed.runtime import Message, Node


class DeviceWorker:
    """One life of a device."""

    __slots__ = ("_codec", "_kept", "_node", "_options", "_residuals")

    def __init__(self, node: Node, options: CleaveOptions):
        self._node, self._options = node, options
        self._codec = Codec(options.wire)
        self._kept: dict[int, torch.Tensor] = {}
        self._residuals: dict[tuple, torch.Tensor] = {}  # what rounding took from gradients, by block

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            PeerLost: this device's lease ran out.
        """
        node, kept = self._node, self._kept
        while True:
            message = await node.recv(SERVER, TASK)
            meta = message.meta
            if "c" in meta:
                kept.clear()
            drop = meta.get("d", ())
            if "i" not in meta:
                for number in drop:
                    kept.pop(number, None)
                if "s" in meta:
                    kept[meta["s"]] = await self._received(message.tensors)
                del message
                continue
            if drop:  # what this very task reads or brings is dropped after it
                needed = {*meta["a"][:2], *meta["b"][:2]}
                for number in drop:
                    if number not in needed:
                        kept.pop(number, None)
            began = node.now()
            flops = self._price(meta, message)
            out = await node.compute(self._multiply, meta, message.tensors, flops=flops, label="block")
            for number in drop:
                kept.pop(number, None)
            await node.send(SERVER, RESULT, out, i=meta["i"], t=[message.received_s, began, node.now()])
            del message, out  # the next task may need all the memory

    async def _received(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        if self._codec.wire == "fp32":
            return tensors[0]
        return await self._node.compute(
            self._codec.decode, tensors, flops=float(FLOPS_PER_BYTE * 8 * tensors[0].numel()), label="decode"
        )

    def _price(self, meta: dict[str, Any], message: Message) -> float:
        """FLOPs of a task, decoding included."""
        if self._codec.wire == "fp32":
            return meta["f"]
        return meta["f"] + FLOPS_PER_BYTE * 8 * sum(t.numel() for t in message.tensors)

    def _multiply(self, meta: dict[str, Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """In the compute thread."""
        parts = self._codec.parts
        a, b = meta["a"], meta["b"]
        left, right = self._stored(a, tensors[:parts]), self._stored(b, tensors[-parts:])
        if left.is_meta:
            rows, columns = _shape(left, a), _shape(right, b)
            return self._codec.encode(hollow((*rows[:-2], rows[-1 - (not a[2])], columns[-2 + (not b[2])])))
        product = _read(left, a) @ _read(right, b)
        if "e" not in meta:
            return self._codec.encode(product)
        # error feedback (Seide et al. 2014; Karimireddy et al. 2019): what rounding takes is added the next time
        block = tuple(meta["e"])
        residual = self._residuals.get(block)
        if residual is not None:
            product += residual
        encoded = self._codec.encode(product)
        self._residuals[block] = product - self._codec.decode(encoded)
        return encoded

    def _stored(self, spec: list[int], tensors: list[torch.Tensor]) -> torch.Tensor:
        """The tensor that the operand is, or is a part of."""
        if spec[0]:
            return self._kept[spec[0]]
        value = self._codec.decode(tensors)
        if spec[1]:
            self._kept[spec[1]] = value
        return value


# An operand's spec: [id if the device has it, id to keep it under, transposed, which part of what it has].


def _read(value: torch.Tensor, spec: list[int]) -> torch.Tensor:
    if len(spec) > 3:
        b0, b1, r0, r1, c0, c1 = spec[3:]
        value = value[r0:r1, c0:c1] if value.dim() == 2 else value[b0:b1, r0:r1, c0:c1]
    return value.mT if spec[2] else value


def _shape(value: torch.Tensor, spec: list[int]) -> tuple[int, ...]:
    """As stored, of the part that the operand is."""
    shape = value.shape
    if len(spec) > 3:
        b0, b1, r0, r1, c0, c1 = spec[3:]
        return (r1 - r0, c1 - c0) if len(shape) == 2 else (b1 - b0, r1 - r0, c1 - c0)
    return shape
