"""Plans for all matrix products of a training step, and what they add up to: by product, by device, at the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runners.planning.gemm import Gemm, GemmPlan, Pool, Rates, plan_on
from testbed.cluster import Cluster

EXACT = 12  # devices up to which what each one adds is found by planning without it


@dataclass(frozen=True)
class StepPlan:
    """A plan for each product of a step; products of the same shape have the same."""

    gemms: tuple[Gemm, ...]
    by_shape: Mapping[tuple, GemmPlan]

    def of(self, gemm: Gemm) -> GemmPlan:
        return self.by_shape[gemm.shape]

    @property
    def plans(self) -> list[tuple[GemmPlan, int]]:
        """The plans of the different shapes, and how many products have each."""
        counts = Counter(g.shape for g in self.gemms)
        return [(self.by_shape[shape], count) for shape, count in counts.items()]

    @property
    def makespan_s(self) -> float:
        """All products one after the other: what a step takes at most, but for the server's own work."""
        return sum(plan.makespan_s * count for plan, count in self.plans)

    @property
    def bound_s(self) -> float:
        """The sum of what each product takes at least, see Pool.area_bound_s."""
        return sum((plan.makespan_s if plan.local else plan.bound_s) * count for plan, count in self.plans)

    @property
    def server_out_bytes(self) -> int:
        return sum(plan.server_out_bytes * count for plan, count in self.plans)

    @property
    def server_in_bytes(self) -> int:
        return sum(plan.server_in_bytes * count for plan, count in self.plans)


def plan_step(
    cluster: Cluster,
    gemms: Sequence[Gemm],
    *,
    devices: Sequence[str] | None = None,
    rates: Mapping[str, Rates] | None = None,
    server_local: bool = True,
    chunks: float = 1,
    resident_bytes: int | None = None,
) -> StepPlan:
    """Plan every product; see `plan_gemm` for the arguments. Raises InputError as it does."""
    pool = Pool(cluster, devices, rates, chunks, resident_bytes)
    by_shape: dict[tuple, GemmPlan] = {}
    for gemm in gemms:
        if gemm.shape not in by_shape:
            by_shape[gemm.shape] = plan_on(pool, cluster, gemm, server_local=server_local)
    return StepPlan(tuple(gemms), by_shape)


def step_tables(
    cluster: Cluster,
    gemms: Sequence[Gemm],
    *,
    server_local: bool = True,
    chunks: float = 1,
    resident_bytes: int | None = None,
) -> dict[str, Any]:
    """A step's plan for people, JSON-like: totals, and tables by product, by device and by number of devices."""
    settings = {"server_local": server_local, "chunks": chunks, "resident_bytes": resident_bytes}
    step = plan_step(cluster, gemms, **settings)
    growth = growth_table(cluster, gemms, **settings)
    return {
        "makespan_s": step.makespan_s,
        "bound_s": step.bound_s,
        "server_out_bytes": step.server_out_bytes,
        "server_in_bytes": step.server_in_bytes,
        "server_out_grows_as_devices_to_the": growth_exponent(growth),
        "products": product_table(step),
        "devices": device_table(cluster, step, **settings),
        "growth": growth,
    }


def product_table(step: StepPlan) -> list[dict[str, Any]]:
    """Products by name without the layer, `count` of them in a step; times and bytes are of one."""
    counts: Counter[tuple[str, tuple]] = Counter()
    for gemm in step.gemms:
        layer, _, rest = gemm.name.partition(".")
        counts[rest if layer.startswith("layer") else gemm.name, gemm.shape] += 1
    rows = []
    for (name, shape), count in counts.items():
        plan = step.by_shape[shape]
        batch, m, k, n, _ = shape
        rows.append({
            "product": name, "count": count, "products": batch, "m": m, "k": k, "n": n,
            "strategy": plan.strategy, "devices": len(plan.per_device), "blocks": 0 if plan.local else len(plan.blocks),
            "makespan_s": plan.makespan_s, "bound_s": plan.makespan_s if plan.local else plan.bound_s,
            "server_out_bytes": plan.server_out_bytes, "server_in_bytes": plan.server_in_bytes, "reason": plan.reason,
        })  # fmt: skip
    return rows


