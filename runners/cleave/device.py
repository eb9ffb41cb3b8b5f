"""A device's part: take tasks in the order sent, keep the blocks that it is told to keep, multiply, answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from runners.cleave.options import CleaveOptions
from runners.cleave.precision import Codec
from runners.cleave.products import RESULT, TASK
from runners.costs import FLOPS_PER_BYTE
from testbed.cluster.model import SERVER
from testbed.runtime import Node


class DeviceWorker:
    """One life of a device."""

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
        node = self._node
        while True:
            message = await node.recv(SERVER, TASK)
            meta = message.meta
            if "c" in meta:
                self._kept.clear()
            drop = meta.get("d", ())
            if "i" not in meta:
                self._drop(drop)
                await self._store(meta["s"], message.tensors)
                continue
            needed = {*meta["a"][:2], *meta["b"][:2]}  # what this very task reads or brings is dropped after it
            self._drop(n for n in drop if n not in needed)
            began = node.now()
            flops = self._price(meta, message)
            out = await node.compute(self._multiply, meta, message.tensors, flops=flops, label="block")
            self._drop(drop)
            await node.send(SERVER, RESULT, out, i=meta["i"], t=[message.received_s, began, node.now()])

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._kept.pop(number, None)

    async def _store(self, number: int, tensors: list[torch.Tensor]) -> None:
        if self._options.wire == "fp32":
            self._kept[number] = tensors[0]
        else:
            self._kept[number] = await self._node.compute(
                self._decoded, tensors, flops=float(FLOPS_PER_BYTE * 8 * tensors[0].numel()), label="decode"
            )

    def _price(self, meta: dict[str, Any], message) -> float:
        flops = meta["f"]
        if self._options.wire != "fp32":
            flops += FLOPS_PER_BYTE * 8 * sum(t.numel() for t in message.tensors)
        return flops

    def _decoded(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return tensors[0].to(torch.float32) if tensors[0].is_meta else self._codec.decode(tensors)

    def _multiply(self, meta: dict[str, Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """In the compute thread."""
        parts = self._codec.parts
        left = self._operand(meta["a"], tensors[:parts])
        right = self._operand(meta["b"], tensors[-parts:])
        if left.is_meta:
            return [torch.empty(*left.shape[:-1], right.shape[-1], dtype=self._codec.dtype, device="meta")]
        product = left @ right
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

    def _operand(self, spec: list[int], tensors: list[torch.Tensor]) -> torch.Tensor:
        have, keep, turned = spec[:3]
        if have:
            value = self._kept[have]
            if len(spec) > 3:
                b0, b1, r0, r1, c0, c1 = spec[3:]
                value = value[r0:r1, c0:c1] if value.dim() == 2 else value[b0:b1, r0:r1, c0:c1]
        else:
            value = self._decoded(tensors)
            if keep:
                self._kept[keep] = value
        return value.mT if turned else value
