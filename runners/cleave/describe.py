"""The plan in words and tables: for every matrix product where it is computed, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runners.cleave.capture import products
from runners.cleave.options import CleaveOptions
from runners.cleave.planned import Plans
from runners.cleave.precision import Codec
from runners.cleave.predict import Prediction
from runners.planning.gemm import Gemm, GemmPlan, default_rates
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.units import duration, size


def plans_of(cluster: Cluster, options: CleaveOptions) -> Plans:
    """Plans for all of a cluster's devices at the rates that it states."""
    rates = default_rates(cluster)
    names = [d.name for d in cluster.devices]
    return Plans(cluster, options, Codec(options.wire), lambda: (names, rates))


def describe(plans: Plans, model: ModelSpec, training: TrainingSpec) -> dict[str, Any]:
    """`Plan.data`: `products`, a row each."""
    return {"products": [_row(name, gemm, times, plans.of(gemm).plan) for name, gemm, times in
                         products(model, training.batch)]}  # fmt: skip


def _row(name: str, gemm: Gemm, times: int, plan: GemmPlan) -> dict[str, Any]:
    where = "server" if plan.local else f"{len({b.device for b in plan.blocks})} devices"
    binding = sorted({s.binding for s in plan.per_device.values()})
    return {
        "product": name.replace("layer0.", "layer*.") if times > 1 else name, "times": times, "m": gemm.m, "k": gemm.k,
        "n": gemm.n, "batch": gemm.batch, "where": where, "makespan_s": plan.makespan_s,
        "server_out_bytes": plan.server_out_bytes, "server_in_bytes": plan.server_in_bytes,
        "binding": ", ".join(binding), "reason": plan.reason,
    }  # fmt: skip


def notes(cluster: Cluster, data: dict[str, Any], predicted: Prediction) -> list[str]:
    rows = data["products"]
    sent = [r for r in rows if r["where"] != "server"]
    count = sum(r["times"] for r in rows)
    out = [
        f"{sum(r['times'] for r in sent)} of {count} matrix products a step go out to {len(cluster.devices)} devices; "
        f"predicted step {duration(predicted.step_time_s)}",
        f"server: {size(predicted.server_out_bytes)} out and {size(predicted.server_in_bytes)} in a step; "
        f"{size(predicted.saved_bytes)} more are not sent because devices have them",
    ]
    out += [f"{kind}: {_names(r['product'] for r in chosen)}" for kind, chosen in (
        ("sent", sent), ("at the server", [r for r in rows if r["where"] == "server"])) if chosen]  # fmt: skip
    return out


def _names(names: Iterable[str]) -> str:
    parts: dict[str, list[str]] = {}
    for name in names:
        stem, _, kind = name.rpartition(".")
        parts.setdefault(stem, []).append(kind)
    return ", ".join(f"{stem} ({', '.join(kinds)})" for stem, kinds in parts.items())
