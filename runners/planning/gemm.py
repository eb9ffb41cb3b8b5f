"""Plans one matrix product over devices: which device computes which block, and what that takes.

The cost model is in gemm_cost.py, the choice of devices and layout in gemm_layout.py; docs/planning.md explains both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runners.planning.gemm_cached import keep_columns, keep_rows
from runners.planning.gemm_cost import STREAMED
from runners.planning.gemm_layout import parts_s, quickest
from runners.planning.gemm_pool import Pool, Rates, default_rates
from runners.planning.tiling import Tiles
from runners.planning.tiling_ranges import MOST_BLOCKS, Piece
from testbed.cluster import Cluster
from testbed.cluster.model import SERVER
from testbed.errors import InputError

__all__ = ["STREAMED", "Block", "Cached", "Gemm", "GemmPlan", "Pool", "Rates", "Share", "area_bound_s",
           "default_rates", "plan_gemm", "plan_on", "replan"]  # fmt: skip


@dataclass(frozen=True)
class Gemm:
    """C[p] = A[p] (m×k) · B[p] (k×n) for p in range(batch).

    batch > 1 is attention: one product a sample and head, each with operands of its own. element_bytes: on the wire.
    weight: name of B where it recurs within a step (a parameter), else None.
    """

    name: str
    m: int
    k: int
    n: int
    batch: int = 1
    element_bytes: int = 4
    weight: str | None = None

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.k * self.n

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """What a plan depends on: products of the same shape have the same plan."""
        return self.batch, self.m, self.k, self.n, self.element_bytes


@dataclass(frozen=True)
class Block:
    """Rows row0…row1 and columns col0…col1 (half-open) of the products batch0…batch1, on one device."""

    device: str
    row0: int
    row1: int
    col0: int
    col1: int
    batch0: int = 0
    batch1: int = 1

    @property
    def rows(self) -> int:
        return self.row1 - self.row0

    @property
    def columns(self) -> int:
        return self.col1 - self.col0

    @property
    def products(self) -> int:
        return self.batch1 - self.batch0


@dataclass(frozen=True)
class Share:
    """What a plan asks of one device, all its blocks together; memory_bytes: of the largest one.

    binding: what most of its time goes into (compute, downlink, uplink, delay); server where that is a shared link,
    slower than the device's own; memory where its block is as large as memory allows.
    """

    down_bytes: int
    up_bytes: int
    flops: float
    memory_bytes: int
    time_s: float
    binding: str


@dataclass(frozen=True)
class Cached:
    """Operands that devices hold already, whole rows of A and whole columns of B: device -> half-open range."""

    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    columns: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class GemmPlan:
    """Blocks that cover the product exactly once, and what is expected of them.

    local: computed at the server, whose one block has its name as device. reason: why, in words.
    makespan_s: from the first byte sent to the last one back. bound_s: no plan over these devices can be quicker
    (0 when the plan is local or blocks are cached). strategy: local, rows, columns, 2-D or products.
    """

    gemm: Gemm
    blocks: tuple[Block, ...]
    local: bool
    reason: str
    makespan_s: float
    server_out_bytes: int
    server_in_bytes: int
    per_device: dict[str, Share]
    bound_s: float = 0.0
    strategy: str = "local"


def plan_gemm(
    cluster: Cluster,
    gemm: Gemm,
    *,
    devices: Sequence[str] | None = None,
    rates: Mapping[str, Rates] | None = None,
    cached: Cached | None = None,
    server_local: bool = True,
    chunks: float = 1,
    resident_bytes: int | None = None,
) -> GemmPlan:
    """The quickest plan that was found for one product.

    Args:
        devices: those alive; default all of the cluster's.
        rates: as measured; those missing are the cluster's.
        cached: operand blocks that devices hold and need not be sent.
        server_local: whether the server may compute the product itself, if that is quicker.
        chunks: in how many chunks a task is streamed. 1: down, compute, up one after the other; STREAMED: no end of
            them.
        resident_bytes: that an element takes in a device's memory; None: as many as on the wire.

    Raises:
        InputError: no device can hold the smallest block, or blocks would be far too many; and the server may not
            compute.
    """
    pool = Pool(cluster, devices, rates, chunks, resident_bytes)
    return plan_on(pool, cluster, gemm, cached=cached, server_local=server_local)


def plan_on(
    pool: Pool, cluster: Cluster, gemm: Gemm, *, cached: Cached | None = None, server_local: bool = True
) -> GemmPlan:
    """`plan_gemm` for a pool that is made once for many products."""
    local_s = gemm.flops / cluster.server.flops if cluster.server.flops > 0 else float("inf")
    whole = Block(SERVER, 0, gemm.m, 0, gemm.n, 0, gemm.batch)

    def local(why: str) -> GemmPlan:
        return GemmPlan(gemm, (whole,), True, f"at the server: {why}", local_s, 0, 0, {})

    bound_s = pool.area_bound_s(*gemm.shape)
    if server_local and cached is None and local_s <= bound_s < float("inf"):
        return local(f"{local_s:.3g} s there, at least {bound_s:.3g} s over {len(pool)} devices")
    piece = Piece(gemm.m, gemm.n, gemm.batch)
    tiles = quickest(pool, [piece], gemm.k, gemm.element_bytes) if len(pool) else None
    if tiles is None:
        why = _impossible(pool, gemm)
        if server_local:
            return local(why)
        raise InputError(gemm.name, why)
    sent = _plan_of(pool, gemm, tiles, None, bound_s)
    if cached is not None:
        sent = _with_cache(pool, gemm, tiles, cached)
    if server_local and local_s <= sent.makespan_s:
        return local(f"{local_s:.3g} s there, {sent.makespan_s:.3g} s over {len(sent.per_device)} devices")
    return sent


def _impossible(pool: Pool, gemm: Gemm) -> str:
    if not len(pool):
        return "no devices; expected at least one with memory, speed and a link"
    if pool.memory.max() < pool.resident_bytes(gemm.element_bytes) * (2 * gemm.k + 1):
        return f"no device has memory for a row and a column of {gemm.k} elements"
    return f"the devices' memory is so small that it would take more than {MOST_BLOCKS:,} blocks"


def area_bound_s(
    cluster: Cluster,
    gemm: Gemm,
    *,
    devices: Sequence[str] | None = None,
    rates: Mapping[str, Rates] | None = None,
    chunks: float = 1,
) -> float:
    """The area lower bound of a product's makespan over devices [s], see Pool.area_bound_s."""
    return Pool(cluster, devices, rates, chunks).area_bound_s(*gemm.shape)


