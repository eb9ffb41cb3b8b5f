"""What TCP adds to bytes / rate: a connection that starts, or was idle, opens its window anew.

Linux: ten segments at first (RFC 6928), doubled each round trip in slow start (RFC 5681), back to ten after some
retransmission timeouts of idleness (RFC 2861, `tcp_slow_start_after_idle`). Cluster rates are TCP goodput, so losses
at the bottleneck are in them already.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.cluster.tcp import Window

IDLE_S = 0.5  # by then the window has been halved two or three times (a timeout is 0.2 s and a round trip)


def slow_start_s(nbytes: float, rate_bps: float, rtt_s: float) -> float:
    """Seconds beyond 8 bytes / rate until the last of `nbytes` has left, on a connection that was idle."""
    return Window().pause(nbytes, rate_bps / 8, rtt_s)


def fair_rates(rates_bps: Sequence[float], capacity_bps: float) -> list[float]:
    """Max-min fair rates of flows that share a link: each its own rate at most, the sum at most `capacity`."""
    out = [0.0] * len(rates_bps)
    left, count = capacity_bps, len(rates_bps)
    for i in sorted(range(len(rates_bps)), key=rates_bps.__getitem__):
        out[i] = min(rates_bps[i], left / count)
        left -= out[i]
        count -= 1
    return out
