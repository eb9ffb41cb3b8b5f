"""How long an all-reduce takes over home links."""

from __future__ import annotations

from collections.abc import Sequence

from runners.data_parallel.timing import ring_s
from runners.planning.tcp import slow_start_s
from testbed.cluster import Link


def all_reduce_s(links: Sequence[Link], nbytes: float, algorithm: str, *, idle: bool) -> float:
    """Seconds until every member has the sum of tensors of `nbytes`, from the moment at which all have theirs.

    Args:
        links: the members' paths to the core. idle: whether the connections had time to lose their windows.
    """
    n = len(links)
    if n == 1:
        return 0.0
    if algorithm == "ring":
        return ring_s(links, [[0.0]] * n, [nbytes], idle=idle)
    # each round, a member sends its links' worth of n - 1 segments, and receives as much; its own way is shared by
    # n - 1 connections
    segment = nbytes / n
    slowest = max(8 * (n - 1) * segment / min(link.uplink_bps, link.downlink_bps) for link in links)
    up, down = _two_largest([k.uplink_delay_s for k in links]), _two_largest([k.downlink_delay_s for k in links])
    delay = max(k.uplink_delay_s + (down[1] if k.downlink_delay_s == down[0] else down[0]) for k in links)
    opening = 0.0
    if idle:
        rtt = up[0] + down[0] + up[1] + down[1]
        opening = max(slow_start_s(segment, k.uplink_bps / (n - 1), rtt) for k in links)
    return 2 * (slowest + delay) + opening


def _two_largest(values: Sequence[float]) -> tuple[float, float]:
    first, second = sorted(values, reverse=True)[:2]
    return first, second
