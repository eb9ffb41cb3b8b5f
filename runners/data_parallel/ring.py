"""Ring all-reduce among full replicas: coordinator, worker and executor on top of runners/lockstep."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from runners.collectives import Collective, chunk_floats
from runners.data_parallel.options import parse_options
from runners.data_parallel.passes import Passes
from runners.data_parallel.planner import Assignment, Planner
from runners.data_parallel.replica import HollowReplica, Replica, make_replica
from runners.lockstep.coordinator import LockstepCoordinator
from runners.lockstep.executor import LockstepExecutor
from runners.lockstep.protocol import reduce_tag
from runners.lockstep.worker import LockstepWorker
from runners.messaging import cancel
from runners.models.gpt import layer_count
from runners.pipeline.protocol import Epoch
from runners.pipeline.replanning import Replanner
from runners.state import StateId
from testbed.runtime import Plan


class RingCoordinator(LockstepCoordinator):
    """The unit of state is a layer, and every member holds all."""

    def _prepare(self, plan: Plan) -> None:
        self.options = parse_options(plan.training.options)
        self.layers = range(layer_count(plan.model))
        self.first_choice = Assignment.from_data(plan.data["assignment"])
        planner = Planner(plan.model, plan.training, self.options)
        self.replanner = Replanner(plan.cluster, planner, self.first_choice)

    def _about(self, assignment: Assignment, state: StateId) -> dict[str, Any]:
        shares = ", ".join(f"{s.device} ({s.samples})" for s in assignment.shares)
        return {
            "samples": [s.samples for s in assignment.shares],
            "note": f"ring of {len(assignment.shares)} from step {state.version}, samples each: {shares}",
        }


class RingWorker(LockstepWorker):
    """A member of the ring."""

    _parse = staticmethod(parse_options)

    def __init__(self, node, plan: Plan, memory):
        super().__init__(node, plan, memory)
        # as planned at first, whoever is in the ring: the same at all members, and it changes no result
        self.buckets = Assignment.from_data(plan.data["assignment"]).buckets

    def _lanes(self) -> int:
        return len(self.buckets)

    async def _build(self, epoch: Epoch, here: int) -> Replica | HollowReplica:
        states = await self._gather(epoch)

        def build() -> Replica | HollowReplica:
            return make_replica(self.model, self.training, self.buckets, epoch.state, states, optimizer=True)

        return await self.node.compute(build, flops=0, label="build")

    def _make(self, epoch: Epoch, here: int) -> RingExecutor:
        names = [name for name, _, _ in epoch.stages]
        chunk = chunk_floats(self.cluster, names)
        lanes = [
            Collective(self.node, self.data, names, reduce_tag(epoch.number, b), chunk, "ring")
            for b in range(len(self.buckets))
        ]
        passes = Passes(self.model, self.training, self.buckets)
        return RingExecutor(lanes, passes, self.node, epoch, here, self.memory, self.data, self._report)


class RingExecutor(LockstepExecutor):
    """Steps of one replica. lanes: a collective for each bucket, so that buckets reduce beside each other."""

    def __init__(self, lanes: list[Collective], passes: Passes, *args):
        super().__init__(*args)
        self._lanes, self._passes = lanes, passes

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
