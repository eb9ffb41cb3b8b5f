"""Plans one matrix product over devices: which device computes which block, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from runners.planning.gemm_cost import BlockCosts, Rates, block_costs, fair_rates
from runners.planning.paths import path
from runners.planning.tiling import lay_out, strip_groups
from testbed.cluster import Cluster
from testbed.cluster.model import SERVER
from testbed.errors import InputError

__all__ = ["Block", "Cached", "Gemm", "GemmPlan", "Rates", "Share", "default_rates", "plan_gemm", "replan"]


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
    """What a plan asks of one device, all its blocks together.

    binding: what its time is mostly made of, or what kept its block small: compute, downlink, uplink, delay,
    memory or server.
    """

    down_bytes: int
    up_bytes: int
    flops: float
    memory_bytes: int
    time_s: float
    binding: str


@dataclass(frozen=True)
class Cached:
    """Blocks of operands that devices hold already: device -> half-open range of A's rows, of B's columns."""

    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    columns: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class GemmPlan:
    """Blocks that cover the product exactly once, and what is expected of them.

    local: computed at the server, whose one block has its name as device. reason: why, in words.
    """

    gemm: Gemm
    blocks: tuple[Block, ...]
    local: bool
    reason: str
    makespan_s: float
    server_out_bytes: int
    server_in_bytes: int
    per_device: dict[str, Share]


def default_rates(cluster: Cluster) -> dict[str, Rates]:
    """Every device's rates as the cluster states them; delays include the server's own link."""
    server = cluster.server.link
    found = {}
    for device in cluster.devices:
        link = path(cluster, device)
        found[device.name] = Rates(
            device.flops, link.uplink_bps, link.downlink_bps,
            link.uplink_delay_s + server.downlink_delay_s, link.downlink_delay_s + server.uplink_delay_s,
        )
    return found


def plan_gemm(cluster: Cluster, gemm: Gemm, *, devices: Sequence[str] | None = None,
              rates: Mapping[str, Rates] | None = None, cached: Cached | None = None, server_local: bool = True,
              chunks: float = 1) -> GemmPlan:
    """The quickest plan that was found for one product.

    Args:
        devices: those alive; default all of the cluster's.
        rates: as measured; those missing are the cluster's.
        cached: operand blocks that devices hold and need not be sent.
        server_local: whether the server may compute the product itself.
        chunks: in how many chunks a task is streamed, 1: down, compute, up one after the other.

    Raises:
        InputError: no device can hold the smallest block, and the server may not compute.
    """
    rates = {**default_rates(cluster), **(rates or {})}
    memory = {d.name: d.memory_bytes for d in cluster.devices}
    names = [d.name for d in cluster.devices] if devices is None else list(devices)
    whole = Block(SERVER, 0, gemm.m, 0, gemm.n, 0, gemm.batch)
    local_s = gemm.flops / cluster.server.flops
    blocks = _cover(cluster, gemm, [whole], names, rates, memory, chunks) if names else ()
    if not blocks or any(b.device == SERVER for b in blocks):
        if not server_local:
            raise InputError(gemm.name, f"no device has memory for a row and a column of {gemm.k} elements"
                             if names else "no devices")  # fmt: skip
        why = "no device has the memory for it" if names else "no devices"
        return GemmPlan(gemm, (whole,), True, f"at the server: {why}", local_s, 0, 0, {})
    sent = _plan_of(cluster, gemm, blocks, rates, cached, chunks)
    if server_local and local_s <= sent.makespan_s:
        reason = f"at the server: {local_s:.3g} s there, {sent.makespan_s:.3g} s over {len(sent.per_device)} devices"
        return GemmPlan(gemm, (whole,), True, reason, local_s, 0, 0, {})
    return replace(sent, reason=f"{sent.reason}; the server alone would take {local_s:.3g} s")


def replan(cluster: Cluster, gemm: Gemm, unfinished: Sequence[Block], devices: Sequence[str],
           rates: Mapping[str, Rates] | None = None, *, chunks: float = 1) -> tuple[Block, ...]:
    """Blocks that cover exactly the unfinished ones, on these devices; the server's for what none can hold."""
    rates = {**default_rates(cluster), **(rates or {})}
    memory = {d.name: d.memory_bytes for d in cluster.devices}
    return _cover(cluster, gemm, list(unfinished), list(devices), rates, memory, chunks)


