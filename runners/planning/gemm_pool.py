"""The devices that a plan is made for, as arrays, and what they can do at best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runners.planning.gemm_cost import STREAMED, BlockCosts, fair_rates, least_time
from runners.planning.paths import paths
from testbed.cluster import Cluster


@dataclass(frozen=True)
class Rates:
    """What one device can do, over its whole path to the server. FLOP/s, bit/s, one-way seconds."""

    flops: float
    uplink_bps: float
    downlink_bps: float
    uplink_delay_s: float
    downlink_delay_s: float


def default_rates(cluster: Cluster) -> dict[str, Rates]:
    """Every device's rates as the cluster states them; delays include the server's own link."""
    server = cluster.server.link
    found, links = {}, paths(cluster)
    for device in cluster.devices:
        link = links[device.name]
        found[device.name] = Rates(
            device.flops,
            link.uplink_bps,
            link.downlink_bps,
            link.uplink_delay_s + server.downlink_delay_s,
            link.downlink_delay_s + server.uplink_delay_s,
        )
    return found


class Pool:
    """Devices and the links that they share: the server's, and those of neighbourhoods.

    Devices of zero speed, rate or memory are left out.

    Args:
        devices: names of those alive; None: all of the cluster's.
        rates: as measured; those missing are the cluster's.
        chunks: a task is streamed in that many.
        resident_bytes: that an element takes in a device's memory; None: as many as on the wire.

    Raises:
        KeyError: a device that is not in the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        devices: Sequence[str] | None = None,
        rates: Mapping[str, Rates] | None = None,
        chunks: float = 1,
        resident_bytes: int | None = None,
    ):
        known = {**default_rates(cluster), **(rates or {})}
        memory = {d.name: d.memory_bytes for d in cluster.devices}
        names = list(memory) if devices is None else list(dict.fromkeys(devices))
        for name in names:
            memory[name]  # KeyError: not of this cluster
        usable = [
            n for n in names if memory[n] > 0 and min(known[n].flops, known[n].uplink_bps, known[n].downlink_bps) > 0
        ]
        self.names, self.chunks, self._resident_bytes = usable, chunks, resident_bytes
        self.flops, self.up, self.down, self.delay = (
            np.array([f(known[n]) for n in usable], float)
            for f in (
                lambda r: r.flops,
                lambda r: r.uplink_bps,
                lambda r: r.downlink_bps,
                lambda r: r.uplink_delay_s + r.downlink_delay_s,
            )
        )
        self.memory = np.array([memory[n] for n in usable], float)
        self.server_up, self.server_down = cluster.server.link.uplink_bps, cluster.server.link.downlink_bps
        number = {n: i for i, n in enumerate(usable)}
        self.neighbourhoods = [
            (np.array([number[m] for m in s.members if m in number], int), s.uplink_bps, s.downlink_bps)
            for s in cluster.shared_links
        ]

    def __len__(self) -> int:
        return len(self.names)

    def resident_bytes(self, element_bytes: int) -> int:
        """What an element, that takes so many bytes on the wire, takes in memory."""
        return element_bytes if self._resident_bytes is None else self._resident_bytes

    def shared(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(downlink, uplink) rates [bit/s] of those devices when all of them receive, or send, at once.

        Max-min fair on the links that they share. When tasks are streamed, links are busy for the whole time and the
        server's is a bound on the sum of bytes instead: see `server_s`.
        """
        down, up = self.down, self.up
        for members, uplink, downlink in self.neighbourhoods:
            here = np.intersect1d(members, index)
            if len(here):
                down, up = down.copy(), up.copy()
                down[here], up[here] = fair_rates(down[here], downlink), fair_rates(up[here], uplink)
        down, up = down[index], up[index]
        if self.chunks == STREAMED:
            return down, up
        return fair_rates(down, self.server_up), fair_rates(up, self.server_down)

    def contended(self, index: np.ndarray) -> bool:
        """Whether those devices together are faster than a link that they share."""
        if self.neighbourhoods:
            return True
        return self.down[index].sum() > self.server_up or self.up[index].sum() > self.server_down

    def costs(
        self, k: int, element_bytes: int, index: np.ndarray, *, alone: bool = False, level_of: np.ndarray | None = None
    ) -> BlockCosts:
        """Costs of blocks of a product with inner dimension k, when those devices work at once.

        alone: as if nobody shared a link with them. level_of: each as if it were one of these instead.
        """
        if level_of is not None:
            down, up = (
                np.minimum(rates[index], shared.max())
                for rates, shared in zip((self.down, self.up), self.shared(level_of))
            )
        else:
            down, up = (self.down[index], self.up[index]) if alone else self.shared(index)
        p_down = element_bytes * k * 8 / down  # seconds a row or a column
        q_work, q_up = 2 * k / self.flops[index], element_bytes * 8 / up  # seconds an element of the block
        if self.chunks == 1:
            p, q = [p_down], [q_work + q_up]
        else:
            other = max(1 / self.chunks, 1e-12)  # streamed: nearly nothing, so that no constraint is 0 / 0
            p = [p_down, other * p_down, other * p_down]
            q = [other * (q_work + q_up), q_work + other * q_up, q_up + other * q_work]
        return BlockCosts(
            self.delay[index],
            np.stack([*p, np.full_like(down, k)]),
            np.stack([*q, np.ones_like(down)]),
            self.memory[index] / self.resident_bytes(element_bytes),
        )

    def server_s(self, down_bytes: float, up_bytes: float) -> float:
        """Seconds that the server's link is busy at least."""
        return max(8 * down_bytes / self.server_up, 8 * up_bytes / self.server_down)

    def area_bound_s(self, batch: int, m: int, k: int, n: int, element_bytes: int) -> float:
        """A time that no plan can beat: the devices' largest areas add up to the products', the server's link holds.

        Blocks have the best shape there is, whether or not they fit together; links are nobody else's. Of one product
        the server has to send at least the half-perimeters of the fewest devices that can do the work: for a given
        total area their sum is least when the largest areas are used up first, being concave in each. Infinite when
        no device can hold a row and a column.
        """
        if not len(self):
            return float("inf")
        costs = self.costs(k, element_bytes, np.arange(len(self)), alone=True)
        area = float(batch) * m * n
        start = costs.area_time_s(area, m, n, 1e-4)
        if start is None:
            return float("inf")

        areas_in = costs.area_bounds(m, n)

        def sent_in_time(seconds: float) -> float:
            if batch > 1:
                operands = batch * (m + n)
            else:
                areas = -np.sort(-np.minimum(areas_in(seconds), area))
                last = int(np.argmax(np.cumsum(areas) >= area * (1 - 1e-9)))
                areas[last] = max(area - areas[:last].sum(), 0.0)
                operands = _operands(areas[: last + 1], min(m, n)).sum()
            return seconds / self.server_s(element_bytes * k * operands, 0.0)

        bound = max(start[0], self.server_s(0.0, element_bytes * area))
        if sent_in_time(start[1]) < 1:
            found = least_time(lambda t: sent_in_time(max(t, start[1])), 1.0, start[1], 1e-4)
            bound = max(bound, found[0] if found else 0.0)
        return bound


def _operands(areas: np.ndarray, short: int) -> np.ndarray:
    """Rows and columns that a block of that area needs at least, in a matrix with that short side."""
    sides = np.sqrt(areas)
    return np.where(sides <= short, 2 * sides, short + areas / short)
