"""Plans of products by shape, made once for each membership and set of rates, and how blocks are cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runners.cleave.job import Extent, View
from runners.cleave.options import CleaveOptions
from runners.cleave.precision import Codec
from runners.planning.gemm import Block, Gemm, GemmPlan, Pool, Rates, plan_on
from testbed.cluster import Cluster

PIECES = (1, 2, 4)  # that 'auto' considers
LEAST_PIECE_BYTES = 100_000  # less on its way than this is not worth a message of its own
MOST_PIECES = 1024  # of one product with chunks: auto; more only cost the server time


def planned_chunks(options: CleaveOptions, devices: int) -> int:
    """In how many chunks the planner takes tasks to be streamed."""
    if options.chunks != "auto":
        return int(options.chunks)
    return 4 if devices * 4 <= MOST_PIECES else 1


@dataclass(frozen=True)
class Planned:
    """A product's plan, and its blocks as they are sent: in order, each device's pieces one after the other."""

    plan: GemmPlan
    pieces: tuple[Block, ...]
    _extents: dict[tuple, list[Extent]] = field(default_factory=dict, compare=False, repr=False)

    def extents(self, a: View, b: View, k: int) -> list[Extent]:
        """Of each piece, with operands stored like these."""
        key = a.layout, b.layout, k
        found = self._extents.get(key)
        if found is None:
            found = self._extents[key] = [Extent(block, a, b, k) for block in self.pieces]
        return found


class Plans:
    """Plans by a product's shape.

    Args:
        current: gives devices and rates to plan with; called when plans are made.
    """

    def __init__(self, cluster: Cluster, options: CleaveOptions, codec: Codec,
                 current: Callable[[], tuple[Sequence[str], Mapping[str, Rates]]]):  # fmt: skip
        self._cluster, self._options, self._codec, self._current = cluster, options, codec, current
        self._bytes = codec.element_bytes
        self._made: dict[tuple, Planned] = {}
        self._batched: dict[int, GemmPlan] = {}  # number of products -> the first plan that sends so many
        self._over: tuple[Pool, Mapping[str, Rates]] | None = None

    def clear(self) -> None:
        """Devices or rates have changed."""
        self._made.clear()
        self._batched.clear()
        self._over = None

    def of(self, gemm: Gemm) -> Planned:
        key = (gemm.batch, gemm.m, gemm.k, gemm.n, gemm.weight is not None)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(replace(gemm, element_bytes=self._bytes))
        return found

    def _make(self, gemm: Gemm) -> Planned:
        if self._over is None:
            names, rates = self._current()
            streamed = planned_chunks(self._options, len(names))
            self._over = Pool(self._cluster, names, rates, streamed, self._codec.resident_bytes), rates
        pool, rates = self._over
        plan = plan_on(pool, self._cluster, gemm, server_local=self._options.local == "auto")
        if plan.local:
            return Planned(plan, plan.blocks)
        if gemm.batch > 1:
            # attention's six products read each other's operands: with the same samples and heads they are there
            first = self._batched.setdefault(gemm.batch, plan)
            if first is not plan and all(b.rows == first.gemm.m and b.columns == first.gemm.n for b in first.blocks):
                blocks = tuple(replace(b, row0=0, row1=gemm.m, col0=0, col1=gemm.n) for b in first.blocks)
                plan = replace(plan, blocks=blocks)
        pieces: list[Block] = []
        per_device = max(1, MOST_PIECES // max(1, len(plan.blocks)))
        for block in plan.blocks:
            rate = rates.get(block.device)
            pieces += self._cut(gemm, block, rate, per_device) if rate is not None else (block,)
        return Planned(plan, tuple(pieces))

    def _cut(self, gemm: Gemm, block: Block, rates: Rates, most: int) -> Sequence[Block]:
        """The block in as many pieces as make it quickest, if the cost model is right."""
        if self._options.chunks == 1 or not self._options.cache:  # pieces share an operand, which the device keeps
            return (block,)
        rows = gemm.weight is not None or block.rows >= block.columns
        if block.products > 1:
            length, shared, single = block.products, 0, gemm.k * (block.rows + block.columns)
        else:
            length = block.rows if rows else block.columns
            shared = gemm.k * (block.columns if rows else block.rows)  # sent once, with the first piece
            single = gemm.k
        out = block.products * block.rows * block.columns
        down = 8 * self._bytes * (shared + single * length) / rates.downlink_bps
        head = 8 * self._bytes * shared / rates.downlink_bps
        work = 2.0 * out * gemm.k / rates.flops
        up = 8 * self._bytes * out / rates.uplink_bps
        if self._options.chunks == "auto":
            moved = self._bytes * (shared + single * length + out)
            counts = [p for p in PIECES if p <= min(length, most, max(1, moved // LEAST_PIECE_BYTES))]
        else:
            counts = [min(self._options.chunks, length)]

        def seconds(p: int) -> float:
            parts = ((down - head) / p, work / p, up / p)
            return head + sum(parts) + (p - 1) * max(parts)

        count = min(counts or [1], key=seconds)
        edges = [length * i // count for i in range(count + 1)]
        if block.products > 1:
            return [replace(block, batch0=block.batch0 + a, batch1=block.batch0 + b) for a, b in zip(edges, edges[1:])]
        if rows:
            return [replace(block, row0=block.row0 + a, row1=block.row0 + b) for a, b in zip(edges, edges[1:])]
        return [replace(block, col0=block.col0 + a, col1=block.col0 + b) for a, b in zip(edges, edges[1:])]
