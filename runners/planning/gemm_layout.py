"""From devices and products to tiles: which devices take part, and which layout is the quickest.

One product is laid out in strips, of columns or of rows; many are stacked and shared out in ranges, or each gets a
team of devices when there are fewer products than devices. Whatever fits is timed as it would run; the quickest wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from runners.planning.gemm_cost import FOREVER, BlockCosts
from runners.planning.gemm_pool import Pool
from runners.planning.tiling import Tiles, joined, lay_out
from runners.planning.tiling_groups import by_area, strip_groups
from runners.planning.tiling_ranges import MOST_BLOCKS, Piece, ranges

FEW = 40  # devices up to which plans are refined at leisure
MANY = 300  # devices from which one orientation of strips is as good as the other


def quickest(pool: Pool, pieces: Sequence[Piece], k: int, element_bytes: int) -> Tiles | None:
    """Tiles that cover the pieces exactly, over the devices of the pool that help. None: memory forbids all.

    Device numbers are those of the pool.
    """
    best: tuple[float, Tiles] | None = None
    for index in _selections(pool, pieces, k, element_bytes):
        costs = pool.costs(k, element_bytes, index)
        start = _start(costs, pieces)
        if start is None:
            continue
        for tiles in _layouts(costs, pieces, start):
            tiles = tiles.of(index)
            seconds = time_s(pool, tiles, k, element_bytes)
            if best is None or seconds < best[0] * (1 - 1e-9):
                best = seconds, tiles
    return best[1] if best else None


def parts_s(
    pool: Pool, tiles: Tiles, k: int, element_bytes: int, saved: np.ndarray | int = 0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The devices that have tiles, and seconds of each: downlink, compute, uplink, delay, and total.

    saved: rows and columns of each tile that need not be sent.
    """
    index, which = np.unique(tiles.device, return_inverse=True)
    down, up = pool.shared(index)
    rows, columns, products = tiles.rows, tiles.columns, tiles.products
    operands = np.bincount(which, (products * (rows + columns) - saved).astype(float))
    elements = np.bincount(which, products * rows * columns.astype(float))
    parts = {
        "downlink": 8 * element_bytes * k * operands / down,
        "compute": 2 * k * elements / pool.flops[index],
        "uplink": 8 * element_bytes * elements / up,
    }
    stacked = np.stack(list(parts.values()))
    longest = stacked.max(axis=0)
    parts["delay"] = pool.delay[index]
    parts["total"] = pool.delay[index] + longest + (stacked.sum(axis=0) - longest) / pool.chunks
    return index, parts


def time_s(pool: Pool, tiles: Tiles, k: int, element_bytes: int) -> float:
    """The slowest device's seconds, or the server's link's."""
    _, parts = parts_s(pool, tiles, k, element_bytes)
    operands = float((tiles.products * (tiles.rows + tiles.columns)).sum())
    elements = float((tiles.products * tiles.rows * tiles.columns).sum())
    return max(float(parts["total"].max()), pool.server_s(element_bytes * k * operands, element_bytes * elements))


def _start(costs: BlockCosts, pieces: Sequence[Piece]) -> float | None:
    """A lower bound of the time for pieces; None when no device can hold a row and a column."""
    rows, columns = max(p.rows for p in pieces), max(p.columns for p in pieces)
    found = costs.area_time_s(float(sum(p.area for p in pieces)), rows, columns, 1e-3)
    return None if found is None else found[0]


