"""Whole pieces of work for devices of different speed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


def whole_shares(total: int, speeds: Sequence[float], most: Sequence[int] | None = None) -> list[int]:
    """`total` equal pieces, so that the one who needs longest, pieces / speed, needs as little as can be.

    Nearly proportional to speed; a device that would only make it longer gets none.

    Args:
        most: the most pieces that each can take.

    Raises:
        ValueError: fewer places than pieces.
    """
    limits = list(most) if most is not None else [total] * len(speeds)
    if sum(min(m, total) for m in limits) < total:
        raise ValueError(f"{total} pieces, but room for {sum(limits)}")
    everyone = sum(speeds)
    shares = [min(m, math.floor(total * s / everyone)) for s, m in zip(speeds, limits)]
    left = total - sum(shares)
    # one by one to whoever is done with it first (Graham 1969): optimal for equal pieces, and started from the
    # proportional shares it stays so, since none of those exceeds the optimum's finishing time
    heap = [((shares[i] + 1) / speeds[i], i) for i in range(len(speeds)) if shares[i] < limits[i]]
    heapq.heapify(heap)
    for _ in range(left):
        _, i = heapq.heappop(heap)
        shares[i] += 1
        if shares[i] < limits[i]:
            heapq.heappush(heap, ((shares[i] + 1) / speeds[i], i))
    return shares
