"""Plans weight-affine tasks: which device keeps which layers' weights for a step, and whose tokens pass through it.

The model's chain is cut into G groups of neighbouring half blocks, and the head into K shares of its words; each such
part is held by several devices, which share out the batch's samples. A device with W parameters and n samples of s
tokens moves, with b bytes a number,

    down = b (W + 2 n s d)      up = b (W + 2 n s d)      (weights, activations; gradients; at the head once n s d up)

and its own time is taken as weights down + the longest of (activations down, up, computing) + gradients up, since the
first and the last have nothing to overlap with. All devices do these three at about the same time, so a step takes the
longest of each, and what it takes to fill the chain: one slab's way through every other part, there and back. More
parts mean fewer weights and more samples for each.

Choice: for every (G, K) and longest time for gradients, bisection on the time for slabs; in that time, each device
manages a whole number of samples of each part, and parts are covered greedily, the one that lacks most next. They are
tried in the order of what they need at least (fractions of samples, the quickest devices' fill), until that is more
than the best plan takes. `bound_s` is weaker and holds for any plan with these cuts: every device's own three times, if
it never had to wait.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.planning.affine_units import ATTENTION, HEAD, Unit, block_units, cut_evenly, head_units
from runners.planning.paths import paths
from runners.planning.tcp import slow_start_s
from testbed.cluster import Cluster, ModelSpec
from testbed.errors import InputError
from testbed.units import size

SLABS = (128, 256, 512, 1024, 2048)  # tokens
LEAST_SLAB = 16  # of sequences shorter than the smallest of them, halves and quarters down to this
FORWARDS = 4  # a block's slab costs so many forward passes: forward, recomputed, and backward is two
HEAD_FORWARDS = 3
HANDSHAKE_RTTS = 3  # TCP's and the transport's, before a connection's first message
HEAD_START = 0.4  # of the time for slabs: so much earlier than the groups is the head done
FEW = 8  # devices up to which plans are improved one move at a time
_TRIES = 40  # of bisection


@dataclass(frozen=True)
class Numbers:
    """On the wire: bytes of one. At a device: bytes beside it, of a parameter and of a token's activation element."""

    wire_bytes: float
    parameter_bytes: float = 8.0  # weight and gradient
    input_bytes: float = 4.0


@dataclass(frozen=True)
class Share:
    """One device's part of a part: its samples, in the order in which they come. seconds: of the device's own time."""

    device: str
    samples: tuple[int, ...]
    weights_s: float
    busy_s: float
    gradient_s: float

    @property
    def seconds(self) -> float:
        return self.weights_s + self.busy_s + self.gradient_s


@dataclass(frozen=True)
class AffinePlan:
    """parts: groups of the chain in order, then the head's shares. shares: of each part, its devices.

    step_s: predicted: own_s, the longest of a device's own time or of the server's link, and fill_s. bound_s: no plan
    with any of the cuts that were considered is quicker, by the same cost model.
    """

    slab: int
    parts: tuple[tuple[Unit, ...], ...]
    shares: tuple[tuple[Share, ...], ...]
    step_s: float
    own_s: float
    fill_s: float
    bound_s: float
    server_out_bytes: float
    server_in_bytes: float

    @property
    def groups(self) -> int:
        return sum(p[0].kind != HEAD for p in self.parts)


