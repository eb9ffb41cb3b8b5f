"""Layout of heterogeneous blocks: column strips, in whole rows and columns that cover matrices exactly once.

Devices are put into strips; within a strip all blocks are equally wide and their heights add up to the matrix's.
Given who shares a strip (runners/planning/tiling_groups.py), the best widths and heights are found in whole
numbers, for the time of the blocks rather than for their areas: in time T a device in a strip of width w manages
h(w, T) rows; the strip manages the largest w at which these add up to the matrix's rows; T is long enough when the
widths add up to the matrix's columns. All three are monotone, so nested bisection finds the least T of all layouts with
these strips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.planning.gemm_cost import FOREVER, BlockCosts

_ROUNDING = 1e-9  # heights are whole numbers but for rounding


@dataclass(frozen=True)
class Tiles:
    """Rectangles: device[i] computes rows row0…row1 and columns col0…col1 of products batch0…batch1. Arrays of int."""

    device: np.ndarray
    row0: np.ndarray
    row1: np.ndarray
    col0: np.ndarray
    col1: np.ndarray
    batch0: np.ndarray
    batch1: np.ndarray

    def __len__(self) -> int:
        return len(self.device)

    @property
    def rows(self) -> np.ndarray:
        return self.row1 - self.row0

    @property
    def columns(self) -> np.ndarray:
        return self.col1 - self.col0

    @property
    def products(self) -> np.ndarray:
        return self.batch1 - self.batch0

    def turned(self) -> Tiles:
        """Rows for columns."""
        return Tiles(self.device, self.col0, self.col1, self.row0, self.row1, self.batch0, self.batch1)

    def of(self, index: np.ndarray) -> Tiles:
        """The same with device i called index[i]."""
        return Tiles(index[self.device], self.row0, self.row1, self.col0, self.col1, self.batch0, self.batch1)


def joined(parts: Sequence[Tiles]) -> Tiles:
    return Tiles(*(np.concatenate([getattr(p, name) for p in parts]) for name in Tiles.__dataclass_fields__))


class Strips:
    """Strips of devices over one matrix or several, each strip belonging to one matrix.

    Args:
        groups: the devices (indices into `costs`) of each strip.
        matrix: which matrix each strip belongs to, in order; rows, columns: of the matrices.
    """

    def __init__(
        self, costs: BlockCosts, groups: Sequence[np.ndarray], matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray
    ):
        self.members = np.concatenate(groups)
        lengths = np.array([len(g) for g in groups])
        self.firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        self.strip = np.repeat(np.arange(len(groups)), lengths)
        self.costs = costs.only(self.members)
        self.matrix = matrix
        self.rows, self.columns = rows[matrix].astype(float), columns[matrix].astype(float)
        self._height = self.rows[self.strip]
        self._budgets: tuple[float, np.ndarray] | None = None

    def heights(self, widths: np.ndarray, seconds: float) -> np.ndarray:
        """Whole rows that each member manages, if its strip has that width."""
        if self._budgets is None or self._budgets[0] != seconds:
            self._budgets = seconds, self.costs.budgets(seconds)
        found = np.floor(self.costs.heights(widths[self.strip], self._budgets[1]) + _ROUNDING)
        return np.minimum(np.maximum(found, 0.0), self._height)

    def widths(self, seconds: float, low: np.ndarray | None = None, high: np.ndarray | None = None) -> np.ndarray:
        """The most whole columns that each strip manages; low, high: known bounds."""
        low = np.zeros(len(self.rows)) if low is None else low
        high = self.columns if high is None else high
        while (low < high).any():
            middle = np.ceil((low + high) / 2)
            enough = np.add.reduceat(self.heights(middle, seconds), self.firsts) >= self.rows
            low, high = np.where(enough, middle, low), np.where(enough, high, middle - 1)
        return low

    def tiles(self, widths: np.ndarray, seconds: float) -> Tiles:
        """Blocks of the strips, left to right in each matrix.

        Widths and heights that add up to more than the matrix are cut, the smallest first: a device less is better than
        many devices with a little less.
        """
        widths = widths.astype(int)
        for j in range(int(self.matrix[-1]) + 1):
            of = np.flatnonzero(self.matrix == j)
            widths[of] = _cut(widths[of], int(self.columns[of[0]]))
        heights = self.heights(np.maximum(widths, 1).astype(float), seconds).astype(int)
        column, parts, at = np.zeros(int(self.matrix[-1]) + 1, int), [], [*self.firsts, len(self.members)]
        for j in np.flatnonzero(widths):
            tall = _cut(heights[at[j] : at[j + 1]], int(self.rows[j]))
            used, edges = np.flatnonzero(tall), np.concatenate([[0], np.cumsum(tall)])
            left, product = column[self.matrix[j]], self.matrix[j]
            column[product] += widths[j]
            parts.append(
                (
                    self.members[at[j] + used],
                    edges[used],
                    edges[used + 1],
                    *(np.full(len(used), v) for v in (left, left + widths[j], product, product + 1)),
                )
            )
        return Tiles(*(np.concatenate(v) for v in zip(*parts)))


def _cut(sizes: np.ndarray, total: int) -> np.ndarray:
    """Sizes that add up to `total`, taken from the smallest ones."""
    surplus = int(sizes.sum()) - total
    if surplus <= 0:
        return sizes
    sizes = sizes.copy()
    for i in np.argsort(sizes, kind="stable"):
        cut = min(surplus, int(sizes[i]))
        sizes[i] -= cut
        surplus -= cut
        if not surplus:
            break
    return sizes


def lay_out(
    costs: BlockCosts,
    groups: Sequence[np.ndarray],
    matrix: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    start_s: float,
    precision: float,
) -> Tiles | None:
    """The quickest layout with those strips, or None when memory forbids any.

    Args:
        start_s: a lower bound of the time [s], to search from. precision: relative, of the time found.
    """
    strips = Strips(costs, groups, matrix, rows, columns)
    edges = np.flatnonzero(np.diff(matrix, prepend=-1))

    def enough(widths: np.ndarray) -> bool:
        return bool((np.add.reduceat(widths, edges) >= columns).all())

    if not enough(strips.widths(FOREVER)):
        return None
    low, narrow = start_s, None
    high, step = start_s * (1 + precision), max(precision, 0.02)
    wide = strips.widths(high)
    while not enough(wide):
        low, narrow = high, wide
        high, step = high * (1 + step), step * 2
        wide = strips.widths(high, narrow)
    while high - low > precision * high:
        middle = (low + high) / 2
        widths = strips.widths(middle, narrow, wide)
        if enough(widths):
            high, wide = middle, widths
        else:
            low, narrow = middle, widths
    return strips.tiles(wide, high)