def _cover(cluster, gemm, pieces, names, rates, memory, chunks) -> tuple[Block, ...]:
    pieces = [_one(p, q) for p in pieces for q in range(p.batch0, p.batch1)]
    if not names:
        return tuple(replace(p, device=SERVER) for p in pieces)
    down = fair_rates(np.array([rates[n].downlink_bps for n in names]), cluster.server.link.uplink_bps)
    up = fair_rates(np.array([rates[n].uplink_bps for n in names]), cluster.server.link.downlink_bps)
    shared = [replace(rates[n], downlink_bps=d, uplink_bps=u) for n, d, u in zip(names, down, up)]
    costs = block_costs(shared, [memory[n] for n in names], gemm.k, gemm.element_bytes, chunks)
    load = np.zeros(len(names))
    out: list[Block] = []
    order = sorted(range(len(pieces)), key=lambda i: -pieces[i].rows * pieces[i].columns)
    if len(pieces) < len(names):
        total = sum(p.rows * p.columns for p in pieces)
        speed = costs.sides(1.0) ** 2 + 1e-30
        free = list(np.argsort(-speed))
        for number, i in enumerate(order):
            goal = speed.sum() * pieces[i].rows * pieces[i].columns / total
            team: list[int] = []
            while free and (not team or speed[team].sum() < goal) and len(free) > len(order) - number - 1:
                team.append(free.pop(0))
            if number == len(order) - 1:
                team += free
            out += _tile(costs, pieces[i], np.array(team), names)
        return tuple(out)
    for i in order:
        piece = pieces[i]
        rows, columns = np.full(len(names), piece.rows), np.full(len(names), piece.columns)
        fits = piece.rows <= costs.heights(columns, 1e30)
        if not fits.any():
            out += _tile(costs, piece, np.arange(len(names)), names)
            continue
        done = np.where(fits, load + costs.time_s(rows, columns), np.inf)
        best = int(done.argmin())
        load[best] = done[best] - costs.delay_s[best]
        out.append(replace(piece, device=names[best]))
    return _merged(out)


def _one(piece: Block, product: int) -> Block:
    return replace(piece, batch0=product, batch1=product + 1)


def _merged(blocks: list[Block]) -> tuple[Block, ...]:
    """Whole successive products of one device as one block."""
    out: list[Block] = []
    for b in sorted(blocks, key=lambda b: (b.device, b.row0, b.row1, b.col0, b.col1, b.batch0)):
        last = out[-1] if out else None
        if last and replace(last, batch0=b.batch0, batch1=b.batch1) == b and last.batch1 == b.batch0:
            out[-1] = replace(last, batch1=b.batch1)
        else:
            out.append(b)
    return tuple(out)


