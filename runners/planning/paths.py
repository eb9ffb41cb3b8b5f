"""The way from a device to the core of the network: its access link, and shared links before it."""

from __future__ import annotations

from dataclasses import replace

from testbed.cluster import Cluster, Device, Link


def path(cluster: Cluster, device: Device) -> Link:
    """The device's link with shared links folded in: the slower rate, the sum of the delays.

    It takes the shared link as the device's alone, so it is optimistic when neighbours are busy too.
    """
    link = device.link
    for shared in cluster.shared_links:
        if device.name in shared.members:
            link = replace(
                link,
                uplink_bps=min(link.uplink_bps, shared.uplink_bps),
                downlink_bps=min(link.downlink_bps, shared.downlink_bps),
                uplink_delay_s=link.uplink_delay_s + shared.delay_s,
                downlink_delay_s=link.downlink_delay_s + shared.delay_s,
            )
    return link


def transfer_s(nbytes: float, sender: Link, receiver: Link) -> float:
    """Seconds for a message over both links: the slower rate, both delays."""
    rate = min(sender.uplink_bps, receiver.downlink_bps)
    return 8 * nbytes / rate + sender.uplink_delay_s + receiver.downlink_delay_s
