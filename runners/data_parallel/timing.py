"""When a data-parallel step ends: backward passes, gradients and weights bucket by bucket over each member's links."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from runners.messaging import CHUNK_BYTES, CHUNK_S
from runners.planning.paths import connection_bps
from runners.planning.tcp import fair_rates, slow_start_s
from testbed.cluster import Link

SIMULATED = 300_000  # messages of a ring that are followed one by one; larger rings get the closed form
MOST_PIECES = 4  # chunks of a segment that are told apart


@dataclass(frozen=True)
class Member:
    """link: its path to the core. before_s: compute before the backward pass of the last micro-batch.

    backward_s: of each bucket then. flops: its speed.
    """

    link: Link
    before_s: float
    backward_s: tuple[float, ...]
    flops: float

    def ready_s(self) -> list[float]:
        """When each bucket's gradient is there; the last bucket's is first."""
        out, t = [0.0] * len(self.backward_s), self.before_s
        for b in reversed(range(len(out))):
            t += self.backward_s[b]
            out[b] = t
        return out


def ps_step_s(members: Sequence[Member], server: Link, nbytes: Sequence[float], update_s: Sequence[float]) -> float:
    """Seconds of a step with a parameter server, in the steady state.

    Devices share the server's link max-min fairly, as if all sent (or received) at the same time.

    Args:
        nbytes: of each bucket's gradients, and of its weights. update_s: the server's update of each bucket.
    """
    down = fair_rates([connection_bps(server, m.link) for m in members], server.uplink_bps)
    up = fair_rates([connection_bps(m.link, server) for m in members], server.downlink_bps)
    to_s = [server.uplink_delay_s + m.link.downlink_delay_s for m in members]
    from_s = [m.link.uplink_delay_s + server.downlink_delay_s for m in members]
    buckets = range(len(nbytes))
    updated = [0.0 for _ in buckets]
    step_s = 0.0
    for _ in range(3):  # from one step to the next, until the first step's start is forgotten
        began, arrived = max(updated), [[0.0 for _ in buckets] for _ in members]
        for i, m in enumerate(members):
            rtt = to_s[i] + from_s[i]
            sent, first = -1.0, True
            for b in reversed(buckets):
                if first:
                    sent, first = updated[b] + slow_start_s(sum(nbytes), down[i], rtt), False
                sent = max(sent, updated[b]) + 8 * nbytes[b] / down[i]
            start = max(sent, began) + to_s[i]
            ready = m.ready_s()
            free = start + ready[-1] + slow_start_s(sum(nbytes), up[i], rtt)
            for b in reversed(buckets):
                free = max(free, start + ready[b]) + 8 * nbytes[b] / up[i]
                arrived[i][b] = free + from_s[i]
        busy = 0.0
        for b in reversed(buckets):
            busy = max(busy, max(a[b] for a in arrived)) + update_s[b]
            updated[b] = busy
        step_s = max(updated) - began
    return step_s


def ring_step_s(members: Sequence[Member], server: Link, nbytes: Sequence[float], update_flops: float) -> float:
    """Seconds of a step with a ring, commit and update included.

    Args:
        nbytes: of each bucket's gradients. update_flops: of the whole model.
    """
    ready = [m.ready_s() for m in members]
    reduced = ring_s([m.link for m in members], ready, nbytes) if len(members) > 1 else max(r[0] for r in ready)
    commit = max(
        m.link.uplink_delay_s + server.downlink_delay_s + server.uplink_delay_s + m.link.downlink_delay_s
        + update_flops / m.flops
        for m in members
    )  # fmt: skip
    return reduced + commit


def ring_s(
    links: Sequence[Link], ready: Sequence[Sequence[float]], nbytes: Sequence[float], *, idle: bool = True
) -> float:
    """When the last member has the sum of the last bucket.

    Args:
        links: of the members, in the ring's order. ready: [member][bucket] seconds.
        idle: whether the connections had time to lose their windows.
    """
    n = len(links)
    after = [links[(i + 1) % n] for i in range(n)]
    rate = [connection_bps(a, b) for a, b in zip(links, after)]
    delay = [a.uplink_delay_s + b.downlink_delay_s for a, b in zip(links, after)]
    rtt = [d + b.uplink_delay_s + a.downlink_delay_s for d, a, b in zip(delay, links, after)]
    slowest = min(min(k.uplink_bps, k.downlink_bps) for k in links)
    chunk = min(max(CHUNK_S * slowest / 8, CHUNK_BYTES[0]), CHUNK_BYTES[1])
    pieces = min(MOST_PIECES, max(1, round(max(nbytes) / n / chunk)))
    rounds = 2 * (n - 1)
    if n * rounds * len(nbytes) * pieces > SIMULATED:
        passing = [8 * rounds / n * sum(nbytes) / r for r in rate]
        return max(r[-1] for r in ready) + max(passing) + rounds * sum(delay) / n
    # each message: (when it can leave, order, sender, bucket, round)
    waiting, order = [], 0
    for i in range(n):
        for b in reversed(range(len(nbytes))):
            for _ in range(pieces):
                waiting.append((ready[i][b], order, i, b, 0))
                order += 1
    heapq.heapify(waiting)
    free, carried, finished = [0.0] * n, [0.0] * n, 0.0  # carried: bytes since the step began
    while waiting:
        t, _, i, b, r = heapq.heappop(waiting)
        piece = nbytes[b] / n / pieces
        opening = 0.0
        if idle:
            opening = slow_start_s(carried[i] + piece, rate[i], rtt[i]) - slow_start_s(carried[i], rate[i], rtt[i])
        carried[i] += piece
        free[i] = max(free[i], t) + 8 * piece / rate[i] + opening
        there, j = free[i] + delay[i], (i + 1) % n
        if r < n - 1:
            there = max(there, ready[j][b])
        if r < rounds - 1:
            heapq.heappush(waiting, (there, order, j, b, r + 1))
            order += 1
        finished = max(finished, there)
    return finished
