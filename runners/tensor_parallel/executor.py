"""One member's steps under tensor parallelism: halves of blocks, and an all-reduce after each."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runners.collectives import Collective, chunk_floats
from runners.costs import BACKWARD
from runners.data import Batches, micro_batch_sizes
from runners.elastic.lockstep import LockstepSteps
from runners.elastic.protocol import reduce_tag
from runners.elastic.strategy import Member
from runners.tensor_parallel.shard import HollowShard, Shard


class TensorSteps(LockstepSteps):
    """Steps of one shard."""

    keeps = True

    def __init__(self, member: Member, algorithm: str):
        super().__init__(member)
        training, names = member.plan.training, member.names
        tag, chunk = reduce_tag(self.epoch.number, 0), chunk_floats(member.plan.cluster, names)
        self._collective = Collective(self.node, self.outbox, names, tag, chunk, algorithm)
        self._batches = Batches(member.plan.model, training)
        self._sizes = micro_batch_sizes(training.batch, training.micro_batches)

    def uploads(self) -> set[int]:
        units = set(self.memory.stage.pieces.units_of(self.memory.stage.slices))
        return units if self.here == 0 else units - {0}

    async def reduce(self, step: int) -> torch.Tensor:
        losses, first = [], 0
        for m, n in enumerate(self._sizes):
            losses.append(await self._micro_batch(self.memory.stage, step, m, first, n))
            first += n
        return torch.stack(losses).sum()

    async def _micro_batch(self, shard: Shard | HollowShard, step: int, m: int, first: int, n: int) -> torch.Tensor:
        """Forward and backward of samples [first, first + n); their share of the loss, the same at each member."""
        halves, pieces, slices = shard.halves, shard.pieces, shard.slices
        cost = [n * pieces.forward_flops(k, slices) for k in ("groups", "columns")]
        words = n * pieces.forward_flops("words", slices)
        last = len(halves) - 1
        targets: torch.Tensor = None
        x: torch.Tensor = None  # the residual stream, then its gradient

        async def run(fn: Callable[[], torch.Tensor], flops: float, label: str) -> torch.Tensor:
            return await self.node.compute(fn, flops=flops, label=f"{label} of {m}")

        def begin() -> torch.Tensor:
            nonlocal x, targets
            shard.finish()  # what the micro-batch before left to do
            tokens, targets = (t[first : first + n] for t in self._batches.batch(step))
            x = shard.embed(tokens)
            return halves[0](x)

        part = await run(begin, cost[0], "forward 0")
        for k in range(last + 1):
            total = await self._sum(part)

            def ahead(k=k, total=total) -> torch.Tensor:
                nonlocal x
                x = halves[k].add(x, total)
                return halves[k + 1](x) if k < last else shard.logits_max(x)

            part = await run(ahead, cost[(k + 1) % 2] if k < last else words * 3 / 4, f"forward {k + 1}")
        largest = await self._collective.all_reduce(part, torch.maximum)
        part = await run(lambda: shard.loss_parts(largest, targets), words / 4, "loss")
        sums = await self._sum(part)

        def turn() -> tuple[torch.Tensor, torch.Tensor]:
            return shard.loss(sums), shard.backward_logits()

        loss, part = await run(turn, BACKWARD * words, "backward head")
        total = await self._sum(part)

        def back_into_blocks() -> torch.Tensor:
            nonlocal x
            x = shard.backward_norm(total)
            return halves[last].backward(x)

        part = await run(back_into_blocks, BACKWARD * cost[last % 2], f"backward {last}")
        for k in range(last, 0, -1):
            total = await self._sum(part)

            def back(k=k, total=total) -> torch.Tensor:
                nonlocal x
                x = halves[k].backward_norm(x, total)
                return halves[k - 1].backward(x)

            part = await run(back, BACKWARD * cost[(k - 1) % 2], f"backward {k - 1}")
        total, gradient = await self._sum(part), x
        shard.later = lambda: shard.backward_embedding(halves[0].backward_norm(gradient, total))
        return loss

    async def _sum(self, part: torch.Tensor) -> torch.Tensor:
        return (await self._collective.all_reduce(part.flatten())).view(part.shape)
