"""Cut a chain of layers into stages over devices in a given order, by dynamic programming.

Finds, for every number of stages P at once, the cut and the choice of devices (in their order; some may
stay unused) with the least bottleneck

    max over stages     of compute, flops / F_i, and of link load, 8 bytes / U_i and 8 bytes / D_i of all
                        that the stage sends (output onwards, input's gradient back) and receives a
                        micro-batch;
    max over boundaries of the transfer each way, 8 bytes / min(U_sender, D_receiver) + delays.

The recursion is that of PipeDream (Narayanan et al. 2019, section 3.1) without replication and with a
device index:

    best[k][i, j] = min over e of max( stage(i, j..e), rest(i, e) )
    rest(i, e)    = min over i' > i of max( boundary(e; i, i'), best[k-1][i', e] )

where k stages, the first of them on device i, take the layers from j on. k counts from the end because the
micro-batches that a 1F1B stage holds depend on the distance to the last stage. A stage that does not fit a
device's memory costs infinity. Time O(P L N² + P L² N) for L layers and N devices, vectorised over
devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.cluster import Link
from testbed.cluster.tcp import MAX_WINDOW

MAX_DEVICES = 256  # the most that the search looks at; the weakest of more are left out as spares


@dataclass(frozen=True)
class Worker:
    """A device as the search sees it. link: its path to the core."""

    name: str
    flops: float
    memory_bytes: float
    link: Link


@dataclass(frozen=True)
class Chain:
    """What is to be cut, all per micro-batch.

    flops: of each layer, forward and backward. boundary_bytes: what each layer hands to the next, the same
    size coming back as its gradient (the last layer's entry is not used).
    memory_bytes: (first layer, end layer, stages from this one to the last) -> bytes that the stage needs.
    """

    flops: Sequence[float]
    boundary_bytes: Sequence[float]
    memory_bytes: Callable[[int, int, int], float]


@dataclass(frozen=True)
class Partition:
    """spans: (first, end) layers of each stage, in order; workers: index of the device of each stage."""

    spans: tuple[tuple[int, int], ...]
    workers: tuple[int, ...]
    bottleneck: float


class _Costs:
    """The cost arrays; see the module's text."""

    def __init__(self, chain: Chain, workers: Sequence[Worker], deepest: int):
        self.layers, self.count = len(chain.flops), len(workers)
        size = self.layers + 1
        speed = np.array([w.flops for w in workers])
        up = np.array([w.link.uplink_bps for w in workers]) / 8
        down = np.array([w.link.downlink_bps for w in workers]) / 8
        self.memory = np.array([w.memory_bytes for w in workers], dtype=float)
        upward = np.array([w.link.uplink_delay_s for w in workers])
        downward = np.array([w.link.downlink_delay_s for w in workers])

        done = np.concatenate([[0.0], np.cumsum(chain.flops)])
        work = done[None, :] - done[:, None]  # [first, end]
        crossing = np.array([0.0, *chain.boundary_bytes[:-1], 0.0])  # at the boundary before each layer
        moved = crossing[:, None] + crossing[None, :]
        self.stage = np.maximum(
            work[None] / speed[:, None, None], moved[None] / np.minimum(up, down)[:, None, None]
        )  # [device, first, end]
        self.needs = np.full((deepest + 1, size, size), np.inf)
        for k in range(1, deepest + 1):
            for first in range(self.layers):
                for end in range(first + 1, size):
                    self.needs[k, first, end] = chain.memory_bytes(first, end, k)

        delay = upward[:, None] + downward[None, :]
        a_window = np.maximum(delay + delay.T, 1e-4) / MAX_WINDOW  # seconds a byte of one connection, on a long way
        per_byte = np.maximum(np.maximum(1 / up[:, None], 1 / down[None, :]), a_window)  # [sender, receiver]
        later = np.triu(np.ones((self.count, self.count), dtype=bool), 1)
        self._boundary: dict[float, np.ndarray] = {}
        self._crossing = crossing
        self._make = lambda nbytes: np.where(
            later, np.maximum(nbytes * per_byte + delay, (nbytes * per_byte + delay).T), np.inf
        )

    def boundary(self, end: int) -> np.ndarray:
        """[device, next device] seconds to cross before layer `end`; infinite against the order."""
        nbytes = float(self._crossing[end])
        if nbytes not in self._boundary:
            self._boundary[nbytes] = self._make(nbytes)
        return self._boundary[nbytes]


def _search(costs: _Costs, stage: Callable[[int], np.ndarray], boundary: Callable[[int], np.ndarray],
            deepest: int, combine: Callable) -> dict[int, Partition]:  # fmt: skip
    """The recursion with costs joined by `combine` (np.maximum or np.add)."""
    n, layers = costs.count, costs.layers
    best = np.full((n, layers + 1), np.inf)
    cut = stage(1)
    best[:, :layers] = cut[:, :layers, layers]
    choices: list[tuple[np.ndarray, np.ndarray]] = []  # for k = 2 …: (end [n, layer], next device [n, end])
    found: dict[int, Partition] = {}
    devices = np.arange(n)
    for k in range(1, deepest + 1):
        if k > 1:
            tail = np.full((n, layers + 1), np.inf)
            following = np.zeros((n, layers + 1), dtype=int)
            for end in range(1, layers):
                across = combine(boundary(end), best[None, :, end])
                following[:, end] = across.argmin(axis=1)
                tail[:, end] = across[devices, following[:, end]]
            whole = combine(stage(k), tail[:, None, :])  # [device, first, end]
            ends = whole.argmin(axis=2)
            best = np.take_along_axis(whole, ends[:, :, None], axis=2)[:, :, 0]
            choices.append((ends, following))
        i = int(best[:, 0].argmin())
        if np.isfinite(best[i, 0]):
            found[k] = _trace(choices, k, i, layers, float(best[i, 0]))
    return found


def _trace(choices, k: int, device: int, layers: int, value: float) -> Partition:
    spans, used, first = [], [device], 0
    for ends, following in reversed(choices[: k - 1]):
        end = int(ends[device, first])
        spans.append((first, end))
        device, first = int(following[device, end]), end
        used.append(device)
    spans.append((first, layers))
    return Partition(tuple(spans), tuple(used), value)


def _strongest(chain: Chain, workers: Sequence[Worker]) -> list[int]:
    """Indices of the workers to consider, in their order."""
    if len(workers) <= MAX_DEVICES:
        return list(range(len(workers)))
    layers = len(chain.flops)
    flops, nbytes = sum(chain.flops) / layers, 2 * max(chain.boundary_bytes)
    least = min(chain.memory_bytes(u, u + 1, 1) for u in range(layers))

    def slowness(i: int) -> tuple[bool, float]:
        w = workers[i]
        rate = min(w.link.uplink_bps, w.link.downlink_bps)
        return w.memory_bytes < least, max(flops / w.flops, 8 * nbytes / rate)

    return sorted(sorted(range(len(workers)), key=slowness)[:MAX_DEVICES])


class Search:
    """All partitions of a chain over workers, by number of stages.

    `best`: stages -> the Partition of least bottleneck [s]; a number of stages that memory forbids is absent.
    """

    def __init__(self, chain: Chain, workers: Sequence[Worker], most_stages: int | None = None):
        self._kept = _strongest(chain, workers)
        kept = [workers[i] for i in self._kept]
        self.deepest = min(len(chain.flops), len(kept), most_stages or len(kept))
        self._costs = _Costs(chain, kept, self.deepest)
        self.best = self._named(_search(self._costs, self._stage, self._costs.boundary, self.deepest, np.maximum))

    def quickest(self, stages: int) -> Partition:
        """Among the partitions of that many stages with the least bottleneck, the one of least latency."""
        cap = self.best[stages].bottleneck * (1 + 1e-9)

        def capped(cost: np.ndarray) -> np.ndarray:
            return np.where(cost <= cap, cost, np.inf)

        found = self._named(_search(
            self._costs, lambda k: capped(self._stage(k)), lambda end: capped(self._costs.boundary(end)),
            stages, np.add,
        ))[stages]  # fmt: skip
        return Partition(found.spans, found.workers, self.best[stages].bottleneck)

    def tightest(self, stages: int) -> tuple[Partition, int]:
        """Ignoring time: the partition whose fullest device is least full, and the stage on that device.

        Its bottleneck is bytes needed / bytes available, above 1 when memory forbids this number of stages.
        """
        costs = self._costs
        order = np.triu(np.ones((costs.count, costs.count), dtype=bool), 1)

        def fullness(k: int) -> np.ndarray:
            return costs.needs[k][None] / costs.memory[:, None, None]

        found = _search(costs, fullness, lambda end: np.where(order, 0.0, np.inf), stages, np.maximum)[stages]
        filled = [
            fullness(stages - p)[w, first, end] for p, (w, (first, end)) in enumerate(zip(found.workers, found.spans))
        ]
        return self._named({stages: found})[stages], int(np.argmax(filled))

    def _stage(self, k: int) -> np.ndarray:
        """[device, first, end] seconds of a stage, the k-th from the end; infinite where it does not fit."""
        fits = self._costs.needs[k][None] <= self._costs.memory[:, None, None]
        return np.where(fits, self._costs.stage, np.inf)

    def _named(self, found: dict[int, Partition]) -> dict[int, Partition]:
        return {k: Partition(p.spans, tuple(self._kept[i] for i in p.workers), p.bottleneck) for k, p in found.items()}
