"""Ranges over many products, one stacked on the other: each device takes rows from where the one before it stopped.

A range may hold the end of a product, whole products, and the beginning of another. This is how attention's many
small products are shared out, and a product whose blocks have to be many because memory is small. Rows are taken with
all of a product's columns; the caller turns products to share out columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.planning.gemm_cost import BlockCosts
from runners.planning.tiling import Tiles

MOST_BLOCKS = 50_000  # more are no plan


@dataclass(frozen=True)
class Piece:
    """`batch` products alike, of which rows and columns from row0, col0 on are to be computed."""

    rows: int
    columns: int
    batch: int = 1
    row0: int = 0
    col0: int = 0
    batch0: int = 0

    @property
    def area(self) -> int:
        return self.rows * self.columns * self.batch

    def turned(self) -> Piece:
        return Piece(self.columns, self.rows, self.batch, self.col0, self.row0, self.batch0)


def ranges(costs: BlockCosts, pieces: Sequence[Piece], start_s: float, precision: float) -> Tiles | None:
    """Ranges for which the slowest device's time is least, by bisection from a lower bound; None: memory forbids."""
    walk = _Walk(costs, pieces)
    if not walk.possible:
        return None
    low, high, step = start_s, start_s * (1 + precision), max(4 * precision, 0.01)
    tiles = walk.take(high)
    while tiles is None:
        if walk.blocks > MOST_BLOCKS:
            return None
        low, high, step = high, high * (1 + step), step * 2
        tiles = walk.take(high)
    while high - low > precision * high:
        middle = (low + high) / 2
        found = walk.take(middle)
        if found is None:
            low = middle
        else:
            high, tiles = middle, found
    return tiles


class _Walk:
    def __init__(self, costs: BlockCosts, pieces: Sequence[Piece]):
        self.pieces = pieces
        self.delay = costs.delay_s.tolist()
        self.times = list(zip(costs.p[:-1].T.tolist(), costs.q[:-1].T.tolist()))
        self.inner = costs.p[-1].tolist()
        self.memory = costs.memory_elements.tolist()
        self._bands: dict[tuple[int, int, int], tuple[int, int]] = {}
        rows, columns = max(p.rows for p in pieces), max(p.columns for p in pieces)
        holds = costs.largest_block(rows, columns)[0] >= 1
        self.order = [int(i) for i in np.argsort(-costs.areas(1e6, rows, columns), kind="stable") if holds[i]]
        self.possible = bool(self.order)
        self.blocks = 0

    def band(self, device: int, rows: int, columns: int) -> tuple[int, int]:
        """How a device's memory makes it take rows: in how many blocks side by side, and how many rows at most.

        Of all numbers of blocks that which needs the fewest operands an element: cuts + columns / rows is least when
        the blocks are about square.
        """
        key = device, rows, columns
        if key not in self._bands:
            k, memory = self.inner[device], self.memory[device]
            square = max(1, int(-k + (k * k + memory) ** 0.5))
            across = -(-columns // square)
            flat = int((memory - k * rows) / (k + rows) + 1e-9)  # columns of a block with all rows
            cuts = {1, across, max(1, across - 1)} | ({-(-columns // flat)} if flat >= 1 else set())
            best = (float("inf"), 1, 0)
            for cut in cuts:
                wide = -(-columns // cut)
                high = min(rows, int((memory - k * wide) / (k + wide) + 1e-9))
                if high >= 1:
                    best = min(best, (cut + columns / high, cut, high))
            self._bands[key] = best[1:]
        return self._bands[key]

    def take(self, seconds: float) -> Tiles | None:
        """Every device takes all that it can in that time; None when something is left over."""
        out: list[tuple[int, ...]] = []
        number, product, row = 0, 0, 0  # the piece, the product in it and its row where the next range begins
        piece = self.pieces[0]
        for device in self.order:
            left = seconds - self.delay[device]
            if left <= 0:
                continue
            p, q = self.times[device]
            constraints = [(left, x, y) for x, y in zip(p, q)]
            k, memory = self.inner[device], self.memory[device]
            while True:
                rows, columns = piece.rows, piece.columns
                cuts, high = self.band(device, rows, columns)
                tall = min(high, rows - row)
                for budget, x, y in constraints:
                    most = (budget - x * columns) / (x * cuts + y * columns)
                    if most < tall:
                        tall = most
                tall = int(tall + 1e-9)
                if tall < 1:
                    break
                count = 1
                if tall == rows and cuts == 1 and product + 1 < piece.batch:  # whole products, as many as there are
                    area = rows * columns
                    whole = min(piece.batch - product, memory / (k * (rows + columns) + area))
                    for budget, x, y in constraints:
                        most = budget / (x * (rows + columns) + y * area)
                        if most < whole:
                            whole = most
                    count = max(1, int(whole + 1e-9))
                at, first = piece.row0 + row, piece.batch0 + product
                for i in range(cuts):
                    out.append((device, at, at + tall, piece.col0 + columns * i // cuts,
                                piece.col0 + columns * (i + 1) // cuts, first, first + count))  # fmt: skip
                sides, area = count * (tall * cuts + columns), count * tall * columns
                constraints = [(budget - x * sides - y * area, x, y) for budget, x, y in constraints]
                row += tall
                if row == rows:
                    row, product = 0, product + count
                    if product == piece.batch:
                        number, product = number + 1, 0
                        if number == len(self.pieces):
                            self.blocks = len(out)
                            return Tiles(*np.array(out).T)
                        piece = self.pieces[number]
                if len(out) > MOST_BLOCKS:
                    self.blocks = len(out)
                    return None
        self.blocks = len(out)
        return None
