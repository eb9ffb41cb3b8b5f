"""Devices and their links, as a planner sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

SERVER = "server"


@dataclass(frozen=True)
class LinkState:
    """One moment of an access link, as a speed test reports it.

    Rates are TCP goodput, which is what speed tests measure; the emulation adds the header overhead.
    """

    down_bps: float
    up_bps: float
    rtt_s: float
    jitter_s: float = 0.0  # mean absolute difference of successive RTTs
    loss: float = 0.0  # probability that a packet is lost, over the round trip


@dataclass(frozen=True)
class Link:
    """An access link at planning time. Delays are one-way, from the device to the core of the network."""

    uplink_bps: float
    downlink_bps: float
    uplink_delay_s: float = 0.0
    downlink_delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class SharedLink:
    """A link that several homes share on the way to the server (neighbourhood aggregation)."""

    name: str
    members: tuple[str, ...]
    uplink_bps: float
    downlink_bps: float
    delay_s: float = 0.0  # one-way


@dataclass(frozen=True)
class Topology:
    """Who is connected to what: homes behind access links, some of them behind shared links, and a server.

    Homes outside every shared link hang on the core directly. `server_link` is the server's own access link.
    """

    homes: tuple[str, ...]
    server_link: Link
    shared_links: tuple[SharedLink, ...] = ()
    name: str = "star"


@dataclass(frozen=True)
class Device:
    """A computer in a home (one a home, of the same name), or the server.

    flops: sustained fp32 speed [FLOP/s]; memory_bytes: what training may use.
    """

    name: str
    flops: float
    memory_bytes: int
    link: Link
    profile: str = ""
    available_fraction: float = 1.0  # of the experiment's time, by its availability trace
    power_w: float | None = None  # under load, where the profile states it


@dataclass(frozen=True)
class Cluster:
    """All that a planner may know before the start. `devices` excludes the server."""

    server: Device
    devices: tuple[Device, ...]
    shared_links: tuple[SharedLink, ...] = ()

    def device(self, name: str) -> Device:
        """The device (or server) of that name. Raises KeyError."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Device]:
        return {d.name: d for d in (*self.devices, self.server)}

    def only(self, names) -> Cluster:
        """The same cluster with just the named devices, in this cluster's order."""
        names = set(names)
        return Cluster(self.server, tuple(d for d in self.devices if d.name in names), self.shared_links)