def replan(
    cluster: Cluster,
    gemm: Gemm,
    unfinished: Sequence[Block],
    devices: Sequence[str],
    rates: Mapping[str, Rates] | None = None,
    *,
    chunks: float = 1,
    resident_bytes: int | None = None,
) -> tuple[Block, ...]:
    """Blocks that cover exactly the unfinished ones, on these devices.

    Where none of them has the memory, or there are none, the blocks are the server's.
    """
    pieces = [Piece(b.rows, b.columns, b.products, b.row0, b.col0, b.batch0) for b in unfinished]
    if not pieces:
        return ()
    pool = Pool(cluster, devices, rates, chunks, resident_bytes)
    tiles = quickest(pool, pieces, gemm.k, gemm.element_bytes) if len(pool) else None
    if tiles is None:
        return tuple(Block(SERVER, b.row0, b.row1, b.col0, b.col1, b.batch0, b.batch1) for b in unfinished)
    return _blocks(pool, tiles)


def _blocks(pool: Pool, tiles: Tiles) -> tuple[Block, ...]:
    names = [pool.names[i] for i in tiles.device.tolist()]
    return tuple(
        map(
            Block,
            names,
            tiles.row0.tolist(),
            tiles.row1.tolist(),
            tiles.col0.tolist(),
            tiles.col1.tolist(),
            tiles.batch0.tolist(),
            tiles.batch1.tolist(),
        )
    )


