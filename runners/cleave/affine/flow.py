"""What is known of a step at the server: every slab's input and gradient at every group, and who is to have it next.

Slabs go forward as soon as they are there, group by group, to the head's shares; there they need the logarithm of the
exponentials' sum over all words before gradients can come back, last slab of a sample first. All of it stays at the
server until the step is over, so that anything a device had can be given to another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from runners.cleave.affine.duty import Duty
from runners.cleave.affine.lane import Lane
from runners.cleave.affine.protocol import BACKWARD, FORWARD, GRADIENT

Tensors = Sequence[torch.Tensor]
_numbers = itertools.count(1)


class Flow:
    """One step's slabs.

    Args:
        groups, shares: of the chain, and of the head. samples, slabs: of the batch, and of a sample.
        pieces: of each part, (begin, end) of the pieces in which its gradient comes.
        scored: called with (sample, slab) when all shares' scores are in `scores`; calls `put_total` later.
        summed: called with (sample, slab) when all shares' gradients are in `partial`; calls `put_gradient` later.
        embedded: called with (sample, slab, tensors): the embedding's output's gradient.
    """

    def __init__(self, groups: int, shares: int, samples: int, slabs: int, pieces: list[list[tuple[int, int]]],
                 scored: Callable, summed: Callable, embedded: Callable):  # fmt: skip
        self.groups, self.shares, self.samples, self.slabs, self.pieces = groups, shares, samples, slabs, pieces
        self._scored, self._summed, self._embedded = scored, summed, embedded

        def table() -> list[list]:
            return [[None] * slabs for _ in range(samples)]

        self.inputs: list[list[list[Tensors | None]]] = [table() for _ in range(groups + 1)]  # the last is the head's
        self.gradients = [table() for _ in range(groups + 1)]  # [0]: the embedding's; [g + 1]: of group g's output
        self.totals = table()
        self.scores: list[list[dict[int, torch.Tensor]]] = [[{} for _ in range(slabs)] for _ in range(samples)]
        self.partial: list[list[dict[int, Tensors]]] = [[{} for _ in range(slabs)] for _ in range(samples)]
        self.owners: list[dict[int, list[Duty]]] = [{} for _ in range(groups + shares)]
        self.duties: dict[int, Duty] = {}
        self.missing = [[samples] * len(p) for p in pieces]  # of each part's pieces, the samples that they lack

    def stage(self, part: int) -> int:
        """Where the part's inputs are in `inputs`."""
        return min(part, self.groups)

    # -- duties --------------------------------------------------------------------------

    def assign(self, part: int, lane: Lane, samples: Sequence[int], pieces: Sequence[int]) -> Duty:
        """A new duty, with all that is known of its samples on its way to the device."""
        duty = Duty(next(_numbers), part, lane, pieces)
        self.duties[duty.id] = duty
        self.extend(duty, samples)
        return duty

    def extend(self, duty: Duty, samples: Sequence[int]) -> None:
        """More samples for a duty whose gradient has not been asked for."""
        duty.left += len(samples) * self.slabs
        for j in samples:
            duty.samples.append(j)
            duty.posted[j], duty.done[j] = 0, 0
            duty.back[j] = self.slabs - 1
            self.owners[duty.group].setdefault(j, []).append(duty)
            self._forward(duty, j)
            self._backward(duty, j)

    def lost(self, lane: Lane) -> list[Duty]:
        """Take the lane's duties out; those that still owed something."""
        gone = [duty for duty in self.duties.values() if duty.lane is lane]
        for duty in gone:
            del self.duties[duty.id]
            for j in duty.samples:
                self.owners[duty.group][j].remove(duty)
        return [duty for duty in gone if duty.pieces]

    def _forward(self, duty: Duty, j: int) -> None:
        known = self.inputs[self.stage(duty.group)][j]
        while duty.posted[j] < self.slabs and known[duty.posted[j]] is not None:
            c = duty.posted[j]
            duty.posted[j] = c + 1
            duty.lane.post(FORWARD, known[c], u=duty.id, g=duty.group, j=j, c=c, r=self._lacks(duty.group, j, c))
        if duty.posted[j] == self.slabs:
            self._backward(duty, j)

    def _lacks(self, part: int, j: int, c: int) -> int:
        """Whether the result of that slab is not known yet."""
        if part < self.groups:
            return int(self.inputs[part + 1][j][c] is None)
        return int(part - self.groups not in self.scores[j][c])

    def _backward(self, duty: Duty, j: int) -> None:
        part = duty.group
        if part >= self.groups:
            return
        if duty.posted[j] < self.slabs:
            return
        known, c = self.gradients[part + 1][j], duty.back[j]
        while c >= 0 and known[c] is not None:
            r = int(self.gradients[part][j][c] is None)
            duty.lane.post(BACKWARD, known[c], u=duty.id, g=part, j=j, c=c, r=r)
            c -= 1
        duty.back[j] = c

    def _ask_head(self, duty: Duty, j: int, c: int) -> None:
        r = int(duty.group - self.groups not in self.partial[j][c])
        duty.lane.post(BACKWARD, [self.totals[j][c]], u=duty.id, g=duty.group, j=j, c=c, r=r)

    # -- what becomes known --------------------------------------------------------------

    def put_input(self, stage: int, j: int, c: int, tensors: Tensors) -> None:
        self.inputs[stage][j][c] = tensors
        parts = (stage,) if stage < self.groups else range(self.groups, self.groups + self.shares)
        for part in parts:
            for duty in self.owners[part].get(j, ()):
                self._forward(duty, j)

    def put_total(self, j: int, c: int, total: torch.Tensor) -> None:
        self.totals[j][c] = total
        for part in range(self.groups, self.groups + self.shares):
            for duty in self.owners[part].get(j, ()):
                if (j, c) in duty.scored:
                    self._ask_head(duty, j, c)

    def put_gradient(self, stage: int, j: int, c: int, tensors: Tensors) -> None:
        """Of the input of `stage`."""
        self.gradients[stage][j][c] = tensors
        if stage == 0:
            self._embedded(j, c, tensors)
            return
        for duty in self.owners[stage - 1].get(j, ()):
            self._backward(duty, j)

    # -- results -------------------------------------------------------------------------

    def forward_done(self, duty: Duty, j: int, c: int, tensors: Tensors) -> None:
        duty.done[j] += 1
        part = duty.group
        if part < self.groups:
            if tensors and self.inputs[part + 1][j][c] is None:
                self.put_input(part + 1, j, c, tensors)
            return
        duty.scored.add((j, c))  # from now on it can be asked for the gradient
        scores = self.scores[j][c]
        share = part - self.groups
        if self.totals[j][c] is not None:
            self._ask_head(duty, j, c)
        elif tensors and share not in scores:
            scores[share] = tensors[0]
            if len(scores) == self.shares:
                self._scored(j, c)

    def backward_done(self, duty: Duty, j: int, c: int, tensors: Tensors) -> None:
        duty.done[j] += 1
        duty.left -= 1
        part = duty.group
        if tensors:
            if part < self.groups:
                if self.gradients[part][j][c] is None:
                    self.put_gradient(part, j, c, tensors)
            else:
                partial, share = self.partial[j][c], part - self.groups
                if share not in partial:
                    partial[share] = tensors
                    if len(partial) == self.shares:
                        self._summed(j, c)
        if duty.left == 0:
            duty.handing = True
            spans = self.pieces[part]
            duty.lane.post(GRADIENT, u=duty.id, p=[[p, *spans[p]] for p in sorted(duty.pieces)])

    def piece_done(self, duty: Duty, piece: int) -> bool:
        """A piece of a duty's gradient came; whether the part's gradient is complete now."""
        duty.pieces.discard(piece)
        missing = self.missing[duty.group]
        missing[piece] -= len(duty.samples)
        return not any(missing)