def _selections(pool: Pool, pieces: Sequence[Piece], k: int, element_bytes: int) -> Iterator[np.ndarray]:
    """Sets of devices worth a layout: all; fewer where a shared link makes each one a cost to the others, or where
    there are hardly more elements than devices."""
    everyone = np.arange(len(pool))
    area = sum(p.area for p in pieces)
    alone = pool.costs(k, element_bytes, everyone, alone=True)
    start = _start(alone, pieces)
    if start is None:
        return
    rows, columns = max(p.rows for p in pieces), max(p.columns for p in pieces)
    value = alone.areas(1.2 * start, rows, columns)
    order = np.lexsort((alone.delay_s, -value))
    order = order[np.minimum(*alone.largest_block(rows, columns))[order] >= 1]
    if len(order) * 16 > area:  # whole elements: those who are quickest with one
        one = np.ones(len(pool))
        single = np.where(alone.heights(one, alone.budgets(FOREVER)) >= 1, alone.time_s(one, one), np.inf)
        quick = np.argsort(single, kind="stable")
        quick = quick[np.isfinite(single[quick])]
        for count in sorted({min(len(quick), max(1, area // share)) for share in (1, 2, 4, 8, 16)}):
            yield quick[:count]
        order = quick
    if not pool.contended(order):
        yield order
        return

    found: dict[float, np.ndarray] = {}
    for _ in range(2):
        times = _shared_times(pool, pieces, k, element_bytes, order)
        found |= {seconds: order[:count] for count, seconds in times.items()}
        best = min(times, key=times.get)
        if not np.isfinite(times[best]):
            return
        # Who is worth most, now that it is known what each gets of the shared links
        shared = pool.costs(k, element_bytes, order, level_of=order[:best])
        order = order[np.argsort(-shared.areas(times[best], rows, columns), kind="stable")]
    for seconds in sorted(found)[: 3 if len(pool) <= FEW else 1]:
        yield found[seconds]


def _shared_times(
    pool: Pool, pieces: Sequence[Piece], k: int, element_bytes: int, order: np.ndarray
) -> dict[int, float]:
    """Number of devices, the first in order -> least seconds when they share the links, for numbers around the best."""
    area = float(sum(p.area for p in pieces))
    rows, columns = max(p.rows for p in pieces), max(p.columns for p in pieces)
    least = sum(p.batch * (p.rows + p.columns) for p in pieces)

    def estimate(count: int) -> float:
        costs = pool.costs(k, element_bytes, order[:count])
        seconds = _start(costs, pieces)
        if seconds is None:
            return np.inf
        blocks = np.minimum(costs.areas(seconds, rows, columns), area)
        operands = max(2 * np.sqrt(blocks).sum(), least)
        return max(seconds, pool.server_s(element_bytes * k * operands, element_bytes * area))

    few = len(order) <= 12
    times: dict[int, float] = {}
    for count in range(len(order), 0, -1) if few else (max(1, round(len(order) * 0.7**i)) for i in range(40)):
        if count not in times:
            times[count] = estimate(count)
        if times[count] > 2 * min(times.values()):  # fewer and fewer devices, slower and slower
            break
    best = min(times, key=times.get)
    around = {round(best * f) for f in (0.78, 0.88, 1.12, 1.28)} if not few else set()
    return times | {c: estimate(c) for c in around if 1 <= c <= len(order) and c not in times}


def _layouts(costs: BlockCosts, pieces: Sequence[Piece], start: float) -> Iterator[Tiles]:
    products = sum(p.batch for p in pieces)
    precision = 2e-4 if len(costs) <= FEW else 2e-3
    if products == 1:
        found = list(_strips(costs, pieces[0], start, precision))
    else:
        found = list(_ranges(costs, pieces, start, precision))
        if products <= min(len(costs), 2000):
            found += _teams(costs, pieces, start, precision)
    yield from found
    for panels in _panels(costs, pieces, start, always=not found):
        yield from _ranges(costs, panels, start, precision)


def _placed(tiles: Tiles, piece: Piece) -> Tiles:
    return Tiles(
        tiles.device,
        tiles.row0 + piece.row0,
        tiles.row1 + piece.row0,
        tiles.col0 + piece.col0,
        tiles.col1 + piece.col0,
        tiles.batch0 + piece.batch0,
        tiles.batch1 + piece.batch0,
    )


def _strips(costs: BlockCosts, piece: Piece, start: float, precision: float) -> Iterator[Tiles]:
    for turned in (False, True) if len(costs) < MANY else (piece.rows > piece.columns,):
        rows, columns = (piece.columns, piece.rows) if turned else (piece.rows, piece.columns)
        groups = strip_groups(costs, rows, columns, start, precision)
        if not groups:
            continue
        matrix = np.zeros(len(groups), int)
        tiles = lay_out(costs, groups, matrix, np.array([rows]), np.array([columns]), start, precision)
        if tiles is not None:
            yield _placed(tiles.turned() if turned else tiles, piece)


def _ranges(costs: BlockCosts, pieces: Sequence[Piece], start: float, precision: float) -> Iterator[Tiles]:
    """Cut along the rows, along the columns; of many devices' only what needs less to be sent twice."""
    few_columns = sum(p.batch * p.columns for p in pieces) <= sum(p.batch * p.rows for p in pieces)
    for turned in (False, True) if len(costs) <= FEW else (not few_columns,):
        tiles = ranges(costs, [p.turned() for p in pieces] if turned else pieces, start, precision)
        if tiles is not None:
            yield tiles.turned() if turned else tiles


def _panels(costs: BlockCosts, pieces: Sequence[Piece], start: float, always: bool) -> Iterator[list[Piece]]:
    """Products whose blocks memory keeps small, as panels that devices take rows of, again and again.

    always: even if memory seems to limit nobody.
    """
    rows, columns = max(p.rows for p in pieces), max(p.columns for p in pieces)
    short, long = costs.largest_block(rows, columns)
    held = (short >= 1) & (long >= 1)
    free = costs.areas(start, rows, columns)
    limited = held & (free > short * long * (1 + 1e-6)) & (short * long < rows * columns)
    if not held.any() or not (limited.any() or always):
        return
    if sum(p.batch for p in pieces) == 1:
        yield list(pieces)
    order = np.argsort(short[held])
    weight = np.cumsum(free[held][order])
    quantiles = np.searchsorted(weight, weight[-1] * np.array([0.0, 0.1, 0.3, 0.5, 0.8]))
    area = sum(p.area for p in pieces)
    for width in sorted({max(1, int(w)) for w in short[held][order][quantiles]}):
        if area / (width * max(long[held].max(), 1)) > MOST_BLOCKS:
            continue
        panels = []
        for p in pieces:
            count = -(-p.columns // width)
            edges = [p.columns * i // count for i in range(count + 1)]
            panels += [replace(p, columns=b - a, col0=p.col0 + a) for a, b in zip(edges, edges[1:])]
        yield panels


def _teams(costs: BlockCosts, pieces: Sequence[Piece], start: float, precision: float) -> Iterator[Tiles]:
    """Every product gets devices of its own, in proportion to its area."""
    singles = [Piece(p.rows, p.columns, 1, p.row0, p.col0, p.batch0 + i) for p in pieces for i in range(p.batch)]
    rows, columns = (np.array([getattr(p, side) for p in singles]) for side in ("rows", "columns"))
    areas = costs.block_areas(start, int(rows.max()), int(columns.max()))
    need = rows.astype(float) * columns
    teams: list[list[int]] = [[] for _ in singles]
    for device in np.argsort(-areas, kind="stable"):
        if areas[device] <= 0:
            break
        j = int(need.argmax())
        need[j] -= areas[device]
        teams[j].append(int(device))
    if not all(teams):
        return
    for turned in (False, True):
        high, wide = (columns, rows) if turned else (rows, columns)
        groups, matrix = [], []
        for j, team in enumerate(teams):
            team = np.array(team)
            strips = [team[g] for g in by_area(areas[team], int(high[j]))]
            groups += strips
            matrix += [j] * len(strips)
        tiles = lay_out(costs, groups, np.array(matrix), high, wide, start, precision)
        if tiles is None:
            continue
        parts = []
        for j, piece in enumerate(singles):
            at = tiles.batch0 == j
            own = Tiles(*(getattr(tiles, f)[at] for f in Tiles.__dataclass_fields__))
            own = Tiles(own.device, own.row0, own.row1, own.col0, own.col1, own.batch0 - j, own.batch1 - j)
            parts.append(_placed(own.turned() if turned else own, piece))
        yield joined(parts)
