"""The pipeline runner: GPipe and 1F1B with flush over volunteers' devices, with recovery from churn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runners.costs import FLOPS_PER_BYTE
from runners.elastic.checkpoint import check_server_memory
from runners.elastic.protocol import Epoch, activation_tag, gradient_tag
from runners.elastic.runner import ElasticRunner
from runners.elastic.strategy import Member, Strategy
from runners.models.gpt import layer_count
from runners.pipeline.executor import PipelineSteps
from runners.pipeline.options import PipelineOptions, parse_options
from runners.pipeline.planner import Assignment, Planner, check_job
from runners.pipeline.stage import HollowStage, Stage, make_stage
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.runtime import Plan
from testbed.units import duration, size


class PipelineStrategy(Strategy):
    """The unit of state is a layer; each is on one device."""

    options: PipelineOptions

    def __init__(self, plan: Plan):
        self.model, self.training = plan.model, plan.training
        self.options = parse_options(plan.training.options)
        self.units = layer_count(plan.model)
        self.planner = Planner(plan.model, plan.training, self.options)
        self.first_choice = Assignment.from_data(plan.data["assignment"])

    def build(self, member: Member, states: Mapping[int, torch.Tensor]) -> Stage | HollowStage:
        _, first, end = member.epoch.stages[member.here]
        return make_stage(
            self.model, self.training, first, end, member.epoch.state, states,
            recompute=self.options.recompute, wire=self.options.wire,
        )  # fmt: skip

    def steps(self, member: Member) -> PipelineSteps:
        return PipelineSteps(member, self.options)

    def tags(self, epoch: Epoch, here: int) -> list[tuple[str, str]]:
        before = [(epoch.stages[here - 1][0], activation_tag(epoch.number))] if here > 0 else []
        last = here == len(epoch.stages) - 1
        return before if last else [*before, (epoch.stages[here + 1][0], gradient_tag(epoch.number))]

    def about(self, assignment: Assignment, version: int) -> dict[str, Any]:
        stages = ", ".join(f"{s.device} ({s.layers})" for s in assignment.stages)
        return {
            "stages": [s.layers for s in assignment.stages],
            "note": f"{self.options.schedule} from step {version}: {stages}",
        }


class PipelineRunner(ElasticRunner):
    """See docs/pipeline.md."""

    correctness = "E0"
    check_options = staticmethod(parse_options)
    strategy = PipelineStrategy

    def plan(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Plan:
        """Cut the model into stages over the cluster's devices.

        Raises:
            InputError: bad settings; more stages than layers or devices; memory too small, with device and
            bytes.
        """
        options = parse_options(training.options)
        check_job(model, training)
        if options.checkpoint_every:
            check_server_memory(cluster, model)
        planner = Planner(model, training, options)
        assignment = planner.plan(cluster)
        return Plan(
            runner="pipeline", model=model, training=training, cluster=cluster,
            data=_describe(assignment, cluster, training) | {"load": _load(planner, assignment, cluster)},
            predicted={
                "step_time_s": assignment.step_time_s,
                "bubble_fraction": assignment.bubble_fraction,
                "samples_per_s": training.batch / assignment.step_time_s,
            },
            notes=_notes(assignment, cluster, model, options.schedule),
        )  # fmt: skip


def _describe(assignment: Assignment, cluster: Cluster, training: TrainingSpec) -> dict[str, Any]:
    used = set(assignment.devices)
    # every micro-batch's output crosses once, and its gradient comes back
    per_step = [2 * training.micro_batches * s.output_bytes for s in assignment.stages[:-1]]
    return {
        "assignment": assignment.as_data(),
        "spares": [d.name for d in cluster.devices if d.name not in used],
        "memory_bytes": {s.device: s.memory_bytes for s in assignment.stages},
        "boundary_bytes_per_step": per_step,
    }


def _load(planner: Planner, assignment: Assignment, cluster: Cluster) -> dict[str, float]:
    """What a step demands of the machine that emulates it (docs/fidelity.md, "Before the start").

    Of the micro-batches + stages - 1 slots of a step, as many as the larger number are not filling and not draining.
    Updates must keep their time where they are many: one in twenty computations may be late (`overrun_count`).
    """
    boundaries, micro_batches = assignment.stages[:-1], planner.training.micro_batches
    stages = len(assignment.stages)
    computations = micro_batches * (3 if planner.options.recompute else 2) + 1  # of a stage in a step
    speeds = [cluster.device(name).flops for name in assignment.devices]
    return {
        "flops": sum(planner.training.batch * planner.sample_flops(c) + c.update_flops for c in planner.layers),
        "messages": 2 * micro_batches * len(boundaries),
        "bytes": 2 * micro_batches * sum(s.output_bytes for s in boundaries),
        "step_s": assignment.step_time_s,
        "peak_flops": planner.timing(cluster, assignment).most_at_once(speeds),
        "peak_traffic": (micro_batches + stages - 1) / max(micro_batches, stages),
        "update_bps": max(speeds) / FLOPS_PER_BYTE if computations < 20 else 0.0,
    }


def _notes(assignment: Assignment, cluster: Cluster, model: ModelSpec, schedule: str) -> list[str]:
    notes = [
        f"{schedule} over {len(assignment.stages)} stages for {layer_count(model)} layers; predicted step "
        f"{duration(assignment.step_time_s)}, of which stages idle {assignment.bubble_fraction:.0%}"
    ]
    notes += [
        f"stage {i}: {s.device} trains {s.layers} ({size(s.memory_bytes)} of memory)"
        for i, s in enumerate(assignment.stages)
    ]
    spares = [d.name for d in cluster.devices if d.name not in assignment.devices]
    if spares:
        notes.append(f"spare: {', '.join(spares)}")
    if cluster.shared_links:
        notes.append("the prediction takes each shared link as if one device used it at a time")
    return notes
