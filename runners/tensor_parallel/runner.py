"""The tensor-parallel runner: Megatron's column and row cuts over devices of different speed."""

from __future__ import annotations

from typing import Any

from runners.collectives import Collective, chunk_floats
from runners.lockstep.coordinator import LockstepCoordinator
from runners.lockstep.protocol import reduce_tag
from runners.lockstep.worker import LockstepWorker
from runners.pipeline.checkpoint import check_server_memory
from runners.pipeline.memory import KeptMemory
from runners.pipeline.planner import check_job
from runners.pipeline.protocol import Epoch
from runners.pipeline.replanning import Replanner
from runners.state import StateId
from runners.tensor_parallel.executor import TensorExecutor
from runners.tensor_parallel.options import parse_options
from runners.tensor_parallel.pieces import Pieces, Slices
from runners.tensor_parallel.planner import Assignment, Planner
from runners.tensor_parallel.shard import HollowShard, Shard, make_shard
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.runtime import Node, Plan
from testbed.units import duration, size


class TensorParallelRunner:
    """See docs/tensor_parallel.md. One instance serves one node, and outlives a lost lease but not a kill."""

    correctness = "E0"
    check_options = staticmethod(parse_options)

    def __init__(self) -> None:
        self._memory = KeptMemory()

    def plan(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Plan:
        """Share heads, columns and words out by speed within memory.

        Raises:
            InputError: bad settings; memory too small, with bytes.
        """
        options = parse_options(training.options)
        check_job(model, training)
        if options.checkpoint_every:
            check_server_memory(cluster, model)
        planner = Planner(model, training, options)
        assignment = planner.plan(cluster)
        used = set(assignment.devices)
        each = bytes_each_way(model, training, len(assignment.shares))
        return Plan(
            runner="tensor_parallel", model=model, training=training, cluster=cluster,
            data={
                "assignment": assignment.as_data(),
                "spares": [d.name for d in cluster.devices if d.name not in used],
                "memory_bytes": {s.device: s.memory_bytes for s in assignment.shares},
                "bytes_per_step": {"device_up": each, "device_down": each, "server_up": 0, "server_down": 0},
            },
            predicted={
                "step_time_s": assignment.step_time_s,
                "communication_s": assignment.communication_s,
                "samples_per_s": training.batch / assignment.step_time_s,
            },
            notes=_notes(assignment, cluster, model, training, options.all_reduce),
        )  # fmt: skip

    async def coordinate(self, node: Node, plan: Plan) -> None:
        """The server's part."""
        await TensorCoordinator(node, plan).run()

    async def work(self, node: Node, plan: Plan) -> None:
        """A device's part."""
        with self._memory.of(node.name) as memory:
            await TensorWorker(node, plan, memory).run()


class TensorCoordinator(LockstepCoordinator):
    """The unit of state is a piece over all layers, see runners/tensor_parallel/pieces.py."""

    def _prepare(self, plan: Plan) -> None:
        self.options = parse_options(plan.training.options)
        planner = Planner(plan.model, plan.training, self.options)
        self.layers = range(planner.pieces.units)
        self.first_choice = Assignment.from_data(plan.data["assignment"], planner.pieces)
        self.replanner = Replanner(plan.cluster, planner, self.first_choice)

    def _about(self, assignment: Assignment, state: StateId) -> dict[str, Any]:
        members = ", ".join(f"{s.device} ({s.heads} heads, {s.columns} columns)" for s in assignment.shares)
        return {
            "heads": [s.heads for s in assignment.shares],
            "columns": [s.columns for s in assignment.shares],
            "note": f"tensor parallel from step {state.version}: {members}",
        }


class TensorWorker(LockstepWorker):
    """A member."""

    _parse = staticmethod(parse_options)

    def _lanes(self) -> int:
        return 1

    async def _build(self, epoch: Epoch, here: int) -> Shard | HollowShard:
        states, slices = await self._gather(epoch), Slices.from_data(epoch.stages[here][1])

        def build() -> Shard | HollowShard:
            return make_shard(self.model, self.training, Pieces(self.model), slices, epoch.state, states)

        return await self.node.compute(build, flops=0, label="build")

    def _make(self, epoch: Epoch, here: int) -> TensorExecutor:
        names = [stage[0] for stage in epoch.stages]
        tag, chunk = reduce_tag(epoch.number, 0), chunk_floats(self.cluster, names)
        collective = Collective(self.node, self.data, names, tag, chunk, self.options.all_reduce)
        return TensorExecutor(
            collective, self.model, self.training, self.node, epoch, here, self.memory, self.data, self._report
        )


def bytes_each_way(model: ModelSpec, training: TrainingSpec, members: int) -> float:
    """What each member sends a step, and receives: all-reduces of the batch's activations, 2 (R-1) / R of each."""
    tokens = training.batch * model.sequence
    reduced = tokens * (model.d_model * (4 * model.layers + 1) + 3)
    return 4 * reduced * 2 * (members - 1) / members


def _notes(
    assignment: Assignment, cluster: Cluster, model: ModelSpec, training: TrainingSpec, algorithm: str
) -> list[str]:
    members = assignment.shares
    each = bytes_each_way(model, training, len(members))
    notes = [
        f"tensor parallel over {len(members)} devices, {4 * model.layers + 3} all-reduces ({algorithm}) a micro-batch; "
        f"predicted step {duration(assignment.step_time_s)}, of which {duration(assignment.communication_s)} "
        "for all-reduces",
        f"each device sends and receives {size(each)} a step",
    ]
    notes += [
        f"{s.device}: {s.heads} heads, {s.columns} feed-forward columns, {s.words} words "
        f"({size(s.memory_bytes)} of memory)"
        for s in members[:16]
    ]
    if len(members) > 16:
        notes.append(f"and {len(members) - 16} more")
    spares = [d.name for d in cluster.devices if d.name not in assignment.devices]
    if spares:
        notes.append(f"spare: {', '.join(spares[:16])}")
    if cluster.shared_links:
        notes.append("the prediction takes each shared link as if one device used it at a time")
    return notes
