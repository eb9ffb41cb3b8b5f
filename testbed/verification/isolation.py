"""What a home's neighbours notice when it saturates its link: nothing, if links are apart."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.emulation.kernel.namespaces import inside
from testbed.emulation.probing.echoes import echo_rtts
from testbed.emulation.shaped import ShapedNetwork
from testbed.measurement.thresholds import Thresholds
from testbed.scenario.cross_traffic import Stream
from testbed.verification.rows import Row, judged, retry_each, unjudged
from testbed.verification.settings import promises

NEIGHBOURS_MAX = 4
_OVERLOAD = 1.1  # x the home's rate, each way
_SETTLE_S = 0.5
_DRAIN_S = 0.2  # emulated: buffers empty themselves of what was measured before
_ETH_P_ALL = 3


def saturating(state: LinkState, home: str) -> list[Stream]:
    """Cross traffic that fills a home's link both ways, from time 0 on."""
    return [
        Stream(home, "down", ((0.0, _OVERLOAD * state.down_bps),)),
        Stream(home, "up", ((0.0, _OVERLOAD * state.up_bps),)),
    ]


def isolation_rows(
    shaped: ShapedNetwork, home: str, homes: Sequence[str], limits: Thresholds, echoes: int, attempts: int
) -> list[Row]:
    """RTTs of neighbours, before and while `home` is saturated by the network's cross traffic (see `saturating`).

    Only neighbours that share no link with it on the way. The traffic comes from outside, so the server's
    link carries none of it.
    """
    shared = {m: s.name for s in shaped.topology.shared_links for m in s.members}
    near = [h for h in homes if h != home and (h not in shared or shared[h] != shared.get(home))][:NEIGHBOURS_MAX]
    if not near:
        return [unjudged(home, "both", "isolation", "no other home that shares no link with it")]

    def measure(_keys: list[str], _attempt: int) -> dict[str, list[Row]]:
        time.sleep(max(_SETTLE_S, _DRAIN_S * shaped.tdf))
        before = _rtts(shaped, near, echoes)
        with _stray_frames(shaped, near) as stray:
            shaped.begin_cross_traffic(time.monotonic())
            time.sleep(_SETTLE_S)
            sent = shaped.network.counters()[home]["down"].bytes
            began = time.monotonic()
            during = _rtts(shaped, near, echoes)
            loaded_bps = 8 * (shaped.network.counters()[home]["down"].bytes - sent) / (time.monotonic() - began)
        shaped.pause_cross_traffic()
        return {
            h: [
                _row(h, home, before[h], during[h], loaded_bps, limits, shaped.tdf, _sigma_s(shaped, h)),
                _stray_row(h, home, stray[h]),
            ]
            for h in near
        }

    def again(keys: list[str], attempt: int) -> dict[str, list[Row]]:
        found = measure(keys, attempt)
        return {key: found[key] for key in keys}

    return [row for rows in retry_each(near, again, attempts).values() for row in rows]


def _sigma_s(shaped: ShapedNetwork, home: str) -> float:
    return math.hypot(*(p.sigma_s for p in promises(shaped, home).values()))


def _rtts(shaped: ShapedNetwork, homes: Sequence[str], echoes: int) -> dict[str, np.ndarray]:
    hosts = shaped.network.hosts
    longest = max(shaped.current(h).rtt_s + 8 * shaped.current(h).jitter_s for h in homes) * shaped.tdf
    found = echo_rtts(
        [(h, hosts[h].netns_path, hosts[SERVER].ip) for h in homes], count=echoes, interval_s=0.01, wait_s=longest + 0.1
    )
    return {h: np.array(found[h]) for h in homes}


def _row(
    home: str,
    busy: str,
    before: np.ndarray,
    during: np.ndarray,
    loaded_bps: float,
    limits: Thresholds,
    tdf: float,
    sigma_s: float,
) -> Row:
    """The median's shift; where jitter is set (sigma_s, of a round trip), medians of few packets scatter by it."""
    name, lost = "neighbour's RTT", float("inf")
    if not len(before) or not len(during):
        return judged(home, "both", name, 0.0, lost, "s", lost, "s", limits.neighbour_rtt_s, "no answer came through")
    scatter_s = 3 * 1.2533 * sigma_s * (1 / len(before) + 1 / len(during)) ** 0.5
    p50, loaded = float(np.median(before)) / tdf, float(np.median(during)) / tdf
    p99 = [float(np.percentile(x, 99)) / tdf for x in (before, during)]
    note = (
        f"p50, while {busy} receives {loaded_bps / 1e6:.0f} Mbit/s of frames; "
        f"p99 {1e3 * p99[0]:.2f} to {1e3 * p99[1]:.2f} ms"
    )
    limit_s = limits.neighbour_rtt_s + scatter_s / tdf
    return judged(
        home,
        "both",
        name,
        p50,
        loaded,
        "s",
        loaded - p50,
        "s",
        limit_s,
        note,
        p99_idle=p99[0],
        p99_loaded=p99[1],
        load_bps=loaded_bps,
    )


def _stray_row(home: str, busy: str, stray: int) -> Row:
    return judged(home, "down", "foreign frames", 0, stray, "", stray, "", 0, f"not for it, while {busy} is saturated")


@dataclass
class _Capture:
    sock: socket.socket
    mac: bytes


@contextlib.contextmanager
def _stray_frames(shaped: ShapedNetwork, homes: Sequence[str]) -> Iterator[dict[str, int]]:
    """Counts frames that reach homes but aren't theirs; complete when the context ends.

    A frame crafted to a MAC address that no host has goes out by the first home: a switch that doesn't know
    where everyone is would flood it to all.
    """
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    hosts = shaped.network.hosts
    counts = dict.fromkeys(homes, 0)
    with contextlib.ExitStack() as stack:
        captures = {}
        for home in homes:
            with inside(hosts[home].netns_path):
                sock = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)))
            sock.bind((hosts[home].interface, 0))
            sock.setblocking(False)
            captures[home] = _Capture(sock, bytes.fromhex(hosts[home].mac.replace(":", "")))
        first = hosts[homes[0]]
        unknown = (
            Ether(src=first.mac, dst="02:00:0a:fe:fe:fe") / IP(src=first.ip, dst="10.254.254.254") / UDP() / b"stray?"
        )
        for _ in range(5):
            captures[homes[0]].sock.send(bytes(unknown))
        yield counts
        for home, capture in captures.items():
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, (_, _, kind, _, _) = capture.sock.recvfrom(64)
                    arriving = kind != socket.PACKET_OUTGOING
                    counts[home] += arriving and frame[:6] != capture.mac and not frame[0] & 1
