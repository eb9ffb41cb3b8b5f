"""Layers whose weights, gradients and AdamW moments each lie in one flat tensor.

So the optimizer is one call over contiguous memory, and a layer's state is three slices, quick to copy. The layers'
own parameters and their gradients are views into it (as in Megatron-LM's and DDP's contiguous buffers).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from runners.reference import make_optimizer
from testbed.cluster import OptimizerSpec


class FlatLayers:
    """Moves the parameters of `layers` (key -> module, in order) into flat tensors, and optimizes them.

    Args:
        optimizer: None: weights and gradients alone, for those who don't update by themselves.
        version: updates that the weights have seen: AdamW's step count.
    """

    def __init__(self, layers: Mapping[int, nn.Module], optimizer: OptimizerSpec | None, version: int = 0):
        parameters = [p for layer in layers.values() for p in layer.parameters()]
        weights = torch.cat([p.detach().flatten() for p in parameters])
        self._weights = nn.Parameter(weights)
        self._gradients = torch.zeros_like(weights)
        self._slices: dict[int, slice] = {}
        at = 0
        for key, layer in layers.items():
            start = at
            for p in layer.parameters():
                end = at + p.numel()
                p.data = weights[at:end].view_as(p)
                p.grad = self._gradients[at:end].view_as(p)  # backward passes add to it in place
                at = end
            self._slices[key] = slice(start, at)
        self._weights.grad = self._gradients
        self._slots: dict[str, torch.Tensor] = {}
        if optimizer is None:
            return
        self._optimizer = make_optimizer([self._weights], optimizer)
        self._slots = {"exp_avg": torch.zeros_like(weights), "exp_avg_sq": torch.zeros_like(weights)}
        step = torch.tensor(float(version), device="cpu")
        self._optimizer.state[self._weights] = {"step": step, **self._slots}

    @property
    def weights(self) -> torch.Tensor:
        """All weights, flat; to be changed in place only."""
        return self._weights.detach()

    @property
    def gradients(self) -> torch.Tensor:
        """All gradients gathered since the last update, flat; to be changed in place only."""
        return self._gradients

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """Weights, first moments, second moments, flat; to be changed in place only."""
        return (self.weights, *self._slots.values())

    def update(self) -> None:
        """One optimizer step with the gradients gathered; they are zero afterwards."""
        self._optimizer.step()
        self._gradients.zero_()

    def _parts(self, key: int) -> tuple[torch.Tensor, ...]:
        part = self._slices[key]
        return tuple(t[part] for t in self.parts)

    def pack(self, key: int) -> torch.Tensor:
        """A layer's state, a copy: its weights, first moments, second moments, in one flat float32 tensor."""
        return torch.cat(self._parts(key))

    def unpack(self, key: int, flat: torch.Tensor) -> None:
        """Set a layer's state from `pack`'s tensor.

        Raises:
            ValueError: a tensor of another size.
        """
        parts = self._parts(key)
        if flat.numel() != 3 * parts[0].numel():
            raise ValueError(f"state of {flat.numel()} floats for a layer of 3 x {parts[0].numel()}")
        for target, source in zip(parts, flat.chunk(3)):
            target.copy_(source)