def _tile(costs: BlockCosts, piece: Block, team: np.ndarray, names) -> list[Block]:
    """One product's rectangle over a team of devices; halved until its parts fit their memories."""
    c = costs.only(team)
    start = _bound(c, piece.rows, piece.columns)
    found = None
    if start < 1e30:
        for turned in (False, True):
            rows, columns = (piece.columns, piece.rows) if turned else (piece.rows, piece.columns)
            strips = lay_out(c, strip_groups(c.areas(start, rows, columns), rows), rows, columns, start)
            if strips is not None and (found is None or strips.seconds < found[0].seconds):
                found = strips, turned
    if found is None:
        if piece.rows == piece.columns == 1:
            return [replace(piece, device=SERVER)]
        if piece.rows >= piece.columns:
            half = piece.row0 + piece.rows // 2
            parts = replace(piece, row1=half), replace(piece, row0=half)
        else:
            half = piece.col0 + piece.columns // 2
            parts = replace(piece, col1=half), replace(piece, col0=half)
        if not (costs.heights(np.ones(len(names)), 1e30) >= 1).any():
            return [replace(piece, device=SERVER)]
        return [b for part in parts for b in _tile(costs, part, team, names)]
    s, turned = found
    r0, r1, c0, c1 = (s.col0, s.col1, s.row0, s.row1) if turned else (s.row0, s.row1, s.col0, s.col1)
    return [
        Block(names[team[d]], piece.row0 + int(a), piece.row0 + int(b), piece.col0 + int(x), piece.col0 + int(y),
              piece.batch0, piece.batch1)
        for d, a, b, x, y in zip(s.device, r0, r1, c0, c1)
    ]  # fmt: skip


def _bound(c: BlockCosts, rows: int, columns: int) -> float:
    area = rows * columns
    low, high = 0.0, 1e-6
    while c.areas(high, rows, columns).sum() < area * (1 - 1e-12):
        low, high = high, high * 4
        if high > 1e30:
            return 1e31
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if c.areas(middle, rows, columns).sum() >= area * (1 - 1e-12) else (middle, high)
    return high


def _plan_of(cluster: Cluster, gemm: Gemm, blocks: tuple[Block, ...], rates, cached: Cached | None,
             chunks: float) -> GemmPlan:
    per: dict[str, Share] = {}
    by: dict[str, list[Block]] = {}
    for b in blocks:
        by.setdefault(b.device, []).append(b)
    down_rate = dict(zip(by, fair_rates(np.array([rates[n].downlink_bps for n in by]), cluster.server.link.uplink_bps)))
    up_rate = dict(zip(by, fair_rates(np.array([rates[n].uplink_bps for n in by]), cluster.server.link.downlink_bps)))
    for name, own in by.items():
        down = sum(_down_bytes(gemm, b, cached) for b in own)
        up = sum(gemm.element_bytes * b.products * b.rows * b.columns for b in own)
        flops = sum(2.0 * b.products * b.rows * b.columns * gemm.k for b in own)
        memory = max(gemm.element_bytes * b.products * (gemm.k * (b.rows + b.columns) + b.rows * b.columns)
                     for b in own)
        parts = {"downlink": 8 * down / down_rate[name], "compute": flops / rates[name].flops,
                 "uplink": 8 * up / up_rate[name]}
        delay = rates[name].uplink_delay_s + rates[name].downlink_delay_s
        most = max(parts.values())
        rest = 0.0 if chunks == float("inf") else (sum(parts.values()) - most) / chunks
        parts["delay"] = delay
        per[name] = Share(down, up, flops, memory, delay + most + rest, max(parts, key=parts.get))
    out, back = sum(s.down_bytes for s in per.values()), sum(s.up_bytes for s in per.values())
    link = cluster.server.link
    seconds = max(*(s.time_s for s in per.values()), 8 * out / link.uplink_bps, 8 * back / link.downlink_bps)
    return GemmPlan(gemm, blocks, False, f"over {len(per)} devices", seconds, out, back, per)


def _down_bytes(gemm: Gemm, b: Block, cached: Cached | None) -> int:
    rows, columns = b.rows, b.columns
    if cached is not None:
        rows -= _overlap((b.row0, b.row1), cached.rows.get(b.device))
        columns -= _overlap((b.col0, b.col1), cached.columns.get(b.device))
    return gemm.element_bytes * gemm.k * b.products * (rows + columns)


def _overlap(range_: tuple[int, int], held: tuple[int, int] | None) -> int:
    return 0 if held is None else max(0, min(range_[1], held[1]) - max(range_[0], held[0]))
