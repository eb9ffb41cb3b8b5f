"""Which devices share a strip of a layout (runners/planning/tiling.py).

* up to EXHAUSTIVE devices: every way to put them into strips is tried;
* up to CONTIGUOUS: all strips of devices that follow each other in order of size, by dynamic programming on the
  columns that they manage in a given time;
* beyond: the dynamic program of Beaumont, Boudet, Rastello and Robert, "Matrix Multiplication on Heterogeneous
  Platforms", IEEE TPDS 12 (2001), on areas: strips of successive devices in order of area, least sum of
  half-perimeters.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from runners.planning.gemm_cost import FOREVER, BlockCosts
from runners.planning.tiling import Strips

EXHAUSTIVE = 7  # devices: 877 ways over 127 possible strips
CONTIGUOUS = 14  # devices: 105 possible strips


def by_area(areas: np.ndarray, rows: int) -> list[np.ndarray]:
    """Strips of that height for given areas, least sum of half-perimeters. Devices without area are left out."""
    order = np.argsort(-areas, kind="stable")
    order = order[areas[order] > 0]
    count = len(order)
    sums = np.concatenate([[0.0], np.cumsum(areas[order])]) / rows
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    first = np.zeros(count + 1, int)
    index = np.arange(count + 1)
    for end in range(1, count + 1):
        costs = best[:end] + (end - index[:end]) * (sums[end] - sums[:end])
        first[end] = costs.argmin()
        best[end] = costs[first[end]] + rows
    groups = []
    while count:
        groups.append(order[first[count] : count])
        count = first[count]
    return groups[::-1]


@lru_cache(maxsize=EXHAUSTIVE + 1)
def _partitions(count: int) -> np.ndarray:
    """All partitions of `count` devices into strips: rows of bit masks, filled up with 0."""
    found = [[]]
    for i in range(count):
        bit = 1 << i
        found = [q for p in found for q in (*([*p[:j], p[j] | bit, *p[j + 1 :]] for j in range(len(p))), [*p, bit])]
    return np.array([p + [0] * (count - len(p)) for p in found])


class Chooser:
    """The best choice of strips for a matrix among those that are looked at, for a few devices.

    `groups` are the possible strips; `best(widths)` picks those that cover most columns together.
    """

    def __init__(self, costs: BlockCosts, rows: int, columns: int, order: np.ndarray):
        self.count = len(order)
        self.exhaustive = self.count <= EXHAUSTIVE
        if self.exhaustive:
            bits = np.arange(self.count)
            self.groups = [order[(mask >> bits & 1).astype(bool)] for mask in range(1, 1 << self.count)]
        else:
            self.spans = [(i, j) for j in range(1, self.count + 1) for i in range(j)]
            self.groups = [order[i:j] for i, j in self.spans]
        each = np.zeros(len(self.groups), int)
        self.strips = Strips(costs, self.groups, each, np.array([rows]), np.array([columns]))
        self.columns = columns

    def best(self, widths: np.ndarray) -> tuple[float, list[int]]:
        """Columns covered, and the indices of the chosen groups."""
        if self.exhaustive:
            padded = np.concatenate([[0.0], widths])
            ways = _partitions(self.count)
            totals = padded[ways].sum(axis=1)
            best = int(totals.argmax())
            return float(totals[best]), [mask - 1 for mask in ways[best] if mask and widths[mask - 1]]
        totals, first, at = [0.0], [0], 0
        for end in range(1, self.count + 1):
            sums = np.array(totals) + widths[at : at + end]
            first.append(int(sums.argmax()))
            totals.append(float(sums[first[-1]]))
            at += end
        chosen, end = [], self.count
        while end:
            group = end * (end - 1) // 2 + first[end]
            if widths[group]:
                chosen.append(group)
            end = first[end]
        return totals[-1], chosen[::-1]

    def search(self, start_s: float, precision: float) -> list[np.ndarray] | None:
        """The strips of the quickest layout; None when memory forbids any."""
        if self.best(self.strips.widths(FOREVER))[0] < self.columns:
            return None
        low, narrow = start_s, None
        high, step = start_s * (1 + precision), max(precision, 0.02)
        wide = self.strips.widths(high)
        total, chosen = self.best(wide)
        while total < self.columns:
            low, narrow = high, wide
            high, step = high * (1 + step), step * 2
            wide = self.strips.widths(high, narrow)
            total, chosen = self.best(wide)
        while high - low > precision * high:
            middle = (low + high) / 2
            widths = self.strips.widths(middle, narrow, wide)
            total, ways = self.best(widths)
            if total >= self.columns:
                high, wide, chosen = middle, widths, ways
            else:
                low, narrow = middle, widths
        return [self.groups[i] for i in chosen]


def strip_groups(
    costs: BlockCosts, rows: int, columns: int, start_s: float, precision: float
) -> list[np.ndarray] | None:
    """Strips for a matrix; start_s: a lower bound of the time. None when memory forbids any."""
    areas = costs.block_areas(start_s, rows, columns)
    if len(costs) > CONTIGUOUS:
        return by_area(areas, rows)
    return Chooser(costs, rows, columns, np.argsort(-areas, kind="stable")).search(start_s, precision)
