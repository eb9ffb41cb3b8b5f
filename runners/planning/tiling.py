"""Layout of heterogeneous blocks: column strips, in whole rows and columns that cover a matrix exactly once.

Devices are put into strips; within a strip all blocks are equally wide and their heights add up to the matrix's.
Which devices share a strip is decided on areas, by the dynamic program of Beaumont, Boudet, Rastello and Robert,
"Matrix Multiplication on Heterogeneous Platforms", IEEE TPDS 12 (2001), section on column-based partitions: sorted by
area, strips of successive devices, least sum of half-perimeters. Widths and heights are then found exactly, in whole
numbers, for the cost of the blocks rather than for their areas: in time T a device of a strip of width w manages
h(w, T) rows; a strip manages the largest w whose heights add up to the matrix's; T will do when the widths add
up to the matrix's. All are monotone, so bisection finds the least T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.planning.gemm_cost import BlockCosts

PRECISION = 1e-3  # relative, of the time that bisection finds
FOREVER = 1e30  # seconds: memory alone limits


@dataclass(frozen=True)
class Strips:
    """A layout: device[i] has rows row0[i]…row1[i] and columns col0[i]…col1[i]; seconds = the slowest one's."""

    seconds: float
    device: np.ndarray
    row0: np.ndarray
    row1: np.ndarray
    col0: np.ndarray
    col1: np.ndarray


def strip_groups(areas: np.ndarray, rows: int) -> list[np.ndarray]:
    """Which devices share a strip of that height: least sum of half-perimeters for these areas.

    Devices without area are left out.
    """
    order = np.argsort(-areas, kind="stable")
    order = order[areas[order] > 0]
    sums = np.concatenate([[0.0], np.cumsum(areas[order])]) / rows
    count = len(order)
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    first = np.zeros(count + 1, int)
    index = np.arange(count + 1)
    for end in range(1, count + 1):
        costs = best[:end] + rows + (end - index[:end]) * (sums[end] - sums[:end])
        first[end] = costs.argmin()
        best[end] = costs[first[end]]
    groups = []
    while count:
        groups.append(order[first[count]:count])
        count = first[count]
    return groups[::-1]


def lay_out(costs: BlockCosts, groups: Sequence[np.ndarray], rows: int, columns: int, start_s: float,
            precision: float = PRECISION) -> Strips | None:
    """The quickest whole-number layout with those strips, or None when memory forbids any.

    Args:
        start_s: a lower bound of the time [s], to start the search from.
    """
    members = np.concatenate(groups)
    firsts = np.concatenate([[0], np.cumsum([len(g) for g in groups])[:-1]])
    strip = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    c = costs.only(members)

    def heights(widths: np.ndarray, seconds: float | np.ndarray) -> np.ndarray:
        return np.clip(np.floor(c.heights(widths[strip], seconds) + 1e-9), 0, rows)

    def widths(seconds: float) -> np.ndarray:
        low, high = np.zeros(len(groups)), np.full(len(groups), float(columns))
        while (low < high).any():
            middle = np.ceil((low + high) / 2)
            enough = np.add.reduceat(heights(middle, seconds), firsts) >= rows
            low, high = np.where(enough, middle, low), np.where(enough, high, middle - 1)
        return low

    if widths(FOREVER).sum() < columns:
        return None
    low, high = start_s, start_s * 1.1 + 1e-12
    while widths(high).sum() < columns:
        low, high = high, high * 2
    while high - low > precision * high:
        middle = (low + high) / 2
        if widths(middle).sum() >= columns:
            high = middle
        else:
            low = middle
    wide = widths(high)
    surplus = wide.sum() - columns
    for j in np.argsort(wide, kind="stable"):
        cut = min(surplus, wide[j])
        wide[j] -= cut
        surplus -= cut
    return _blocks(c, members, firsts, strip, wide, heights(np.maximum(wide, 1), high), rows)


def _blocks(c: BlockCosts, members, firsts, strip, wide, high, rows) -> Strips:
    device, row0, row1, col0, col1, column = [], [], [], [], [], 0
    ends = [*firsts[1:], len(members)]
    for j, (first, end) in enumerate(zip(firsts, ends)):
        if wide[j] == 0:
            continue
        tall = high[first:end].astype(int)
        surplus = int(tall.sum()) - rows
        for i in np.argsort(tall, kind="stable"):
            cut = min(surplus, tall[i])
            tall[i] -= cut
            surplus -= cut
        edges = np.concatenate([[0], np.cumsum(tall)])
        used = np.flatnonzero(tall)
        device.append(first + used)
        row0.append(edges[used])
        row1.append(edges[used + 1])
        col0.append(np.full(len(used), column))
        column += int(wide[j])
        col1.append(np.full(len(used), column))
    device, row0, row1, col0, col1 = (np.concatenate(v) for v in (device, row0, row1, col0, col1))
    seconds = c.only(device).time_s(row1 - row0, col1 - col0).max()
    return Strips(float(seconds), members[device], row0, row1, col0, col1)
