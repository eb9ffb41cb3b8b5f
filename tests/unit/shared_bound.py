"""A bound for plans whose tasks go out at once and share the server's uplink: tighter than the area bound there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from runners.planning.gemm import Gemm, Pool
from runners.planning.gemm_cost import least_time


def shared_bound_s(pool: Pool, gemm: Gemm, cells: int = 400) -> float:
    """No plan without streaming is quicker, however the server's uplink is shared out in fixed parts.

    In time T device i with d of the uplink computes an area A_i(d), at most. Over all ways to share the uplink C out, the
    sum of areas is at most λ C + Σ max_d (A_i(d) - λ d) for every λ >= 0 (weak duality), so T is too short when that is
    below the product's area for some λ. A_i grows with d: between two points of a grid it is at most what it is at the
    upper one while d is at least the lower one, so that the grid costs precision and not validity. That the server's
    downlink is shared too is left out.
    """
    area = float(gemm.batch) * gemm.m * gemm.n
    alone = pool.costs(gemm.k, gemm.element_bytes, np.arange(len(pool)), alone=True)
    parts = np.geomspace(3e-3, 1, cells)
    lower = np.concatenate([[0.0], parts[:-1]])[:, None] * pool.down

    def most(seconds: float) -> float:
        areas = np.array([
            np.minimum(replace(alone, p=np.concatenate([alone.p[:-1] / x, alone.p[-1:]])).areas(seconds, gemm.m, gemm.n), area)
            for x in parts])  # fmt: skip

        def dual(log_price: float) -> float:
            price = np.exp(log_price) * area / pool.server_up
            return price * pool.server_up + np.maximum((areas - price * lower).max(axis=0), 0.0).sum()

        low, high = -30.0, 5.0  # convex in the price: thirds
        for _ in range(40):
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, b) if dual(a) < dual(b) else (a, high)
        return min(dual(low), float(areas[-1].sum()))

    return least_time(most, area, pool.area_bound_s(*gemm.shape), 1e-3)[0]
