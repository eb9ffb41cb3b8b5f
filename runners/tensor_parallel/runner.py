"""The tensor-parallel runner: Megatron's column and row cuts over devices of different speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runners.elastic.checkpoint import check_server_memory
from runners.elastic.runner import ElasticRunner
from runners.elastic.strategy import Member, Strategy
from runners.pipeline.planner import check_job
from runners.tensor_parallel.executor import TensorSteps
from runners.tensor_parallel.options import parse_options
from runners.tensor_parallel.pieces import Slices
from runners.tensor_parallel.planner import Assignment, Planner
from runners.tensor_parallel.shard import HollowShard, Shard, make_shard
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.runtime import Plan
from testbed.units import duration, size


class TensorStrategy(Strategy):
    """The unit of state is a piece over all layers, see runners/tensor_parallel/pieces.py."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.options = parse_options(plan.training.options)
        self.planner = Planner(plan.model, plan.training, self.options)
        self.units = self.planner.pieces.units
        self.first_choice = Assignment.from_data(plan.data["assignment"], self.planner.pieces)

    def build(self, member: Member, states: Mapping[int, torch.Tensor]) -> Shard | HollowShard:
        plan, slices = self.plan, Slices.from_data(member.epoch.stages[member.here][1])
        return make_shard(plan.model, plan.training, self.planner.pieces, slices, member.epoch.state, states)

    def steps(self, member: Member) -> TensorSteps:
        return TensorSteps(member, self.options.all_reduce)

    def about(self, assignment: Assignment, version: int) -> dict[str, Any]:
        members = ", ".join(f"{s.device} ({s.heads} heads, {s.columns} columns)" for s in assignment.shares)
        return {
            "heads": [s.heads for s in assignment.shares],
            "columns": [s.columns for s in assignment.shares],
            "note": f"tensor parallel from step {version}: {members}",
        }


class TensorParallelRunner(ElasticRunner):
    """See docs/tensor_parallel.md."""

    correctness = "E0"
    check_options = staticmethod(parse_options)
    strategy = TensorStrategy

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
