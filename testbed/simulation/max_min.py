"""Max-min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2)."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence


def water_fill(
    paths: Sequence[Sequence[Hashable]], capacity: dict[Hashable, float], limits: Sequence[float] | None = None
) -> list[float]:
    """The max-min fair rate of each flow.

    All rates rise together; a flow stops at its limit, or with all others of a link when that link is full.

    Args:
        paths: the links that each flow crosses.
        capacity: of each link, in any unit of rate.
        limits: each flow's own limit; default: none.

    Returns:
        Rates in the order of `paths`; infinite for a flow without links or limit.
    """
    limits = [float("inf")] * len(paths) if limits is None else limits
    users: dict[Hashable, list[int]] = {}
    for flow, path in enumerate(paths):
        for link in path:
            users.setdefault(link, []).append(flow)
    left = {link: capacity[link] for link in users}
    waiting = {link: len(flows) for link, flows in users.items()}
    order = {link: i for i, link in enumerate(users)}
    shares = [(left[link] / waiting[link], order[link], link) for link in users]
    heapq.heapify(shares)
    by_limit = sorted(range(len(paths)), key=limits.__getitem__)
    rates: list[float | None] = [None] * len(paths)
    next_limited = 0

    def fix(flow: int, rate: float) -> None:
        rates[flow] = rate
        for link in paths[flow]:
            left[link] = max(0.0, left[link] - rate)
            waiting[link] -= 1

    while next_limited < len(by_limit):
        level, link = float("inf"), None
        while shares:  # a link's share never falls while others are fixed below it: a stale entry is a lower bound
            stale, _, link = shares[0]
            if not waiting[link]:
                heapq.heappop(shares)
                continue
            level = left[link] / waiting[link]
            if level > stale:
                heapq.heapreplace(shares, (level, order[link], link))
                continue
            break
        else:
            level, link = float("inf"), None
        flow = by_limit[next_limited]
        if rates[flow] is not None:
            next_limited += 1
        elif limits[flow] <= level:
            fix(flow, limits[flow])
            next_limited += 1
        elif link is None:
            fix(flow, float("inf"))
        else:
            for other in users[link]:
                if rates[other] is None:
                    fix(other, level)
    return rates
