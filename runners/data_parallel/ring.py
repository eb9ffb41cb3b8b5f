"""Ring all-reduce among full replicas, in lockstep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import torch

from runners.collectives import Collective, chunk_floats
from runners.data_parallel.options import parse_options
from runners.data_parallel.passes import Passes
from runners.data_parallel.planner import Assignment, Planner
from runners.data_parallel.replica import HollowReplica, Replica, make_replica
from runners.elastic.lockstep import LockstepSteps
from runners.elastic.protocol import Epoch, reduce_tag
from runners.elastic.strategy import Member, Strategy
from runners.messaging import cancel
from runners.models.gpt import layer_count
from testbed.runtime import ANY, Plan


class RingStrategy(Strategy):
    """The unit of state is a layer, and every member holds all."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.options = parse_options(plan.training.options)
        self.units = layer_count(plan.model)
        self.planner = Planner(plan.model, plan.training, self.options)
        self.first_choice = Assignment.from_data(plan.data["assignment"])
        # as planned at first, whoever is in the ring: the same at all members, and it changes no result
        self.buckets = self.first_choice.buckets

    def build(self, member: Member, states: Mapping[int, torch.Tensor]) -> Replica | HollowReplica:
        plan, state = self.plan, member.epoch.state
        return make_replica(plan.model, plan.training, self.buckets, state, states, optimizer=True)

    def steps(self, member: Member) -> RingSteps:
        return RingSteps(member, Passes(self.plan.model, self.plan.training, self.buckets))

    def tags(self, epoch: Epoch, here: int) -> list[tuple[None, str]]:
        return [(ANY, reduce_tag(epoch.number, lane)) for lane in range(len(self.buckets))]

    def about(self, assignment: Assignment, version: int) -> dict[str, Any]:
        shares = ", ".join(f"{s.device} ({s.samples})" for s in assignment.shares)
        return {
            "samples": [s.samples for s in assignment.shares],
            "note": f"ring of {len(assignment.shares)} from step {version}, samples each: {shares}",
        }


class RingSteps(LockstepSteps):
    """Steps of one replica: a collective for each bucket, so that buckets reduce beside each other."""

    def __init__(self, member: Member, passes: Passes):
        super().__init__(member)
        chunk = chunk_floats(member.plan.cluster, member.names)
        self._passes = passes
        self._lanes = [
            Collective(self.node, self.outbox, member.names, reduce_tag(self.epoch.number, b), chunk, "ring")
            for b in range(passes.buckets)
        ]

    def uploads(self) -> set[int]:
        members = len(self.epoch.stages)
        return set(range(self.here, self.memory.stage.layers, members))

    async def reduce(self, step: int) -> torch.Tensor:
        replica: Replica | HollowReplica = self.memory.stage
        _, first, end = self.epoch.stages[self.here]
        reducing: dict[int, asyncio.Task] = {}

        def ready(bucket: int, gradient: torch.Tensor, loss: torch.Tensor) -> None:
            if bucket == len(self._lanes) - 1:  # the loss is summed up with the first bucket that is ready
                gradient = torch.cat([gradient, loss.reshape(1)])
            reducing[bucket] = asyncio.create_task(self._lanes[bucket].all_reduce(gradient), name=f"bucket {bucket}")

        try:
            await self._passes.run(self.node, replica, step, first, end, 0, ready)
            reduced = dict(zip(reducing, await asyncio.gather(*reducing.values())))
        finally:
            await cancel(reducing.values())
        last = len(self._lanes) - 1
        loss = reduced[last][-1]
        reduced[last] = reduced[last][:-1]
        replica.reduced = reduced
        return loss
