"""The oracle: the same training in one process, on whole batches, with nothing clever in it.

Runners of class E0 must give these losses within float32 rounding. It shares the model, the data and the
optimizer settings with them and nothing else: no stages, no micro-batches, no messages.
"""

from __future__ import annotations

import torch

from runners.data import Batches
from runners.models.gpt import GPT, loss_sum
from testbed.cluster import ModelSpec, OptimizerSpec, TrainingSpec


def make_optimizer(parameters, spec: OptimizerSpec) -> torch.optim.Optimizer:
    """The optimizer of a spec, over any iterable of parameters. Weight decay applies to all of them.

    Raises:
        ValueError: an optimizer that no runner implements.
    """
    if spec.name != "adamw":
        raise ValueError(f"optimizer {spec.name!r}; expected 'adamw'")
    parameters = list(parameters)
    return torch.optim.AdamW(
        parameters, lr=spec.lr, betas=tuple(spec.betas), eps=spec.eps, weight_decay=spec.weight_decay,
        fused=all(p.device.type == "cpu" for p in parameters),  # one pass over memory: 5 times as fast
    )  # fmt: skip


def train(model: ModelSpec, training: TrainingSpec, steps: int | None = None) -> list[float]:
    """The mean loss of each step's global batch, before that step's update."""
    net = GPT(model, training.seed)
    optimizer = make_optimizer(net.parameters(), training.optimizer)
    batches = Batches(model, training)
    losses = []
    for step in range(training.steps if steps is None else steps):
        tokens, targets = batches.batch(step)
        loss = loss_sum(net(tokens), targets) / targets.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
