"""Links and the flows on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Link:
    """One direction of a link. rate: bytes/s."""

    __slots__ = ("name", "rate", "flows", "tangled", "pool", "carried")

    def __init__(self, name: str, rate: float):
        self.name, self.rate = name, rate
        self.flows: dict[Flow, None] = {}
        self.tangled = 0  # how many of its flows share another link, too
        self.pool: Any = None  # the Pool that it is the root of
        self.carried = 0.0  # bytes so far, without those of flows under way since `Flow.counted`

    def __repr__(self) -> str:
        return f"Link({self.name!r}, {self.rate:g})"


class Flow:
    """Bytes on their way along `path`.

    on_served: called when all of them have passed; returns how many more there are, 0 for none.
    limit: a rate of its own that it never exceeds [bytes/s].
    """

    __slots__ = ("path", "on_served", "limit", "active", "shared", "total", "counted",
                 "pool", "share", "finish", "group", "left", "rate", "since")  # fmt: skip

    def __init__(self, path: tuple[Link, ...], on_served: Callable[[], float], limit: float = float("inf")):
        self.path, self.on_served, self.limit = path, on_served, limit
        self.active = False
        self.shared = 0  # how many of its links it shares
        self.total = 0.0  # bytes asked for since it started
        self.counted = 0.0  # bytes of them that are in its links' `carried`
        self.pool: Any = None  # the Pool that it is in; then `share` and `finish` are the pool's
        self.share = None
        self.finish = 0.0
        self.group: Group | None = None  # otherwise
        self.left = self.rate = self.since = 0.0


class Group:
    """Flows whose rates were computed together."""

    __slots__ = ("flows", "alive")

    def __init__(self, flows: list[Flow]):
        self.flows, self.alive = flows, True


def connected(seed: Flow) -> list[Flow]:
    """The flow and all that it is connected to by shared links."""
    found = {seed: None}
    stack = [seed]
    seen: set[Link] = set()
    while stack:
        for link in stack.pop().path:
            if link in seen or len(link.flows) < 2:
                continue
            seen.add(link)
            for other in link.flows:
                if other not in found:
                    found[other] = None
                    stack.append(other)
    return list(found)
