"""Plans with hybrid tasks (ours) in words and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runners.cleave.affine.planned import planned
from runners.cleave.options import CleaveOptions, parse_options
from runners.cleave.precision import Codec
from runners.costs import STATE_BYTES, layer_costs, model_parameters, training_flops
from runners.planning.affine import AffinePlan
from runners.planning.affine_units import HEAD, Unit
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.errors import InputError
from testbed.runtime import Plan
from testbed.units import duration, size

TASKS = "hybrid"


def is_hybrid(plan: Plan) -> bool:
    return plan.data.get("tasks") == TASKS


def quickest(*makers: Callable[[], Plan]) -> Plan:
    """The plan that is predicted to be quickest among those that can be made. Raises the last InputError if none."""
    plans, problem = [], None
    for make in makers:
        try:
            plans.append(make())
        except InputError as error:
            problem = error
    if not plans:
        raise problem
    return min(plans, key=lambda plan: plan.predicted["step_time_s"])


def hybrid_plan(cluster: Cluster, model: ModelSpec, training: TrainingSpec, options: CleaveOptions) -> Plan:
    """Raises InputError: devices or server without the memory."""
    affine = planned(cluster, model, training.batch, options, tuple(d.name for d in cluster.devices))
    needed = server_bytes(model, training, affine, options)
    if needed > cluster.server.memory_bytes:
        raise InputError(
            f"device {cluster.server.name!r}, memory",
            f"parameters, optimizer and the groups' inputs need {needed:,} bytes ({size(needed)}), but it has "
            f"{int(cluster.server.memory_bytes):,} bytes ({size(cluster.server.memory_bytes)})",
            hint="more memory for the server (topology.server.memory), or a smaller training.batch",
        )
    update_s = _update_s(cluster, model)
    step_s = affine.step_s + update_s
    slabs = -(-model.sequence // affine.slab)
    return Plan(
        "cleave", model, training, cluster,
        {
            "tasks": TASKS, "slab": affine.slab, "parts": [_name(p) for p in affine.parts],
            "devices": _devices(affine),
            "load": {
                "step_s": step_s, "flops": training_flops(model, training.batch) * 4 / 3,
                "messages": 4 * training.batch * slabs * len(affine.parts),
                "bytes": affine.server_out_bytes + affine.server_in_bytes,
            },
        },
        {
            "step_time_s": step_s, "samples_per_s": training.batch / step_s, "bound_s": affine.bound_s + update_s,
            "server_out_bytes": int(affine.server_out_bytes), "server_in_bytes": int(affine.server_in_bytes),
            "server_memory_bytes": needed,
        },
        _notes(cluster, affine, step_s),
    )  # fmt: skip


def _update_s(cluster: Cluster, model: ModelSpec) -> float:
    """Of the last group: what the server does after the last gradient has come, and before the first weights leave."""
    return 0.5 * max(c.update_flops for c in layer_costs(model)) / cluster.server.flops


def server_bytes(model: ModelSpec, training: TrainingSpec, affine: AffinePlan, options: CleaveOptions) -> int:
    """Weights, moments, gradients twice (a part's sum and its layers'), encoded weights; each group's inputs and their
    gradients, encoded; the embedding's output."""
    wire = Codec(options.wire).nbytes(64) / 64
    tokens = training.batch * model.sequence * model.d_model
    return int(
        (STATE_BYTES + 8 + wire) * model_parameters(model) + tokens * (2 * wire * (affine.groups + 1) + 8)
    )  # fmt: skip


def _name(part: tuple[Unit, ...]) -> str:
    if part[0].kind == HEAD:
        return f"head, words {part[0].first} to {part[0].end - 1}"
    first, last = part[0], part[-1]
    if first == last:
        return f"block {first.layer - 1}, {first.kind}"
    if first.layer == last.layer:
        return f"block {first.layer - 1}"
    return f"block {first.layer - 1} {first.kind} to block {last.layer - 1} {last.kind}"


def _devices(affine: AffinePlan) -> list[dict[str, Any]]:
    return [
        {"device": s.device, "part": number, "samples": len(s.samples), "weights_s": s.weights_s, "busy_s": s.busy_s,
         "gradient_s": s.gradient_s}
        for number, row in enumerate(affine.shares) for s in row
    ]  # fmt: skip


def _notes(cluster: Cluster, affine: AffinePlan, step_s: float) -> list[str]:
    used = {s.device for row in affine.shares for s in row}
    heads = len(affine.parts) - affine.groups
    return [
        f"hybrid tasks (ours): {affine.groups} groups of half blocks and {heads} shares of the head over "
        f"{len(used)} of {len(cluster.devices)} devices, slabs of {affine.slab} tokens; predicted step "
        f"{duration(step_s)}, of which filling the chain {duration(affine.fill_s)}",
        f"server: {size(int(affine.server_out_bytes))} out and {size(int(affine.server_in_bytes))} in a step",
    ]


def tables(plan: Plan) -> dict[str, Any]:
    """For `testbed plan`: every part, every device."""
    options = parse_options(plan.training.options)
    names = tuple(d.name for d in plan.cluster.devices)
    affine = planned(plan.cluster, plan.model, plan.training.batch, options, names)
    parts = [
        {"part": _name(part), "parameters": sum(u.parameters for u in part), "devices": len(row),
         "least_samples": min(len(s.samples) for s in row), "most_samples": max(len(s.samples) for s in row),
         "longest_s": max(s.seconds for s in row)}
        for part, row in zip(affine.parts, affine.shares)
    ]  # fmt: skip
    return {
        "step_time_s": plan.predicted["step_time_s"], "bound_s": plan.predicted["bound_s"], "own_s": affine.own_s,
        "fill_s": affine.fill_s, "server_out_bytes": int(affine.server_out_bytes),
        "server_in_bytes": int(affine.server_in_bytes), "server_memory_bytes": plan.predicted["server_memory_bytes"],
        "parts": parts, "devices": _devices(affine),
    }  # fmt: skip
