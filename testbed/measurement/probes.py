"""Every link measured before training: does the network do what it was told to? The verdict rests on this.

Each home exchanges TCP data and echo requests with the server: downlinks together, then uplinks together (the
acknowledgements of one would slow the other), in groups small enough for the server's link and for this machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.measurement.light_traffic import echo_rtts, saturate, tcp_flows

MACHINE_BPS = 300e6  # how much is sent at once; more could measure the machine instead of the link
SERVER_SHARE = 0.8  # of the server's link that a group may fill
ECHOES = 16


@dataclass(frozen=True)
class ProbeResult:
    """One quantity of one home's link. rate_up, rate_down [bit/s], rtt [s]; all emulated."""

    home: str
    quantity: str
    set: float
    measured: float
    seconds: float  # emulated, that the measurement took


class _Network(Protocol):
    hosts: Mapping[str, object]  # with .netns_path and .ip


def probe_links(network: _Network, expected: Mapping[str, LinkState], *, server: LinkState, seconds: float = 1.0,
                tdf: float = 1.0) -> list[ProbeResult]:
    """Measure rate (both directions) and RTT of every home's link.

    Args:
        network: started; its delay backend too.
        expected: the settings in force, by home (emulated units).
        server: the server's link; a home that is faster is expected to reach the server's rate.
        seconds: real length of one rate measurement, after the flows have settled.
        tdf: time dilation factor.

    Raises:
        OSError: a home can't be reached at all.
    """
    results = []
    hosts = network.hosts
    for group in _groups({h: 0.0 for h in expected}, limit_bps=1.0, most=256):
        results += _probe_rtt(hosts, expected, group, tdf)
    for direction in ("down", "up"):
        ceiling = server.up_bps if direction == "down" else server.down_bps
        rates = {h: min(s.down_bps if direction == "down" else s.up_bps, ceiling) / tdf for h, s in expected.items()}
        for group in _groups(rates, limit_bps=min(MACHINE_BPS, SERVER_SHARE * ceiling / tdf), most=64):
            results += _probe_rate(hosts, expected, group, rates, direction, seconds, tdf)
    return results


def _groups(rates: Mapping[str, float], *, limit_bps: float, most: int) -> Iterator[list[str]]:
    """Homes in order, in groups whose rates add up to the limit at most (a single one may exceed it)."""
    group: list[str] = []
    total = 0.0
    for home, rate in rates.items():
        if group and (total + rate > limit_bps or len(group) == most):
            yield group
            group, total = [], 0.0
        group.append(home)
        total += rate
    if group:
        yield group


def _probe_rtt(hosts: Mapping, expected: Mapping[str, LinkState], group: Iterable[str],
               tdf: float) -> list[ProbeResult]:
    group = list(group)
    longest = max(expected[h].rtt_s + 6 * expected[h].jitter_s for h in group) * tdf
    interval_s = 0.03
    found = echo_rtts([(h, hosts[h].netns_path, hosts[SERVER].ip) for h in group], count=ECHOES,
                      interval_s=interval_s, wait_s=longest + 0.1)
    seconds = (ECHOES * interval_s + longest + 0.1) / tdf
    return [ProbeResult(h, "rtt", expected[h].rtt_s,
                        statistics.median(found[h]) / tdf if found[h] else float("inf"), seconds) for h in group]


def _probe_rate(hosts: Mapping, expected: Mapping[str, LinkState], group: list[str], rates: Mapping[str, float],
                direction: str, seconds: float, tdf: float) -> list[ProbeResult]:
    server = hosts[SERVER]
    down = direction == "down"
    pairs = [
        (h, server.netns_path, hosts[h].netns_path, hosts[h].ip, rates[h]) if down
        else (h, hosts[h].netns_path, server.netns_path, server.ip, rates[h])
        for h in group
    ]
    # Slow start doubles every RTT from ten packets; then the buffer fills.
    settle_s = 0.3 + 8 * max(expected[h].rtt_s for h in group) * tdf
    with tcp_flows(pairs) as flows:
        saturate(flows, settle_s + seconds)
        end = max((f.times_s[-1] for f in flows if f.times_s), default=0.0)
        return [ProbeResult(f.name, f"rate_{direction}", rates[f.name] * tdf,
                            f.goodput_bps(end - seconds, end) * tdf, seconds / tdf) for f in flows]