class Costs:
    """What parts cost on each of some devices; arrays over the devices.

    Args:
        rates: shared links folded in.
    """

    def __init__(self, cluster: Cluster, names: Sequence[str], model: ModelSpec, batch: int, numbers: Numbers):
        self.names, self.model, self.batch, self.numbers = list(names), model, batch, numbers
        links = paths(cluster)
        devices = {d.name: d for d in cluster.devices}
        self.up = np.array([links[n].uplink_bps for n in names]) / 8
        self.down = np.array([links[n].downlink_bps for n in names]) / 8
        self.flops = np.array([devices[n].flops for n in names])
        self.memory = np.array([float(devices[n].memory_bytes) for n in names])
        server = cluster.server.link
        self.delay = np.array([links[n].uplink_delay_s + links[n].downlink_delay_s for n in names])
        self.delay += server.uplink_delay_s + server.downlink_delay_s
        self._pause: dict[int, np.ndarray] = {}
        self.server_out, self.server_in = server.uplink_bps / 8, server.downlink_bps / 8

    def parameters(self, part: Sequence[Unit]) -> int:
        return sum(u.parameters for u in part)

    def sample_bytes(self, part: Sequence[Unit]) -> tuple[float, float]:
        """(down, up) of one sample, forward and backward."""
        once = self.numbers.wire_bytes * self.model.sequence * self.model.d_model
        return (once, once) if part[0].kind == HEAD else (2 * once, 2 * once)

    def sample_flops(self, part: Sequence[Unit]) -> float:
        s = self.model.sequence
        forward = sum(u.flops(self.model, s, s // 2 + 1) for u in part)
        return forward * (HEAD_FORWARDS if part[0].kind == HEAD else FORWARDS)

    def weights(self, part: Sequence[Unit]) -> np.ndarray:
        return self.parameters(part) * self.numbers.wire_bytes / self.down

    def gradient(self, part: Sequence[Unit]) -> np.ndarray:
        return self.parameters(part) * self.numbers.wire_bytes / self.up

    def sample(self, part: Sequence[Unit]) -> np.ndarray:
        """Seconds that a sample keeps each device busy."""
        down, up = self.sample_bytes(part)
        return np.maximum(np.maximum(down / self.down, up / self.up), self.sample_flops(part) / self.flops)

    def most(self, part: Sequence[Unit]) -> np.ndarray:
        """Samples that fit each device's memory, below 0 where not even the weights do."""
        n, m, s = self.numbers, self.model, self.model.sequence
        fixed = self.parameters(part) * (n.parameter_bytes + 0.1 * n.wire_bytes)
        width = 2 * m.key_heads * m.head_dim * 4.0 * sum(u.kind == ATTENTION for u in part)
        if part[0].kind == HEAD:  # one slab's logits in either pass, some more on their way
            words = part[0].end - part[0].first
            fixed += 4 * 4.0 * min(s, SLABS[0]) * words
        else:
            fixed += s * width + 4.0 * min(s, SLABS[0]) * (8 * m.d_model + 2 * m.up_width + m.qkv_width)
        each = s * (m.d_model * (n.input_bytes + 2 * n.wire_bytes) + width)
        return np.floor((self.memory - fixed) / each)

    def _slow_start(self, slab: int) -> np.ndarray:
        """Down and up, of one slab."""
        if slab not in self._pause:
            once = self.numbers.wire_bytes * slab * self.model.d_model
            self._pause[slab] = self._pauses(once, self.down) + self._pauses(once, self.up)
        return self._pause[slab]

    def _pauses(self, nbytes: float, rates: np.ndarray) -> np.ndarray:
        """Of TCP's slow start."""
        pairs, back = np.unique(np.stack([rates, self.delay]), axis=1, return_inverse=True)
        return np.array([slow_start_s(nbytes, 8 * rate, rtt) for rate, rtt in pairs.T.tolist()])[back.ravel()]

    def latency(self, part: Sequence[Unit], slab: int) -> np.ndarray:
        """Seconds that one slab takes there and back through each device, both passes together."""
        share = slab / self.model.sequence
        down, up = self.sample_bytes(part)
        passes = 2 if part[0].kind != HEAD else 3  # the head is asked once more for the gradient
        alone = share * (down / self.down + up / self.up + self.sample_flops(part) / self.flops)
        # slabs are the first after a silence, in either pass; and a device's first result opens its connection
        return (
            alone
            + HANDSHAKE_RTTS * self.delay
            + 2 * self._slow_start(slab)
            + (passes - (part[0].kind == HEAD)) * self.delay
        )


def plan_affine(
    cluster: Cluster, model: ModelSpec, batch: int, numbers: Numbers, *, devices: Sequence[str] | None = None,
    slab: int | None = None,
) -> AffinePlan:  # fmt: skip
    """The quickest plan found.

    Raises:
        InputError: the model does not fit the devices, however it is cut.
    """
    names = [d.name for d in cluster.devices] if devices is None else list(devices)
    costs = Costs(cluster, names, model, batch, numbers)
    slabs = [min(slab, model.sequence)] if slab else [x for x in SLABS if x <= model.sequence] or _short(model.sequence)
    if len(names) == 1:
        return _alone(cluster, costs, slabs)
    cuts = [_Cut(costs, parts, slabs) for parts in _cuts(model, len(names))]
    bound_s = min((c.bound_s for c in cuts), default=np.inf)
    best: AffinePlan | None = None
    for least_s, hand_over_s, cut in sorted((x for c in cuts for x in c.choices()), key=lambda x: x[:2]):
        if best is not None and least_s >= best.step_s:
            break
        plan = cut.plan(least_s, hand_over_s, best.step_s if best else np.inf, bound_s)
        if plan is not None and (best is None or plan.step_s < best.step_s):
            best = plan
    if len(names) <= FEW:
        for cut in cuts:
            plan = cut.improved(best.step_s if best else np.inf, bound_s)
            if plan is not None:
                best = plan
    if best is None:
        raise _too_large(cluster, costs)
    return best


def _alone(cluster: Cluster, costs: Costs, slabs: Sequence[int]) -> AffinePlan:
    """One device has it all, the head as a part of its own."""
    units = tuple(block_units(costs.model))
    parts = (*((units,) if units else ()), tuple(head_units(costs.model, 1)))
    free = costs.memory[0] - sum(costs.parameters(p) * costs.numbers.parameter_bytes for p in parts)
    if free < 0 or any(costs.most(p)[0] < costs.batch for p in parts):
        raise _too_large(cluster, costs)
    samples = tuple(range(costs.batch))
    shares = tuple(
        (Share(costs.names[0], samples, float(costs.weights(p)[0]), float(costs.batch * costs.sample(p)[0]),
               float(costs.gradient(p)[0])),) for p in parts
    )  # fmt: skip
    down = sum(costs.batch * costs.sample_bytes(p)[0] for p in parts)
    up = sum(costs.batch * costs.sample_bytes(p)[1] for p in parts)
    weights = sum(costs.parameters(p) for p in parts) * costs.numbers.wire_bytes
    flops = sum(costs.batch * costs.sample_flops(p) for p in parts)
    busy = max(down / costs.down[0], up / costs.up[0], flops / costs.flops[0])
    own = float(weights / costs.down[0] + weights / costs.up[0] + busy)
    fill = float(sum(costs.latency(p, slabs[0])[0] for p in parts))
    return AffinePlan(slabs[0], parts, shares, own + fill, own, fill, own, weights + down, weights + up)


def _short(sequence: int) -> list[int]:
    return sorted({max(1, sequence // k) for k in (1, 2, 4) if k == 1 or sequence // k >= LEAST_SLAB})


def _cuts(model: ModelSpec, devices: int) -> list[tuple[tuple[Unit, ...], ...]]:
    """Ways to cut the model into at most as many parts as there are devices; with fewer devices, several a device."""
    units = block_units(model)
    head = head_units(model, 1)[0].parameters
    counts = range(1, len(units) + 1)
    if len(units) > 32:
        counts = sorted({*np.unique(np.geomspace(1, len(units), 20).round().astype(int)).tolist(), model.layers})
    found = []
    for groups in counts if units else (0,):
        parts = tuple(cut_evenly(units, groups)) if units else ()
        largest = max((sum(u.parameters for u in p) for p in parts), default=head)
        shares = sorted({min(max(1, round(f * head / largest)), 32) for f in (0.0, 0.5, 0.7, 1.0, 1.5)})
        for k in shares:
            if groups + k <= devices:
                found.append((*parts, *((u,) for u in head_units(model, k))))
    return found


class _Cut:
    """One way to cut the model, on all devices."""

    def __init__(self, costs: Costs, parts: tuple[tuple[Unit, ...], ...], slabs: Sequence[int]):
        self.costs, self.parts = costs, parts
        kinds: dict[tuple, int] = {}
        self.kind = [kinds.setdefault(self._key(p), len(kinds)) for p in parts]  # parts of one kind cost the same
        self._examples = [parts[self.kind.index(i)] for i in range(len(kinds))]
        self._weights = np.stack([costs.weights(p) for p in self._examples])
        self._gradient = np.stack([costs.gradient(p) for p in self._examples])
        self._each = np.stack([costs.sample(p) for p in self._examples])
        self._most = np.stack([np.minimum(costs.most(p), costs.batch) for p in self._examples])
        self._head = np.array([p[0].kind == HEAD for p in self._examples])
        self.slab = min(slabs, key=lambda slab: self._fill(slab, None))
        self.least_fill_s = self._fill(self.slab, None)
        weights = sum(costs.parameters(p) for p in parts) * costs.numbers.wire_bytes
        moved = [costs.sample_bytes(p) for p in parts]
        # everyone's samples pass the server's link; and the weights of each part at least once
        self.server_s = max(
            (costs.batch * sum(m[0] for m in moved) + weights) / costs.server_out,
            (costs.batch * sum(m[1] for m in moved) + weights) / costs.server_in,
        )
        self.bound_s = max(self.server_s, self._relaxed())

    @staticmethod
    def _key(part: tuple[Unit, ...]) -> tuple:
        return tuple((u.kind, u.parameters) for u in part)

    def _relaxed(self) -> float:
        """The least time in which fractions of samples, each device in the part that suits it best, cover all parts,
        if nothing ever waited for another device."""
        fixed = self._weights + self._gradient

        def covered(t: float) -> float:
            n = np.clip((t - fixed) / self._each, 0, np.maximum(self._most, 0))
            return float(n.max(axis=0).sum())

        return _least(covered, self.costs.batch * len(self.parts), float(fixed.min()))

    def _fill(self, slab: int, members: list[list[int]] | None) -> float:
        """One slab's way through all parts but the slowest, whose time is in its devices' own; members: those who take
        part, on average; None: the quickest."""
        ways = [self.costs.latency(p, slab) for p in self._examples]
        if members is None:
            least = [float(w.min()) for w in ways]
            groups = [least[self.kind[g]] for g, p in enumerate(self.parts) if p[0].kind != HEAD]
            heads = [least[self.kind[g]] for g, p in enumerate(self.parts) if p[0].kind == HEAD]
        else:
            mean = [float(ways[k][m].mean()) for k, m in zip(self.kind, members)]
            groups = [t for t, p in zip(mean, self.parts) if p[0].kind != HEAD]
            heads = [t for t, p in zip(mean, self.parts) if p[0].kind == HEAD]
        every = [*groups, max(heads)]
        return sum(every) - (max(every) if len(every) > 1 else 0.0)

    def choices(self) -> list[tuple[float, float, _Cut]]:
        """(least time, longest hand-over of a gradient, this cut): who hands over in more than that takes no part.

        Gradients go up when the last slab is back, at nearly the same time everywhere but at the head, which is done
        about half of the way earlier. So a step is the longest of the weights' way down, then of devices' work on
        slabs, then of the gradients' way up, and the fill.
        """
        blocks = self._gradient[~self._head] if (~self._head).any() else self._gradient
        longest = np.unique(np.quantile(blocks.max(axis=0), (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)))
        found = []
        for hand_over_s in longest.tolist():
            busy_s = self._relaxed_busy(hand_over_s)
            if np.isfinite(busy_s):
                down_s = float(self._weights[~self._head].min()) if (~self._head).any() else 0.0
                found.append((max(self.server_s, down_s + busy_s + hand_over_s) + self.least_fill_s, hand_over_s, self))
        return found

    def _relaxed_busy(self, hand_over_s: float) -> float:
        """The least time for slabs, with fractions of samples."""

        def covered(t: float) -> float:
            return float(self._samples(t, hand_over_s, whole=False).max(axis=0).sum())

        return _least(covered, self.costs.batch * len(self.parts), 1e-6)

    def _allowed(self, hand_over_s: float, busy_s: float) -> np.ndarray:
        return (hand_over_s + np.where(self._head, HEAD_START * busy_s, 0.0))[:, None] * (1 + 1e-6)

    def _samples(self, busy_s: float, hand_over_s: float, *, whole: bool) -> np.ndarray:
        """[kind of part, device]: samples in that time."""
        n = np.clip(busy_s / self._each, 0, np.maximum(self._most, 0))
        n = np.where(self._gradient <= self._allowed(hand_over_s, busy_s), n, 0.0)
        return np.floor(n + 1e-9).astype(int) if whole else n

    def _cover(self, busy_s: float, hand_over_s: float) -> list[list[int]] | None:
        """Devices of each part, so that each has room for the batch; None: they don't suffice."""
        n = self._samples(busy_s, hand_over_s, whole=True)
        able = n.max(axis=0)
        if able.sum() < self.costs.batch * len(self.parts):
            return None
        members: list[list[int]] = [[] for _ in self.parts]
        heap = [(-self.costs.batch, g) for g in range(len(self.parts))]
        rows = n.tolist()
        for i in np.argsort(-able, kind="stable").tolist():
            if able[i] == 0 or not heap:
                break
            skipped = []
            while heap:  # the part that lacks most, of those that the device can hold
                lacks, g = heapq.heappop(heap)
                count = rows[self.kind[g]][i]
                if count:
                    members[g].append(i)
                    if lacks + count < 0:
                        heapq.heappush(heap, (lacks + count, g))
                    break
                skipped.append((lacks, g))
            for entry in skipped:
                heapq.heappush(heap, entry)
        return None if heap else members

    def plan(self, least_s: float, hand_over_s: float, limit_s: float, bound_s: float) -> AffinePlan | None:
        """The best with gradients handed over in that time, if a step takes less than `limit_s`."""
        rest = self.least_fill_s + hand_over_s
        low = high = max(least_s - rest, 1e-6)
        members = self._cover(high, hand_over_s)
        while members is None:
            low, high = high, high * 1.25
            if high / 1.25 + rest > min(limit_s, 1e12):
                return None
            members = self._cover(high, hand_over_s)
        while high - low > 2e-3 * high:
            middle = (low + high) / 2
            found = self._cover(middle, hand_over_s)
            if found is None:
                low = middle
            else:
                high, members = middle, found
        return self._finish(members, bound_s)

    def improved(self, limit_s: float, bound_s: float) -> AffinePlan | None:
        """For few devices: one moved at a time from the best start known, as long as that helps; None: not below
        `limit_s`."""
        starts = [self.plan(s, h, np.inf, bound_s) for s, h, _ in self.choices()]
        starts = [p for p in starts if p is not None]
        if not starts:
            return None
        best = min(starts, key=lambda p: p.step_s)
        at = {name: i for i, name in enumerate(self.costs.names)}
        places = [-1] * len(at)
        for g, row in enumerate(best.shares):
            for share in row:
                places[at[share.device]] = g
        better = True
        while better:
            better = False
            pairs = list(itertools.combinations(range(len(places)), 2))
            moves = [{i: g} for i in range(len(places)) for g in range(-1, len(self.parts)) if g != places[i]]
            moves += [{i: places[k], k: places[i]} for i, k in pairs if places[i] != places[k]]
            for move in moves:
                trial = [move.get(i, g) for i, g in enumerate(places)]
                members = [[i for i, p in enumerate(trial) if p == g] for g in range(len(self.parts))]
                if any(self._most[k, m].clip(min=0).sum() < self.costs.batch for k, m in zip(self.kind, members)):
                    continue
                plan = self._finish(members, bound_s)
                if plan.step_s < best.step_s * (1 - 1e-9):
                    best, places, better = plan, trial, True
                    break
        return best if best.step_s < limit_s else None

    def _finish(self, members: list[list[int]], bound_s: float) -> AffinePlan:
        costs = self.costs
        shares = []
        out = back = 0.0
        used: list[list[int]] = []
        for g, (part, devices) in enumerate(zip(self.parts, members)):
            counts = self._balanced(self.kind[g], devices)
            devices = [i for i in devices if counts[i]]
            used.append(devices)
            mine: list[list[int]] = [[] for _ in devices]
            for j, k in enumerate(_interleaved([counts[i] for i in devices])):
                mine[k].append(j)
            weights, gradient, each = (a[self.kind[g]] for a in (self._weights, self._gradient, self._each))
            row = tuple(
                Share(costs.names[i], tuple(s), float(weights[i]), float(len(s) * each[i]), float(gradient[i]))
                for i, s in zip(devices, mine)
            )
            shares.append(row)
            down, up = costs.sample_bytes(part)
            size_bytes = costs.parameters(part) * costs.numbers.wire_bytes
            out += len(row) * size_bytes + costs.batch * down
            back += len(row) * size_bytes + costs.batch * up
        head = [part[0].kind == HEAD for part in self.parts]
        busy = [max(s.busy_s for s in row) for row in shares]
        # forward, a part is held up by those before it; backward by those after it, half of the work in each pass
        back_s = [max((b for b, h in zip(busy, head) if h), default=0.0)] * len(busy)
        for g in reversed(range(len(busy) - sum(head))):
            back_s[g] = max(busy[g], back_s[g + 1])
        done = [max(b if not h else 0.0, (max(busy) + b) / 2) for b, h in zip(back_s, head)]
        up = max(t + s.gradient_s for t, row in zip(done, shares) for s in row)
        down = max(s.weights_s for h, row in zip(head, shares) for s in row if not h or all(head))
        all_down = sum(len(row) * costs.parameters(p) for p, row in zip(self.parts, shares)) * costs.numbers.wire_bytes
        down = max(down, all_down / costs.server_out)
        own = max(down + up, out / costs.server_out, back / costs.server_in)
        fill = self._fill(self.slab, used)
        return AffinePlan(self.slab, self.parts, tuple(shares), own + fill, own, fill, bound_s, out, back)

    def _balanced(self, kind: int, devices: list[int]) -> dict[int, int]:
        """How many samples each of a part's devices gets: the whole batch, done as early as can be."""
        each, most = self._each[kind, devices], self._most[kind, devices]
        counts = np.zeros(len(devices), dtype=int)
        heap = [(each[k], k) for k in range(len(devices)) if most[k] >= 1]
        heapq.heapify(heap)
        for _ in range(self.costs.batch):
            end, k = heapq.heappop(heap)
            counts[k] += 1
            if counts[k] < most[k]:
                heapq.heappush(heap, (end + each[k], k))
        return dict(zip(devices, counts.tolist()))


def _least(covered, wanted: float, start: float) -> float:
    """The least t at which covered(t) >= wanted; infinite where none is."""
    high = max(start, 1e-9)
    for _ in range(80):
        if covered(high) >= wanted:
            break
        high *= 2
    else:
        return np.inf
    low = 0.0
    for _ in range(_TRIES):
        middle = (low + high) / 2
        if covered(middle) >= wanted:
            high = middle
        else:
            low = middle
    return low


def _interleaved(counts: Sequence[int]) -> list[int]:
    """Whose turn it is, for each sample: everyone's samples spread evenly over the batch."""
    places = [((k + 0.5) / n, i) for i, n in enumerate(counts) for k in range(n)]
    return [i for _, i in sorted(places)]


def _too_large(cluster: Cluster, costs: Costs) -> InputError:
    largest = max(cluster.devices, key=lambda d: d.memory_bytes, default=None)
    if largest is None:
        return InputError("cluster", "no devices; expected at least one")
    units = block_units(costs.model)
    least = max((u.parameters for u in units), default=0) * costs.numbers.parameter_bytes
    total = sum(u.parameters for u in (*units, *head_units(costs.model, 1))) * costs.numbers.parameter_bytes
    return InputError(
        "devices, memory",
        f"all {len(costs.names)} devices together can't hold the model's weights and gradients for a step: "
        f"{int(total):,} bytes ({size(total)}), at least {int(least):,} ({size(least)}) at one device; the largest has "
        f"{int(largest.memory_bytes):,} bytes ({size(largest.memory_bytes)})",
        hint="more or larger devices, or training.tasks: tiles",
    )