def device_table(
    cluster: Cluster, step: StepPlan, *, server_local: bool = True, chunks: float = 1, resident_bytes: int | None = None
) -> list[dict[str, Any]]:
    """By device, in the cluster's order, over a whole step.

    memory_bytes: of its largest block. busy_s: from the first byte sent to it to the last one back, summed. binding:
    what limits it for most of that time. adds_s: by how much the step would be longer without it.
    """
    adds = _adds(cluster, step, server_local, chunks, resident_bytes)
    blocks = {shape: Counter(b.device for b in plan.blocks) for shape, plan in step.by_shape.items()}
    rows = []
    for device in cluster.devices:
        total: Counter[str] = Counter()
        binding: Counter[str] = Counter()
        memory = 0
        for plan, count in step.plans:
            share = plan.per_device.get(device.name)
            if share is None:
                continue
            memory = max(memory, share.memory_bytes)
            binding[share.binding] += count * share.time_s
            total.update(
                blocks=count * blocks[plan.gemm.shape][device.name],
                down_bytes=count * share.down_bytes,
                up_bytes=count * share.up_bytes,
                flops=count * share.flops,
                busy_s=count * share.time_s,
            )
        rows.append({
            "device": device.name, "blocks": total["blocks"], "down_bytes": total["down_bytes"],
            "up_bytes": total["up_bytes"], "work_flops": float(total["flops"]), "memory_bytes": memory,
            "busy_s": float(total["busy_s"]), "binding": max(binding, key=binding.get) if binding else "not used",
            "adds_s": adds.get(device.name, 0.0),
        })  # fmt: skip
    return rows


def _adds(
    cluster: Cluster, step: StepPlan, server_local: bool, chunks: float, resident_bytes: int | None
) -> dict[str, float]:
    """Up to EXACT devices by planning without each; beyond, to first order, what the others need for its area."""
    used = {name for plan, _ in step.plans for name in plan.per_device}
    names = [d.name for d in cluster.devices]
    if 1 < len(names) <= EXACT:
        rest = {name: [n for n in names if n != name] for name in names if name in used}
        settings = {"server_local": server_local, "chunks": chunks, "resident_bytes": resident_bytes}
        return {
            name: plan_step(cluster, step.gemms, devices=others, **settings).makespan_s - step.makespan_s
            for name, others in rest.items()
        }
    pool = Pool(cluster, None, None, chunks, resident_bytes)
    adds = np.zeros(len(pool))
    for plan, count in step.plans:
        if plan.local:
            continue
        gemm = plan.gemm
        index = np.array([i for i, name in enumerate(pool.names) if name in plan.per_device])
        costs = pool.costs(gemm.k, gemm.element_bytes, index)
        now, soon = (costs.areas(plan.makespan_s * f, gemm.m, gemm.n) for f in (1.0, 1.01))
        growth = max(float((soon - now).sum()), 1e-30) / (0.01 * plan.makespan_s)  # elements a second more
        longer = now / growth
        if server_local:
            longer = np.minimum(longer, gemm.flops / cluster.server.flops - plan.makespan_s)
        adds[index] += count * longer
    return dict(zip(pool.names, adds.tolist()))


def growth_table(
    cluster: Cluster,
    gemms: Sequence[Gemm],
    *,
    server_local: bool = True,
    chunks: float = 1,
    resident_bytes: int | None = None,
) -> list[dict[str, Any]]:
    """The same step over 1, 2, 4, … of the devices, evenly taken in the cluster's order, up to all."""
    names = [d.name for d in cluster.devices]
    counts = sorted({2**i for i in range(len(names).bit_length())} | {len(names)})
    rows = []
    for count in [c for c in counts if c <= len(names)]:
        some = [names[i * len(names) // count] for i in range(count)]
        step = plan_step(cluster, gemms, devices=some, server_local=server_local, chunks=chunks,
                         resident_bytes=resident_bytes)  # fmt: skip
        used = {name for plan, _ in step.plans for name in plan.per_device}
        rows.append({
            "devices": count, "used": len(used), "makespan_s": step.makespan_s,
            "server_out_bytes": step.server_out_bytes, "server_in_bytes": step.server_in_bytes,
            "device_down_bytes": step.server_out_bytes / max(1, len(used)),
            "device_up_bytes": step.server_in_bytes / max(1, len(used)),
        })  # fmt: skip
    return rows


def growth_exponent(growth: Sequence[Mapping[str, Any]]) -> float | None:
    """x in: the server sends as (devices)^x, from 4 devices on, fitted where as much is sent out as ever; or None."""
    most = max(row["server_in_bytes"] for row in growth)
    points = [
        (row["devices"], row["server_out_bytes"])
        for row in growth
        if most and row["server_in_bytes"] == most and row["devices"] >= 4
    ]
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points, float)).T
    return float(np.polyfit(x, y, 1)[0])
