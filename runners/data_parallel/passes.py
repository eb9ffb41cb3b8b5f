"""Forward and backward passes of a replica, a micro-batch at a time, priced at their FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from runners.costs import layer_costs
from runners.data import micro_batch_sizes
from runners.data_parallel.replica import HollowReplica, Replica, Span
from testbed.cluster import ModelSpec, TrainingSpec
from testbed.runtime import Node


class Passes:
    """Passes over shares of the batch. buckets: the replica's."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, buckets: Sequence[Span]):
        self.buckets = len(buckets)
        costs = layer_costs(model)
        self._forward_flops = sum(c.forward_flops for c in costs)
        self._backward_flops = [sum(c.backward_flops for c in costs[first:end]) for first, end in buckets]
        self._most = max(micro_batch_sizes(training.batch, training.micro_batches))

    async def run(
        self, node: Node, replica: Replica | HollowReplica, step: int, first: int, end: int, lowest: int,
        ready: Callable[[int, torch.Tensor, torch.Tensor], None], before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Samples [first, end) of the step's batch.

        Args:
            lowest: the backward pass stops at this bucket.
            ready: gets each bucket with its gradient and the share of the loss, as soon as the gradient is complete.
            before: runs right before the first forward pass, in the same computation.
        """
        losses = []
        for start in range(first, end, self._most):
            stop = min(start + self._most, end)

            def forward(start=start, stop=stop) -> torch.Tensor:
                if start == first:
                    before()
                return replica.forward(step, start, stop)

            flops = (stop - start) * self._forward_flops
            losses.append(await node.compute(forward, flops=flops, label=f"forward {start}"))
            for b in reversed(range(lowest, len(self._backward_flops))):

                def backward(b=b, last=stop == end) -> torch.Tensor | None:
                    replica.backward(b)
                    return replica.take_gradient(b) if last else None

                flops = (stop - start) * self._backward_flops[b]
                gradient = await node.compute(backward, flops=flops, label=f"backward {start} bucket {b}")
                if gradient is not None:
                    ready(b, gradient, torch.stack(losses).sum())
