"""What crosses the links: float32, half precision, or int8 with a scale for every block of elements.

codec = Codec("int8")
tensors = codec.encode(x)        # what is sent
y = codec.decode(tensors)        # float32 again
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runners.cleave.hollow import hollow

WIRES = ("fp32", "bf16", "fp16", "int8")
INT8_BLOCK = 64  # consecutive elements of a row-major tensor that share a scale
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LARGEST = {"fp16": 65504.0}
# Relative error of one number on the wire, at most; int8's depends on its block.
ROUNDING = {"fp32": 0.0, "bf16": 2.0**-8, "fp16": 2.0**-11}


class Codec:
    """float32 tensors to what crosses the wire and back.

    Args:
        wire: 'fp32', 'bf16', 'fp16' or 'int8'.
    """

    def __init__(self, wire: str):
        self.wire = wire
        self.element_bytes = {"fp32": 4, "int8": 1}.get(wire, 2)
        self.dtype = {"fp32": torch.float32, "int8": torch.int8}.get(wire) or _HALF[wire]
        self.parts = 2 if wire == "int8" else 1  # tensors a value takes on the wire
        # of an element while a device works with it: in float32, beside what came or goes
        self.resident_bytes = 4 if wire == "fp32" else 4 + self.element_bytes

    def encode(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The tensors to send. In float32 that is x itself. Beyond fp16's range numbers become its largest."""
        if self.wire == "fp32":
            return [x]
        if x.is_meta:
            scales = [hollow((-(-x.numel() // INT8_BLOCK),))] if self.wire == "int8" else []
            return [hollow(tuple(x.shape), self.dtype), *scales]
        if self.wire != "int8":
            if self.wire in _LARGEST:
                x = x.clamp(-_LARGEST[self.wire], _LARGEST[self.wire])  # NaN stays NaN
            return [x.to(self.dtype)]
        blocks = _blocks(x.contiguous().flatten())
        scale = blocks.abs().amax(dim=1) / 127
        quantized = (blocks / torch.where(scale > 0, scale, 1.0)[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        return [quantized.flatten()[: x.numel()].view(x.shape), scale]

    def decode(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """float32.

        Raises:
            ValueError: tensors that `encode` can't have made.
        """
        if len(tensors) != self.parts or tensors[0].dtype != self.dtype:
            raise ValueError(f"{[str(t.dtype) for t in tensors]} for {self.wire}")
        if self.wire == "fp32":
            return tensors[0]
        if tensors[0].is_meta:
            return hollow(tuple(tensors[0].shape))
        if self.wire != "int8":
            return tensors[0].to(torch.float32)
        quantized, scale = tensors
        if scale.dim() != 1 or scale.numel() != -(-quantized.numel() // INT8_BLOCK):
            raise ValueError(f"{scale.numel()} scales for {quantized.numel()} elements")
        whole = _blocks(quantized.flatten().to(torch.float32)) * scale[:, None].to(torch.float32)
        return whole.flatten()[: quantized.numel()].view(quantized.shape)

    def nbytes(self, elements: int) -> int:
        """Bytes of that many elements on the wire."""
        return elements * self.element_bytes + (4 * -(-elements // INT8_BLOCK) if self.wire == "int8" else 0)


def _blocks(flat: torch.Tensor) -> torch.Tensor:
    missing = -flat.numel() % INT8_BLOCK
    return torch.nn.functional.pad(flat, (0, missing)).view(-1, INT8_BLOCK)
