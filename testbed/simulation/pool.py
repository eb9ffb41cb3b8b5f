"""The flows of one shared link that share no other link: their fair rates, at O(log n) an arrival or departure.

Each flow has a limit of its own (the slowest of the links that it has for itself). The max-min fair allocation has one
level: flows whose limit is below it run at their limit, all others at the level. Flows of equal limit form a class,
and a class is either limited or levelled as a whole. Service is kept in virtual work, as in generalized processor
sharing (Parekh and Gallager 1993): all levelled flows get the same, so one clock, V, serves them all and a flow is
done when its clock reaches the value that was set on arrival. A change of the level changes no flow's entry.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.simulation.fluid import Flow, Link

_ROUNDING = 1e-9  # relative
_DUE_S, _DUE_BYTES = 1e-9, 1e-3  # closer than this to its end, a flow is done


class _Class:
    """Flows of one limit. served(t) = v0 + limit (t - t0) while limited, V(t) - offset while levelled."""

    __slots__ = ("limit", "count", "heap", "limited", "v0", "t0", "offset", "stamp")

    def __init__(self, limit: float, offset: float):
        self.limit, self.offset = limit, offset
        self.count = 0
        self.heap: list[tuple[float, int, Flow]] = []
        self.limited = False
        self.v0 = self.t0 = 0.0
        self.stamp = 0


class Pool:
    """Flows through `link`. Call `rebalance` after changes, at the same time; nothing changes in between."""

    def __init__(self, link: Link, now_s: float):
        self.link = link
        self.version = 0  # of the announced next end
        self._classes: dict[float, _Class] = {}
        self._order = itertools.count()
        self._v, self._t, self._level = 0.0, now_s, 0.0
        self._limited_sum, self._limited, self._levelled = 0.0, 0, 0
        self._lowest: list[tuple[float, int, _Class]] = []  # levelled classes by limit
        self._highest: list[tuple[float, int, _Class]] = []  # limited classes by falling limit
        self._limited_ends: list[tuple[float, int, int, _Class]] = []  # time, …, stamp
        self._levelled_ends: list[tuple[float, int, int, _Class]] = []  # V, …, stamp

    # -- flows -------------------------------------------------------------------------

    def add(self, flow: Flow, nbytes: float, limit: float, now_s: float) -> None:
        self._advance(now_s)
        c = self._classes.get(limit)
        if c is None:
            c = self._classes[limit] = _Class(limit, self._v)
            heapq.heappush(self._lowest, (limit, next(self._order), c))
        c.count += 1
        if c.limited:
            self._limit_sum(1, limit)
        else:
            self._levelled += 1
        flow.share = c
        self._queue(flow, c, self._served(c) + nbytes)

    def remove(self, flow: Flow, now_s: float) -> float:
        """The bytes that it still had to go."""
        self._advance(now_s)
        c = flow.share
        left = max(0.0, flow.finish - self._served(c))
        flow.share = None
        self._leave(c)
        if c.count and c.heap[0][2] is flow:
            self._announce(c)
        return left

    def left(self, flow: Flow, now_s: float) -> float:
        """The bytes that it still has to go."""
        self._advance(now_s)
        return max(0.0, flow.finish - self._served(flow.share))

    def limit(self, flow: Flow) -> float:
        return flow.share.limit

    def rate(self, flow: Flow) -> float:
        """Its rate since the last `rebalance`."""
        return flow.share.limit if flow.share.limited else self._level

    def take_due(self, now_s: float) -> list[Flow]:
        """The flows that are done now. Each must be `extended` or dropped by `done`."""
        self._advance(now_s)
        due: list[Flow] = []
        classes: list[_Class] = []
        while (top := self._top(self._limited_ends)) and top[0] <= now_s + _DUE_S:
            classes.append(heapq.heappop(self._limited_ends)[3])
        reach = self._v + _DUE_BYTES + self._level * _DUE_S
        while (top := self._top(self._levelled_ends)) and top[0] <= reach:
            classes.append(heapq.heappop(self._levelled_ends)[3])
        for c in classes:
            reach = self._served(c) + _DUE_BYTES + (c.limit if c.limited else self._level) * _DUE_S
            while c.heap and (self._stale(c.heap[0], c) or c.heap[0][0] <= reach):
                entry = heapq.heappop(c.heap)
                if not self._stale(entry, c):
                    due.append(entry[2])
            self._announce(c)
        return due

    def extend(self, flow: Flow, nbytes: float) -> None:
        """A flow that was due goes on with more bytes."""
        self._queue(flow, flow.share, flow.finish + nbytes)

    def done(self, flow: Flow) -> None:
        """A flow that was due leaves."""
        c, flow.share = flow.share, None
        self._leave(c)

    def flows(self) -> list[Flow]:
        return [e[2] for c in self._classes.values() for e in c.heap if not self._stale(e, c)]

    # -- the level ---------------------------------------------------------------------

    def rebalance(self, now_s: float) -> float | None:
        """Find the level anew; the time at which the next flow is done, if none comes or goes before."""
        self._advance(now_s)
        capacity = self.link.rate
        while True:
            if self._levelled:
                level = (capacity - self._limited_sum) / self._levelled
            else:
                level = float("inf") if self._limited_sum <= capacity * (1 + _ROUNDING) else -1.0
            highest = self._current(self._highest, limited=True)
            if highest is not None and highest.limit > level * (1 + _ROUNDING) + 1e-12:
                self._level_class(highest, now_s)
                continue
            lowest = self._current(self._lowest, limited=False)
            if lowest is not None and lowest.limit <= level:
                self._limit_class(lowest, now_s)
                continue
            break
        self._level = level if self._levelled else 0.0
        self.version += 1
        ends = []
        if top := self._top(self._limited_ends):
            ends.append(top[0])
        if (top := self._top(self._levelled_ends)) and self._level > 0:
            ends.append(now_s + (top[0] - self._v) / self._level)
        end = min(ends, default=float("inf"))
        return max(now_s, end) if end < float("inf") else None

    # -- inside ------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        if now_s > self._t:
            self._v += self._level * (now_s - self._t)
            self._t = now_s

    def _limit_sum(self, count: int, limit: float) -> None:
        self._limited += count
        self._limited_sum = self._limited_sum + count * limit if self._limited else 0.0  # 0: drops what rounding left

    def _served(self, c: _Class) -> float:
        return c.v0 + c.limit * (self._t - c.t0) if c.limited else self._v - c.offset

    def _stale(self, entry: tuple[float, int, Flow], c: _Class) -> bool:
        flow = entry[2]
        return flow.share is not c or flow.finish != entry[0]

    def _queue(self, flow: Flow, c: _Class, finish: float) -> None:
        flow.finish = finish
        heapq.heappush(c.heap, (finish, next(self._order), flow))
        if c.heap[0][2] is flow:
            self._announce(c)

    def _leave(self, c: _Class) -> None:
        c.count -= 1
        if c.limited:
            self._limit_sum(-1, c.limit)
        else:
            self._levelled -= 1
        if not c.count:
            del self._classes[c.limit]
            c.stamp = -1

    def _announce(self, c: _Class) -> None:
        """Its first flow to end is another one, or its service runs otherwise."""
        while c.heap and self._stale(c.heap[0], c):
            heapq.heappop(c.heap)
        if c.stamp < 0:
            return
        c.stamp += 1
        if not c.heap:
            return
        first = c.heap[0][0]
        if c.limited:
            at = c.t0 + (first - c.v0) / c.limit if c.limit > 0 else float("inf")
            heapq.heappush(self._limited_ends, (at, next(self._order), c.stamp, c))
        else:
            heapq.heappush(self._levelled_ends, (first + c.offset, next(self._order), c.stamp, c))

    @staticmethod
    def _top(ends: list[tuple[float, int, int, _Class]]) -> tuple[float, int, int, _Class] | None:
        while ends and ends[0][2] != ends[0][3].stamp:
            heapq.heappop(ends)
        return ends[0] if ends else None

    @staticmethod
    def _current(heap: list[tuple[float, int, _Class]], *, limited: bool) -> _Class | None:
        while heap and (heap[0][2].limited is not limited or heap[0][2].stamp < 0):
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _limit_class(self, c: _Class, now_s: float) -> None:
        c.v0, c.t0 = self._served(c), now_s
        c.limited = True
        self._levelled -= c.count
        self._limit_sum(c.count, c.limit)
        heapq.heappush(self._highest, (-c.limit, next(self._order), c))
        self._announce(c)

    def _level_class(self, c: _Class, now_s: float) -> None:
        c.offset = self._v - self._served(c)
        c.limited = False
        self._levelled += c.count
        self._limit_sum(-c.count, c.limit)
        heapq.heappush(self._lowest, (c.limit, next(self._order), c))
        self._announce(c)
