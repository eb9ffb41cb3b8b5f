"""A sequence's way through a group of blocks, slab by slab: forward in order, backward in the reverse order.

A slab's keys and values stay until its backward pass, everything else between is computed again from the slab's input
(Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Later slabs come first on the way back; what they
owe to a slab's keys and values is gathered until its own turn comes.
"""

from __future__ import annotations

import torch

from runners.cleave.affine.group import Group
from runners.cleave.hollow import hollow
from runners.models.attention import Past


class Sequence:
    """One sample in one group at one device. With hollow tensors it only keeps what takes memory.

    Args:
        edges: where slabs begin, and the end.
    """

    def __init__(self, group: Group, edges: tuple[int, ...]):
        self._group, self._edges = group, edges
        self._inputs: dict[int, torch.Tensor] = {}
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(group.attentions)]  # keys, values of what has come
        self._owed: list[list[torch.Tensor]] = []

    def _hollow_pair(self, tokens: int) -> list[torch.Tensor]:
        model = self._group.model
        shape = (1, model.key_heads, tokens, model.head_dim)
        return [hollow(shape), hollow(shape)]

    def forward(self, c: int, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, d_model] -> the same shape."""
        self._inputs[c] = x
        if x.is_meta:
            for kept in self._kept:
                kept += self._hollow_pair(x.shape[0])
            return hollow(tuple(x.shape))
        pasts = [Past(*kept) for kept in self._kept]
        with torch.no_grad():
            y = self._group.forward(x[None], pasts)[0]
        for kept, past in zip(self._kept, pasts):
            kept[:] = past.whole
        return y

    def backward(self, c: int, dy: torch.Tensor) -> torch.Tensor:
        """The input's gradient; parameters' gradients are added to the group's."""
        x = self._inputs.pop(c)
        first, end = self._edges[c], self._edges[c + 1]
        if x.is_meta:
            if not self._owed:
                self._owed = [self._hollow_pair(end) for _ in self._kept]
            return hollow(tuple(x.shape))
        if not self._owed:  # the last slab: nothing comes after it
            self._owed = [[torch.zeros_like(t) for t in kept] for kept in self._kept]
        x = x.detach().requires_grad_()
        pasts = [
            Past(*(t[:, :, :first].detach().requires_grad_() for t in kept)) if first else Past() for kept in self._kept
        ]
        with torch.enable_grad():
            y = self._group.forward(x[None], pasts)
        roots, gradients = [y], [dy[None]]
        for past, owed in zip(pasts, self._owed):
            roots += past.new
            gradients += [t[:, :, first:end] for t in owed]
        torch.autograd.backward(roots, gradients)
        if first:
            for past, owed in zip(pasts, self._owed):
                for total, part in zip(owed, (past.keys, past.values)):
                    total[:, :, :first] += part.grad
        return x.grad

    @property
    def waits(self) -> bool:
        """Whether slabs wait for their backward pass."""
        return bool(self._inputs)

    @property
    def kept(self) -> list:
        """All that it holds, for those who account for memory."""
        return [*self._kept, *self._owed]


class HeadSequence:
    """One sample at one share of the head: scores first; gradients when the other shares' scores are known."""

    def __init__(self, group: Group, edges: tuple[int, ...]):
        self._group, self._edges = group, edges
        self._open: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(self, c: int, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[2, tokens]: log of the summed exponentials of this share's logits; the target's logit, 0 if not here."""
        (unit,) = self._group.units
        if x.is_meta:
            self._open[c] = x, hollow((x.shape[0], unit.end - unit.first))
            return hollow((2, x.shape[0]))
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            z = self._group.logits(x[None])
        self._open[c] = x, z
        logits = z.detach()
        here, place = self._place(c, targets)
        chosen = logits.gather(1, place[:, None])[:, 0]
        return torch.stack([logits.logsumexp(dim=1), torch.where(here, chosen, 0.0)])

    def backward(self, c: int, total: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The input's gradient of the summed loss, this share's part. total [tokens]: logsumexp over all words."""
        x, z = self._open.pop(c)
        if x.is_meta:
            return hollow(tuple(x.shape))
        gradient = (z.detach() - total[:, None]).exp_()
        here, place = self._place(c, targets)
        gradient.scatter_add_(1, place[:, None], torch.where(here, -1.0, 0.0)[:, None])
        z.backward(gradient)
        return x.grad

    def _place(self, c: int, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (unit,) = self._group.units
        words = targets[self._edges[c] : self._edges[c + 1]]
        here = (words >= unit.first) & (words < unit.end)
        return here, torch.where(here, words - unit.first, 0)

    @property
    def waits(self) -> bool:
        """Whether slabs wait for their backward pass."""
        return bool(self._open)

    @property
    def kept(self) -> list:
        return [list(pair) for pair in self._open.values()]


def slab_edges(tokens: int, slab: int) -> tuple[int, ...]:
    """Where slabs of a sequence begin, and its end."""
    return (*range(0, tokens, slab), tokens)
