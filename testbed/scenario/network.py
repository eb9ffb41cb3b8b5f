"""The network that an engine is told of: homes, their links over time, and how it is built."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.cluster import LinkState, Topology
from testbed.cluster.tcp import MAX_RTO_S, MIN_RTO_S
from testbed.errors import InputError, unknown
from testbed.scenario.cross_traffic import OUTSIDE, Stream

SWITCHES = ("bridge", "ovs")
QUEUES = ("fifo", "fq_codel", "cake")
CODEL_INTERVAL_S = 0.1  # RFC 8289, section 4.3: the RTT of most paths
Changes = list[tuple[float, LinkState]]  # (emulated s, settings from then on), the first at 0


@dataclass(frozen=True)
class NetworkSettings:
    """How the network is built, beside its topology. Times are real seconds: `of` applies the time dilation.

    tdf: real seconds in an emulated second, which rates and delays of links are still to be dilated by.
    congestion_control: of every host's TCP. rto_min_s, rto_max_s: its least and largest retransmission timeout.
    buffer_s: each bottleneck's buffer, in seconds at its rate.
    delay_backend: 'auto' or the name of one. mtu: bytes of an IP packet, on every interface.
    queue: of every bottleneck; queue_interval_s: fq_codel's and cake's.
    outside: a host of that name on the core, with a link that nothing fills, where cross traffic comes from.

    Raises:
        InputError: a value that no network can be built with.
    """

    tdf: float = 1.0
    switch: str = "bridge"
    delay_backend: str = "auto"
    congestion_control: str = "cubic"
    rto_min_s: float = MIN_RTO_S
    rto_max_s: float = MAX_RTO_S
    buffer_s: float = 0.1
    mtu: int = 1500
    queue: str = "fifo"
    queue_interval_s: float = CODEL_INTERVAL_S
    outside: str | None = None

    def __post_init__(self) -> None:
        if self.switch not in SWITCHES:
            raise unknown("network.switch", "switch", self.switch, SWITCHES)
        if self.queue not in QUEUES:
            raise unknown("links.queue", "queue", self.queue, QUEUES)
        if not (self.buffer_s > 0 and math.isfinite(self.buffer_s)):
            raise InputError("network.buffer", f"{self.buffer_s} s; expected more than 0")
        if not 576 <= self.mtu <= 9000:
            raise InputError("network.mtu", f"{self.mtu}; expected 576 to 9000 bytes")

    @classmethod
    def of(cls, experiment: Any, delay_backend: str | None = None, tdf: float | None = None) -> NetworkSettings:
        """Those of an experiment (as validated): the one place where they are dilated.

        delay_backend: the one that was chosen; default: what the experiment asks for. tdf: another than the
        experiment's.
        """
        network, links, tdf = experiment.network, experiment.links, experiment.tdf if tdf is None else tdf
        return cls(
            tdf=tdf,
            switch=network.switch,
            delay_backend=delay_backend or network.delay_backend,
            congestion_control=network.congestion_control,
            rto_min_s=MIN_RTO_S * tdf,
            rto_max_s=MAX_RTO_S * tdf,
            buffer_s=links.buffer * tdf,
            queue=links.queue,
            queue_interval_s=CODEL_INTERVAL_S * tdf,
        )


@dataclass(frozen=True)
class NetworkSetup:
    """Homes and their links over time, in emulated seconds and bit/s: nothing of it is dilated yet.

    seed: of loss and jitter. label: by which other processes find the network.
    """

    topology: Topology
    link_changes: dict[str, Changes]
    settings: NetworkSettings = field(default_factory=NetworkSettings)
    link_source: dict[str, str] = field(default_factory=dict)  # home -> which series of which file
    cross_traffic: tuple[Stream, ...] = ()
    seed: int = 0
    label: str = ""

    @property
    def wiring(self) -> NetworkSettings:
        """The settings, with the host where cross traffic comes from if there is any."""
        return replace(self.settings, outside=OUTSIDE if self.cross_traffic else None)

    @property
    def server_state(self) -> LinkState:
        """The server's own link, as a speed test would report it."""
        s = self.topology.server_link
        return LinkState(s.downlink_bps, s.uplink_bps, s.uplink_delay_s + s.downlink_delay_s)

    def at_start(self) -> dict[str, LinkState]:
        """Each home's settings at 0."""
        return {home: series[0][1] for home, series in self.link_changes.items()}

    def later(self, at_s: float) -> NetworkSetup:
        """The same seen from a later start."""

        def seen(series: Changes) -> Changes:
            current = [s for t, s in series if t <= at_s][-1]
            return [(0.0, current), *((t - at_s, s) for t, s in series if t > at_s)]

        changes = {home: seen(series) for home, series in self.link_changes.items()}
        return replace(self, link_changes=changes, cross_traffic=tuple(s.later(at_s) for s in self.cross_traffic))

    def held(self, cross_traffic: tuple[Stream, ...] = ()) -> NetworkSetup:
        """With the links as they are at the start for good, and only this cross traffic."""
        changes = {home: series[:1] for home, series in self.link_changes.items()}
        return replace(self, link_changes=changes, cross_traffic=cross_traffic)
