"""Layouts that keep the operand blocks which devices hold already, so that these need not be sent again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runners.planning.gemm_cost import FOREVER, least_time
from runners.planning.gemm_pool import Pool
from runners.planning.tiling import Tiles, joined


def keep_columns(
    pool: Pool, m: int, k: int, n: int, element_bytes: int, held: Mapping[str, tuple[int, int]]
) -> Tiles | None:
    """Strips as the devices hold them, heights anew; None when what they hold is no tiling of the columns.

    In time T a device takes the rows h for which P (h + w - saved) + Q h w is at most T. Devices that hold nothing join
    the strips that have most to do for each device.
    """
    strips: dict[tuple[int, int], list[int]] = {}
    free = []
    for i, name in enumerate(pool.names):
        if name in held:
            strips.setdefault(tuple(held[name]), []).append(i)
        else:
            free.append(i)
    spans = sorted(strips)
    if not spans or spans[0][0] != 0 or spans[-1][1] != n or any(a[1] != b[0] for a, b in zip(spans, spans[1:])):
        return None
    costs = pool.costs(k, element_bytes, np.arange(len(pool)))
    for i in free:
        speed = {s: sum(1 / costs.time_s(1.0, float(s[1] - s[0]))[strips[s]]) / (s[1] - s[0]) for s in spans}
        strips[min(speed, key=speed.get)].append(i)
    parts = []
    for low, high in spans:
        index = np.array(strips[low, high])
        own = costs.only(index)
        width = float(high - low)
        holds = np.array([pool.names[i] in held for i in index])

        def heights(seconds: float, own=own, width=width, holds=holds) -> np.ndarray:
            budgets = own.budgets(seconds)
            budgets[:-1] += own.p[:-1] * width * holds
            late = seconds <= own.delay_s
            return np.where(late, 0.0, np.clip(np.floor(own.heights(width, budgets) + 1e-9), 0, m))

        found = least_time(lambda t, heights=heights: float(heights(t).sum()), float(m), 1.0, 1e-4)
        if found is None or heights(FOREVER).sum() < m:
            return None
        tall = heights(found[1]).astype(int)
        for j in np.argsort(tall, kind="stable"):
            tall[j] -= min(tall[j], tall.sum() - m)
        edges = np.concatenate([[0], np.cumsum(tall)])
        used = np.flatnonzero(tall)
        ones = np.ones(len(used), int)
        parts.append(Tiles(index[used], edges[used], edges[used + 1], low * ones, high * ones, 0 * ones, ones))
    return joined(parts)


def keep_rows(
    pool: Pool, m: int, k: int, n: int, element_bytes: int, held: Mapping[str, tuple[int, int]]
) -> Tiles | None:
    """The same for rows of A."""
    tiles = keep_columns(pool, n, k, m, element_bytes, held)
    return None if tiles is None else tiles.turned()
