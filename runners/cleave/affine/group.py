"""A group of units with its weights in one flat tensor: what a device computes with, and what the server sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from runners.models.attention import Past
from runners.models.gpt import build_layer
from runners.planning.affine_units import ATTENTION, FEED, HEAD, Unit
from testbed.cluster import ModelSpec

_PARTS = {ATTENTION: ("norm1", "qkv", "projection"), HEAD: ("norm", "logits")}


class Group:
    """The layout of a group's parameters, and its layers without weights until `bind`.

    Args:
        units: of one group: neighbours in the chain, or one share of the head.
    """

    def __init__(self, model: ModelSpec, units: Sequence[Unit]):
        self.model, self.units = model, tuple(units)
        self._slots: list[tuple[int, str, nn.Module, str, Unit, torch.Size, int, int]] = []
        self._layers: list[nn.Module] = []
        at = 0
        for index, unit in enumerate(self.units):
            with torch.device("meta"):
                layer = build_layer(model, unit.layer, None)
            self._layers.append(layer)
            for name, parameter in layer.named_parameters():
                part, own = name.split(".")[0], name.rsplit(".", 1)
                if (part in _PARTS[ATTENTION]) if unit.kind == FEED else (part not in _PARTS[unit.kind]):
                    continue
                shape = parameter.shape
                if unit.kind == HEAD and part == "logits":
                    shape = torch.Size((unit.end - unit.first, shape[1]))
                owner = layer.get_submodule(own[0])
                self._slots.append((index, name, owner, own[1], unit, shape, at, at + shape.numel()))
                at += shape.numel()
        self.size = at

    # -- at the server -------------------------------------------------------------------

    def gather(self, layers: Mapping[int, nn.Module]) -> torch.Tensor:
        """All weights, flat, a copy; layers: by their index in the model."""
        named = {i: dict(layer.named_parameters()) for i, layer in layers.items()}
        return torch.cat([self._rows(named[u.layer][name].detach(), u, name).flatten()
                          for _, name, _, _, u, *_ in self._slots])  # fmt: skip

    def add_gradient(self, flat: torch.Tensor, layers: Mapping[int, nn.Module], layer: int) -> None:
        """Add the part of a flat gradient that is one layer's to that layer's own."""
        named = dict(layers[layer].named_parameters())
        for _, name, _, _, unit, shape, a, b in self._slots:
            if unit.layer == layer:
                self._rows(named[name].grad, unit, name).add_(flat[a:b].view(shape))

    @staticmethod
    def _rows(tensor: torch.Tensor, unit: Unit, name: str) -> torch.Tensor:
        return tensor[unit.first : unit.end] if unit.kind == HEAD and name.startswith("logits") else tensor

    # -- at a device ---------------------------------------------------------------------

    def bind(self, weights: torch.Tensor) -> None:
        """Compute with these weights from now on."""
        for _, _, owner, own, _, shape, a, b in self._slots:
            owner._parameters[own] = nn.Parameter(weights[a:b].view(shape))

    def gather_into(self, gradient: torch.Tensor) -> None:
        """Backward passes add to this flat gradient from now on."""
        for _, _, owner, own, _, shape, a, b in self._slots:
            owner._parameters[own].grad = gradient[a:b].view(shape)

    def forward(self, x: torch.Tensor, pasts: Sequence[Past]) -> torch.Tensor:
        """x [1, tokens, d_model] through the group's halves of blocks; a Past for each attention, in order."""
        following = iter(pasts)
        for unit, layer in zip(self.units, self._layers):
            x = layer.attend(x, next(following)) if unit.kind == ATTENTION else layer.feed(x)
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """A head's share: [1, tokens, d_model] -> [tokens, words of it]."""
        (layer,) = self._layers
        return layer(x)[0]

    @property
    def attentions(self) -> int:
        return sum(u.kind == ATTENTION for u in self.units)
