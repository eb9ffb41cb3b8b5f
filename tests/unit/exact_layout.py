"""The exact optimum to compare planners with: every layout by straight cuts, in whole rows and columns, by exhaustion."""

from __future__ import annotations

import numpy as np

from runners.planning.gemm import Gemm, default_rates
from testbed.cluster import Cluster


def block_time_s(cluster: Cluster, gemm: Gemm, name: str) -> np.ndarray:
    """[rows, columns] seconds of one block on that device alone on its links; infinite beyond its memory."""
    rates, b, k = default_rates(cluster)[name], gemm.element_bytes, gemm.k
    r, c = np.meshgrid(np.arange(gemm.m + 1), np.arange(gemm.n + 1), indexing="ij")
    seconds = (
        rates.uplink_delay_s
        + rates.downlink_delay_s
        + 8 * b * k * (r + c) / rates.downlink_bps
        + 2 * k * r * c / rates.flops
        + 8 * b * r * c / rates.uplink_bps
    )
    fits = b * (k * (r + c) + r * c) <= cluster.device(name).memory_bytes
    return np.where(r * c == 0, 0.0, np.where(fits, seconds, np.inf))


def exact_makespan_s(cluster: Cluster, gemm: Gemm) -> float:
    """Least makespan over all guillotine layouts of one product with at most one block a device.

    best[S] [rows, columns] is the least time in which the devices of S cover such a rectangle: one of them alone, or cut in
    two somewhere, S in two somehow. The server's link is taken as fast enough.
    """
    names = [d.name for d in cluster.devices]
    best: dict[int, np.ndarray] = {}
    for subset in range(1, 1 << len(names)):
        low = subset & -subset
        if subset == low:
            best[subset] = block_time_s(cluster, gemm, names[low.bit_length() - 1])
            continue
        found = np.full((gemm.m + 1, gemm.n + 1), np.inf)
        found[0, :] = found[:, 0] = 0.0
        part = (subset - 1) & subset
        while part:
            other = subset ^ part
            if part & low:  # each pair once
                one, two = best[part], best[other]
                np.minimum(found, np.minimum(one, two), out=found)
                for cut in range(1, gemm.m):
                    np.minimum(found[cut:], np.maximum(one[cut], two[: gemm.m + 1 - cut]), out=found[cut:])
                for cut in range(1, gemm.n):
                    np.minimum(
                        found[:, cut:],
                        np.maximum(one[:, cut : cut + 1], two[:, : gemm.n + 1 - cut]),
                        out=found[:, cut:],
                    )
            part = (part - 1) & subset
        best[subset] = found
    return float(best[(1 << len(names)) - 1][gemm.m, gemm.n])
