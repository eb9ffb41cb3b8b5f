"""One pipeline stage: a span of layers with their optimizer, and the micro-batches in flight.

Plain synchronous PyTorch; the worker calls it inside `Node.compute`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runners.costs import layer_costs
from runners.flat import FlatLayers
from runners.models.gpt import build_layer, layer_count, loss_sum
from runners.state import StateId
from testbed.cluster import ModelSpec, TrainingSpec

WIRE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Stage:
    """Layers [first, end) of a model, in the training state `state`.

    Args:
        states: layer -> flat state tensor of `FlatLayers.pack`; a layer that is absent starts from the
        seed.
        recompute: keep only each micro-batch's input, and repeat the forward pass before the backward pass.
        wire: dtype of what crosses to the neighbours, 'fp32' or 'bf16'.
    """

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, first: int, end: int, state: StateId,
        states: Mapping[int, torch.Tensor], *, recompute: bool = False, wire: str = "fp32",
    ):  # fmt: skip
        self.first, self.end, self.state = first, end, state
        self.is_first, self.is_last = first == 0, end == layer_count(model)
        self._recomputes = recompute
        self._wire = WIRE_DTYPES[wire]
        self._tokens_in_batch = training.batch * model.sequence
        self._layers = {i: build_layer(model, i, None if i in states else training.seed) for i in range(first, end)}
        self._flat = FlatLayers(self._layers, training.optimizer, state.version)
        for i, packed in states.items():
            self._flat.unpack(i, packed)
        self._inputs: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, torch.Tensor] = {}
        self._targets: dict[int, torch.Tensor] = {}

        costs = layer_costs(model)[first:end]
        self.forward_flops = sum(c.forward_flops for c in costs)  # per sample
        self.backward_flops = sum(c.backward_flops for c in costs)
        self.update_flops = sum(c.update_flops for c in costs)

    def _run(self, x: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        for layer in self._layers.values():
            x = layer(x)
        # its share of the mean over the global batch, so that gradients of micro-batches simply add up
        return loss_sum(x, targets) / self._tokens_in_batch if self.is_last else x

    def forward(self, micro_batch: int, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Forward pass of one micro-batch.

        Args:
            x: tokens [n, s] on the first stage, else the previous stage's output [n, s, d_model].
            targets: [n, s], on the last stage.

        Returns:
            What goes to the next stage, or on the last one the micro-batch's share of the mean loss, a
            scalar.
        """
        if not self.is_first:
            x = x.detach().to(torch.float32)
        self._inputs[micro_batch] = x
        if self.is_last:
            self._targets[micro_batch] = targets
        if self._recomputes:
            with torch.no_grad():
                out = self._run(x, targets)
        else:
            out = self._outputs[micro_batch] = self._run(x if self.is_first else x.requires_grad_(), targets)
        return out.detach() if self.is_last else out.detach().to(self._wire)

    def recompute(self, micro_batch: int) -> None:
        """Repeat the forward pass, now keeping what the backward pass needs."""
        x = self._inputs[micro_batch]
        if not self.is_first:
            x.requires_grad_()
        self._outputs[micro_batch] = self._run(x, self._targets.get(micro_batch))

    def backward(self, micro_batch: int, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Backward pass of one micro-batch; adds to the parameters' gradients.

        Args:
            gradient: of the output, from the next stage; None on the last one.

        Returns:
            The gradient of the input, for the previous stage; None on the first one.
        """
        x, out = self._inputs.pop(micro_batch), self._outputs.pop(micro_batch)
        self._targets.pop(micro_batch, None)
        out.backward(None if gradient is None else gradient.to(torch.float32))
        return None if self.is_first else x.grad.to(self._wire)

    def update(self, result: StateId) -> None:
        """Apply the optimizer to the gradients gathered since the last update; the state becomes `result`."""
        self._flat.update()
        self.state = result

    def pack(self) -> dict[int, torch.Tensor]:
        """Layer -> flat state tensor, copies."""
        return {i: self._flat.pack(i) for i in self._layers}


class HollowStage:
    """A stage without data: the same calls and shapes, on torch's meta device, and no arithmetic.

    For simulation, where FLOPs and bytes count and values don't. (PyTorch's own meta kernels take tens of
    milliseconds for a backward pass.)
    """

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, first: int, end: int, state: StateId,
        states: Mapping[int, torch.Tensor], *, recompute: bool = False, wire: str = "fp32",
    ):  # fmt: skip
        self.first, self.end, self.state = first, end, state
        self.is_first, self.is_last = first == 0, end == layer_count(model)
        self._width, self._wire = model.d_model, WIRE_DTYPES[wire]
        costs = layer_costs(model)
        self._parameters = {i: costs[i].parameters for i in range(first, end)}
        self.forward_flops = sum(c.forward_flops for c in costs[first:end])
        self.backward_flops = sum(c.backward_flops for c in costs[first:end])
        self.update_flops = sum(c.update_flops for c in costs[first:end])
        self._shapes: dict[int, tuple[int, ...]] = {}

    def _passing(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(*shape[:2], self._width, dtype=self._wire, device="meta")

    def forward(self, micro_batch: int, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        self._shapes[micro_batch] = tuple(x.shape)
        return torch.empty((), device="meta") if self.is_last else self._passing(x.shape)

    def recompute(self, micro_batch: int) -> None:
        pass

    def backward(self, micro_batch: int, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        shape = self._shapes.pop(micro_batch)
        return None if self.is_first else self._passing(shape)

    def update(self, result: StateId) -> None:
        self.state = result

    def pack(self) -> dict[int, torch.Tensor]:
        return {i: torch.empty(3 * n, device="meta") for i, n in self._parameters.items()}


def make_stage(*args, **settings) -> Stage | HollowStage:
    """A Stage; a HollowStage where meta is the default device."""
    return (HollowStage if torch.get_default_device().type == "meta" else Stage)(*args, **settings)
