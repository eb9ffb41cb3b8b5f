"""The way from a device to the core of the network: its access link, and shared links before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from testbed.cluster import Cluster, Device, Link, SharedLink
from testbed.cluster.tcp import flow_rate_bps


def path(cluster: Cluster, device: Device) -> Link:
    """The device's link with shared links folded in: the slower rate, the sum of the delays.

    It takes the shared link as the device's alone, so it is optimistic when neighbours are busy too.
    """
    return _behind(device.link, [s for s in cluster.shared_links if device.name in s.members])


def paths(cluster: Cluster) -> dict[str, Link]:
    """`path` of every device, by name; in time that grows with devices and members, not with their product."""
    shared: dict[str, list[SharedLink]] = {}
    for link in cluster.shared_links:
        for name in link.members:
            shared.setdefault(name, []).append(link)
    return {d.name: _behind(d.link, shared.get(d.name, ())) for d in cluster.devices}


def _behind(link: Link, shared: Iterable[SharedLink]) -> Link:
    for s in shared:
        link = replace(
            link, uplink_bps=min(link.uplink_bps, s.uplink_bps), downlink_bps=min(link.downlink_bps, s.downlink_bps),
            uplink_delay_s=link.uplink_delay_s + s.delay_s, downlink_delay_s=link.downlink_delay_s + s.delay_s,
        )  # fmt: skip
    return link


def transfer_s(nbytes: float, sender: Link, receiver: Link) -> float:
    """Seconds for a message over both links: the rate of one connection, both delays."""
    return 8 * nbytes / connection_bps(sender, receiver) + sender.uplink_delay_s + receiver.downlink_delay_s


def rtt_s(a: Link, b: Link) -> float:
    """Of a round trip between the ends of two links."""
    return a.uplink_delay_s + a.downlink_delay_s + b.uplink_delay_s + b.downlink_delay_s


def connection_bps(sender: Link, receiver: Link) -> float:
    """The rate of one TCP connection over both links: the slower one's, or what its window allows on a long way."""
    return flow_rate_bps(min(sender.uplink_bps, receiver.downlink_bps), rtt_s(sender, receiver))
