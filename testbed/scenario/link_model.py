"""From what a speed test reports to what the emulation sets: the one place where these conversions live.

All functions are pure. Times that go in are emulated (trace) seconds; times that come out are real seconds,
which time dilation (TDF) stretches: delays and jitter x tdf, rates / tdf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from testbed.cluster import Link, LinkState, SharedLink, Topology

MTU = 1500  # bytes of an IP packet
FRAME_BYTES = MTU + 14  # what HTB counts: the Ethernet header too, without preamble, checksum and gap
GOODPUT_BYTES = MTU - 20 - 20 - 12  # TCP payload of a full packet: IPv4, TCP, timestamps option
WIRE_PER_GOODPUT = FRAME_BYTES / GOODPUT_BYTES


def wire_rate(goodput_bps: float) -> float:
    """The rate that tc must be given [bit/s of Ethernet frames] for TCP to reach `goodput_bps` of payload."""
    return goodput_bps * WIRE_PER_GOODPUT


def sigma_from_jitter(jitter_s: float) -> float:
    """Standard deviation of each one-way delay [s] that gives this jitter over the round trip.

    Jitter, as speed tests report it, is the mean absolute difference of successive round-trip times. With
    each direction's delay Gaussian with deviation s, a round trip deviates by s*sqrt(2), and the difference
    of two independent round trips by s*sqrt(2)*sqrt(2) = 2s. The mean of |X| for X ~ N(0, d) is d*sqrt(2/pi),
    so jitter = 2s*sqrt(2/pi), and s = jitter * sqrt(pi) / (2*sqrt(2)) = jitter / (2/sqrt(pi) * sqrt(2)).
    """
    return jitter_s / (2 / math.sqrt(math.pi) * math.sqrt(2))


def jitter_from_sigma(*sigmas_s: float) -> float:
    """Mean absolute difference of successive sums of independent Gaussians with these deviations [s]."""
    return 2 / math.sqrt(math.pi) * math.sqrt(sum(s * s for s in sigmas_s))


def one_way_loss(round_trip_loss: float) -> float:
    """Loss probability of each direction, so that a round trip succeeds with 1 - round_trip_loss."""
    return 1 - math.sqrt(1 - round_trip_loss)


@dataclass(frozen=True)
class PathDelay:
    """One access link's own delays: one-way, in real seconds (time dilation already applied).

    *_jitter_s: standard deviation of the one-way delay (Gaussian, cut at zero delay).
    *_loss: probability that a packet is lost in that direction, independent of other packets.
    reorder: probability that a packet may overtake the ones before it; 0 keeps the order whatever the jitter.
    """

    up_delay_s: float = 0.0
    down_delay_s: float = 0.0
    up_jitter_s: float = 0.0
    down_jitter_s: float = 0.0
    up_loss: float = 0.0
    down_loss: float = 0.0
    reorder: float = 0.0

    def __post_init__(self):
        for name in ("up_delay_s", "down_delay_s", "up_jitter_s", "down_jitter_s"):
            value = getattr(self, name)
            if not 0 <= value < 600:
                raise ValueError(f"{name}={value!r}: expected 0 to 600 seconds")
        for name in ("up_loss", "down_loss", "reorder"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r}: expected a probability, 0 to 1")


@dataclass(frozen=True)
class AccessLink:
    """One home's access link as set: TCP goodput each way in `link` (real bit/s), delays in `delay`."""

    link: Link
    delay: PathDelay


def server_delay(server: Link, tdf: float = 1.0) -> PathDelay:
    """The server's own access link; its jitter_s and loss are figures of a round trip, like a home's."""
    sigma, loss = sigma_from_jitter(server.jitter_s) * tdf, one_way_loss(server.loss)
    return PathDelay(server.uplink_delay_s * tdf, server.downlink_delay_s * tdf, sigma, sigma, loss, loss)


def access_link(state: LinkState, server: Link, shared_delay_s: float = 0.0, tdf: float = 1.0) -> AccessLink:
    """What a home's access link must be set to, for the whole path to the server to look like `state`.

    The trace's RTT, jitter and loss are those of the path home-server as a speed test saw them, so the
    server's and the shared link's part is taken off: delay each way = (rtt - server's RTT - 2 * shared delay)
    / 2, not below 0; jitter in squares; loss by 1 - p = (1 - p_home) * (1 - p_server).

    Args:
        state: one line of a link trace (rates as TCP goodput).
        server: the server's access link, in emulated seconds and bit/s.
        shared_delay_s: one-way delay of the shared link that the home is behind [emulated s].
        tdf: time dilation factor.
    """
    own_rtt_s = state.rtt_s - server.uplink_delay_s - server.downlink_delay_s - 2 * shared_delay_s
    each_way_s = max(0.0, own_rtt_s / 2)
    jitter_s = math.sqrt(max(0.0, state.jitter_s**2 - server.jitter_s**2))
    loss = 1 - (1 - state.loss) / (1 - server.loss) if server.loss < 1 else 0.0
    sigma, way_loss = sigma_from_jitter(jitter_s) * tdf, one_way_loss(max(0.0, loss))
    return AccessLink(
        Link(
            uplink_bps=state.up_bps / tdf,
            downlink_bps=state.down_bps / tdf,
            uplink_delay_s=each_way_s * tdf,
            downlink_delay_s=each_way_s * tdf,
            jitter_s=jitter_s * tdf,
            loss=max(0.0, loss),
        ),
        PathDelay(each_way_s * tdf, each_way_s * tdf, sigma, sigma, way_loss, way_loss),
    )


def access_links(
    states: Mapping[str, LinkState], server: Link, shared: Iterable[SharedLink] = (), tdf: float = 1.0
) -> dict[str, AccessLink]:
    """`access_link` for several homes; each home's shared link is looked up in `shared`."""
    behind = {home: s.delay_s for s in shared for home in s.members}
    return {home: access_link(state, server, behind.get(home, 0.0), tdf) for home, state in states.items()}


def dilated(topology: Topology, tdf: float) -> Topology:
    """The same topology for a machine that runs `tdf` times slower: rates divided, delays multiplied."""
    if tdf == 1:
        return topology
    s = topology.server_link
    server = replace(
        s,
        uplink_bps=s.uplink_bps / tdf,
        downlink_bps=s.downlink_bps / tdf,
        uplink_delay_s=s.uplink_delay_s * tdf,
        downlink_delay_s=s.downlink_delay_s * tdf,
        jitter_s=s.jitter_s * tdf,
    )
    shared = tuple(
        replace(x, uplink_bps=x.uplink_bps / tdf, downlink_bps=x.downlink_bps / tdf, delay_s=x.delay_s * tdf)
        for x in topology.shared_links
    )
    return replace(topology, server_link=server, shared_links=shared)
