"""Who makes up for a lost device."""

from __future__ import annotations

from collections.abc import Sequence


def choose_helpers(speeds: Sequence[float], ways_s: Sequence[float], flops: float) -> list[int]:
    """Indices of the devices with which a piece of work is done soonest.

    Each computes a share by its speed [FLOP/s] and needs its `ways_s` for sending the result, whatever its share; so
    whoever has a slow uplink may make it later. The best choice is some number of those with the shortest ways.
    """
    order = sorted(range(len(speeds)), key=ways_s.__getitem__)
    best, best_s, speed = order[:1], float("inf"), 0.0
    for k, i in enumerate(order):
        speed += speeds[i]
        seconds = flops / speed + ways_s[i]
        if seconds < best_s:
            best, best_s = order[: k + 1], seconds
    return best
