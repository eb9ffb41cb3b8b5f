"""The GEMM planner: time to plan, makespan over the area bound, makespan over the exact optimum. JSON, a row a line.

planned: all products of a step of Llama-2-70B (samples of 1,024 tokens, batch 128, two bytes an element) over N devices of
mixed speeds behind mixed links (2 to 10 times faster down than up), with a server whose link binds nobody and with one
of 100 and 10 Gbit/s. `worst_over_bound`, `step_over_bound`: of a product, and of all together.
shared: the products of one matrix, over the bound for tasks that share the server's uplink (tests/unit/shared_bound.py).
exact: random small products over 2 to 6 devices against every guillotine layout, seeds that the unit tests do not use.
growth: the server's egress for one product over even devices, beside the figure of equal squares, b k (m + n) √N.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit")]

from exact_layout import exact_makespan_s  # noqa: E402
from gemm_checks import mixed_cluster, uniform_cluster  # noqa: E402
from shared_bound import shared_bound_s  # noqa: E402
from test_gemm_quality import random_case  # noqa: E402

from runners.planning.gemm import STREAMED, Gemm, Pool, plan_gemm  # noqa: E402
from runners.planning.gemm_step import plan_step  # noqa: E402
from runners.planning.transformer_gemms import gemms  # noqa: E402
from testbed.cluster.published import published  # noqa: E402


def row(**values) -> None:
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}), flush=True)


def planned(devices: int, server_bps: float, chunks: float = 1) -> None:
    products = gemms(published("llama-2-70b"), 128, element_bytes=2)
    cluster = mixed_cluster(np.random.default_rng(1), devices, memory=(4 << 30, 8 << 30, 16 << 30), server=server_bps)
    plan_gemm(cluster, products[0], server_local=False)  # imports and caches
    wall, cpu = time.perf_counter(), time.process_time()
    step = plan_step(cluster, products, server_local=False, chunks=chunks)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    row(
        bench="planned",
        devices=devices,
        server_gbps=server_bps / 1e9,
        chunks="streamed" if chunks == STREAMED else chunks,
        products=len(products),
        shapes=len(step.by_shape),
        wall_s=wall,
        cpu_s=cpu,
        worst_over_bound=max(plan.makespan_s / plan.bound_s for plan, _ in step.plans),
        step_over_bound=step.makespan_s / step.bound_s,
        most_devices_used=max(len(p.per_device) for p, _ in step.plans),
    )


def shared(devices: int, server_bps: float) -> None:
    cluster = mixed_cluster(np.random.default_rng(1), devices, memory=(4 << 30, 8 << 30, 16 << 30), server=server_bps)
    pool = Pool(cluster)
    seen, ratios = set(), []
    for gemm in gemms(published("llama-2-70b"), 128, element_bytes=2):
        if gemm.batch == 1 and gemm.shape not in seen:
            seen.add(gemm.shape)
            ratios.append(plan_gemm(cluster, gemm, server_local=False).makespan_s / shared_bound_s(pool, gemm))
    row(
        bench="shared",
        devices=devices,
        server_gbps=server_bps / 1e9,
        shapes=len(ratios),
        mean_over_bound=float(np.mean(ratios)),
        worst_over_bound=max(ratios),
    )


def exact(first: int, count: int) -> None:
    ratios, cpu = [], 0.0
    for seed in range(first, first + count):
        cluster, gemm = random_case(seed)
        best = exact_makespan_s(cluster, gemm)
        if np.isfinite(best):
            before = time.process_time()
            ratios.append(max(1.0, plan_gemm(cluster, gemm, server_local=False).makespan_s / best))
            cpu += time.process_time() - before
    row(
        bench="exact",
        cases=len(ratios),
        mean=float(np.mean(ratios)),
        p99=float(np.percentile(ratios, 99)),
        worst=max(ratios),
        plan_cpu_ms=1e3 * cpu / len(ratios),
    )


def growth() -> None:
    gemm = Gemm("test", 8192, 4096, 4096, element_bytes=2)
    for devices in (4, 16, 64, 256, 1024):
        plan = plan_gemm(uniform_cluster(devices, server=1e15), gemm, server_local=False)
        share = max(plan.per_device.values(), key=lambda s: s.down_bytes)
        row(
            bench="growth",
            devices=devices,
            egress_gb=plan.server_out_bytes / 1e9,
            equal_squares_gb=2 * 4096 * (8192 + 4096) * devices**0.5 / 1e9,
            device_down_mb=share.down_bytes / 1e6,
            device_up_mb=share.up_bytes / 1e6,
        )


def main() -> None:
    for devices in (100, 1000, 8192):
        planned(devices, 1e15)
    planned(1000, 1e11)
    for chunks in (1, 2, 4, 8, 16, STREAMED):
        planned(1000, 1e10, chunks)
    shared(300, 3e9)
    exact(10_000, 500)
    growth()


if __name__ == "__main__":
    main()
