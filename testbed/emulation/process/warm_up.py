"""Use torch as training does before anything is measured: late imports, first-use set-up, memory pages."""

from __future__ import annotations

import torch


def warm_up(*, backward: bool) -> None:
    """Train a tiny transformer for one step.

    Args:
        backward: False in a process that will fork: after a backward pass torch refuses to compute gradients
            in forked children.
    """
    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Sequential(
            torch.nn.Embedding(8, 16), torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
            torch.nn.LayerNorm(16), torch.nn.Linear(16, 8),
        )  # fmt: skip
        parameters = list(model.parameters())
        logits = model(torch.zeros(2, 4, dtype=torch.long))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.zeros(8, dtype=torch.long))
        if backward:
            loss.backward()
        else:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
        for optimizer in (torch.optim.AdamW(parameters), torch.optim.SGD(parameters, 0.1, momentum=0.9)):
            optimizer.step()
            optimizer.state_dict()
        model.state_dict()