def _plan_of(pool: Pool, gemm: Gemm, tiles: Tiles, cached: Cached | None, bound_s: float) -> GemmPlan:
    b, k = gemm.element_bytes, gemm.k
    saved = np.zeros(len(tiles), np.int64) if cached is None else _held(pool, tiles, cached)
    index, which = np.unique(tiles.device, return_inverse=True)
    index, parts = parts_s(pool, tiles, k, b, saved)
    rows, columns, products = tiles.rows, tiles.columns, tiles.products
    elements = products * rows * columns
    needs = pool.resident_bytes(b) * products * (k * (rows + columns) + rows * columns)
    down = np.bincount(which, (b * k * (products * (rows + columns) - saved)).astype(float)).astype(np.int64).tolist()
    up = np.bincount(which, (b * elements).astype(float)).astype(np.int64).tolist()
    flops = np.bincount(which, 2.0 * k * elements).tolist()
    memory = np.zeros(len(index), np.int64)
    np.maximum.at(memory, which, needs)
    bindings = _bindings(pool, gemm, index, parts, memory)
    shares = map(Share, down, up, flops, memory.tolist(), parts["total"].tolist(), bindings)
    out, back = sum(down), sum(up)
    seconds = max(float(parts["total"].max()), pool.server_s(out, back))
    strategy = _strategy(gemm, tiles)
    return GemmPlan(
        gemm,
        _blocks(pool, tiles),
        False,
        f"{strategy} over {len(index)} of {len(pool)} devices",
        seconds,
        out,
        back,
        dict(zip([pool.names[i] for i in index.tolist()], shares)),
        bound_s,
        strategy,
    )


def _held(pool: Pool, tiles: Tiles, cached: Cached) -> np.ndarray:
    """Rows and columns of each tile that its device holds already."""
    saved = np.zeros(len(tiles), np.int64)
    for held, first, end in ((cached.rows, tiles.row0, tiles.row1), (cached.columns, tiles.col0, tiles.col1)):
        if held:
            low, high = np.array([held.get(name, (0, 0)) for name in pool.names]).T
            overlap = np.minimum(end, high[tiles.device]) - np.maximum(first, low[tiles.device])
            saved += np.maximum(overlap, 0)
    return saved


def _bindings(pool: Pool, gemm: Gemm, index: np.ndarray, parts, memory: np.ndarray) -> list[str]:
    names = np.array(["downlink", "compute", "uplink", "delay"], dtype=object)
    found = names[np.argmax(np.stack([parts[n] for n in names]), axis=0)]
    down, up = pool.shared(index)
    found[(found == "downlink") & (down < 0.99 * pool.down[index])] = "server"
    found[(found == "uplink") & (up < 0.99 * pool.up[index])] = "server"
    row_and_column = pool.resident_bytes(gemm.element_bytes) * (2 * gemm.k + 1)
    found[memory + row_and_column > pool.memory[index]] = "memory"  # no room for another
    return found.tolist()


def _strategy(gemm: Gemm, tiles: Tiles) -> str:
    if gemm.batch > 1 and (tiles.rows * tiles.columns == gemm.m * gemm.n).any():
        return "products"
    if (tiles.columns == gemm.n).all():
        return "rows"
    return "columns" if (tiles.rows == gemm.m).all() else "2-D"


def _with_cache(pool: Pool, gemm: Gemm, tiles: Tiles, cached: Cached) -> GemmPlan:
    """The quickest of: the plan without the cache, and strips that keep what devices hold."""
    found = [tiles]
    if gemm.batch == 1:
        kept = (
            keep_columns(pool, gemm.m, gemm.k, gemm.n, gemm.element_bytes, cached.columns),
            keep_rows(pool, gemm.m, gemm.k, gemm.n, gemm.element_bytes, cached.rows),
        )
        found += [t for t in kept if t is not None]
    return min((_plan_of(pool, gemm, t, cached, 0.0) for t in found), key=lambda plan: plan.makespan_s)
