"""A whole model on one device, in buckets of layers whose gradients travel one by one.

Plain synchronous PyTorch; workers call it inside `Node.compute`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from runners.costs import layer_costs
from runners.data import Batches
from runners.flat import FlatLayers
from runners.models.gpt import build_layer, layer_count, loss_sum
from runners.state import StateId
from testbed.cluster import ModelSpec, TrainingSpec

Span = tuple[int, int]  # layers [first, end)


class Replica:
    """All layers of a model, in the training state `state`.

    Args:
        buckets: spans of layers, in order, that together are the model.
        states: layer -> flat state tensor of `FlatLayers.pack`; a layer that is absent starts from the seed.
        optimizer: whether it updates by itself, and so holds the optimizer's moments.
    """

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, buckets: Sequence[Span], state: StateId,
        states: Mapping[int, torch.Tensor], *, optimizer: bool,
    ):  # fmt: skip
        self.state = state
        self.layers = layer_count(model)
        self.reduced: dict[int, torch.Tensor] = {}  # bucket -> gradients that the next `update` applies
        self._batches = Batches(model, training)
        self._text: tuple[int, tuple[torch.Tensor, torch.Tensor]] | None = None
        self._tokens_in_batch = training.batch * model.sequence
        self._layers = [
            {i: build_layer(model, i, None if i in states else training.seed) for i in range(first, end)}
            for first, end in buckets
        ]
        spec = training.optimizer if optimizer else None
        self._flat = [FlatLayers(layers, spec, state.version) for layers in self._layers]
        for flat, layers in zip(self._flat, self._layers):
            for i in layers.keys() & states.keys():
                flat.unpack(i, states[i])
        self._passes: list[tuple[torch.Tensor, torch.Tensor]] = []  # (input, output) of each bucket
        self.update_flops = sum(c.update_flops for c in layer_costs(model))

    def forward(self, step: int, first: int, end: int) -> torch.Tensor:
        """Forward pass over samples [first, end) of the step's batch; their share of the mean loss, a scalar."""
        if self._text is None or self._text[0] != step:
            self._text = step, self._batches.batch(step)
        tokens, targets = (t[first:end] for t in self._text[1])
        self._passes = []
        x = tokens
        for layers in self._layers:
            entering = x if not self._passes else x.detach().requires_grad_()
            x = entering
            for i, layer in layers.items():
                x = layer(x)
                if i == self.layers - 1:
                    # its share of the mean over the global batch, so that gradients of shares simply add up
                    x = loss_sum(x, targets) / self._tokens_in_batch
            self._passes.append((entering, x))
        return x.detach()

    def backward(self, bucket: int) -> None:
        """Backward pass of one bucket, after those behind it; adds to its gradients."""
        entering, leaving = self._passes[bucket]
        last = bucket == len(self._passes) - 1
        leaving.backward(None if last else self._passes[bucket + 1][0].grad)
        if not last:
            self._passes[bucket + 1] = (torch.empty(0), torch.empty(0))  # its activations are of no more use

    def take_gradient(self, bucket: int) -> torch.Tensor:
        """The bucket's gradients, a flat copy; they are zero afterwards."""
        gradients = self._flat[bucket].gradients
        taken = gradients.clone()
        gradients.zero_()
        return taken

    def weights(self, bucket: int) -> torch.Tensor:
        """The bucket's weights, a flat copy."""
        return self._flat[bucket].weights.clone()

    def put_weights(self, bucket: int, flat: torch.Tensor) -> None:
        self._flat[bucket].weights.copy_(flat)

    def add_gradient(self, bucket: int, flat: torch.Tensor) -> None:
        self._flat[bucket].gradients.add_(flat)

    def update_bucket(self, bucket: int) -> None:
        """Apply the optimizer to one bucket; its gradients are zero afterwards."""
        self._flat[bucket].update()

    def update(self, result: StateId) -> None:
        """Apply the optimizer to every bucket with its `reduced` gradients; the state becomes `result`."""
        for bucket, flat in enumerate(self._flat):
            flat.gradients.copy_(self.reduced[bucket])
            flat.update()
        self.reduced, self.state = {}, result

    def pack(self) -> dict[int, torch.Tensor]:
        """Layer -> flat state tensor, copies."""
        return {i: flat.pack(i) for flat, layers in zip(self._flat, self._layers) for i in layers}


class HollowReplica:
    """A replica without data: the same calls and shapes, on torch's meta device, and no arithmetic."""

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, buckets: Sequence[Span], state: StateId,
        states: Mapping[int, torch.Tensor], *, optimizer: bool,
    ):  # fmt: skip
        self.state = state
        self.layers = layer_count(model)
        self.reduced: dict[int, torch.Tensor] = {}
        costs = layer_costs(model)
        self._parameters = [c.parameters for c in costs]
        self._buckets = [sum(c.parameters for c in costs[first:end]) for first, end in buckets]
        self.update_flops = sum(c.update_flops for c in costs)

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(*shape, device="meta")

    def forward(self, step: int, first: int, end: int) -> torch.Tensor:
        return self._empty(())

    def take_gradient(self, bucket: int) -> torch.Tensor:
        return self._empty(self._buckets[bucket])

    weights = take_gradient

    def backward(self, bucket: int) -> None:
        pass

    update_bucket = backward

    def put_weights(self, bucket: int, flat: torch.Tensor) -> None:
        pass

    add_gradient = put_weights

    def update(self, result: StateId) -> None:
        self.state = result

    def pack(self) -> dict[int, torch.Tensor]:
        return {i: self._empty(3 * n) for i, n in enumerate(self._parameters)}


def make_replica(*args, **settings) -> Replica | HollowReplica:
    """A Replica; a HollowReplica where meta is the default device."""
    return (HollowReplica if torch.get_default_device().type == "meta" else Replica)(*args, **settings)
