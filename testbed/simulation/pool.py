"""The flows of one shared link that share no other link: their fair rates, at O(log n) an arrival or departure.

Each flow has a limit of its own (the slowest of the links that it has for itself). The max-min fair allocation has one
level: flows whose limit is below it run at their limit, all others at the level. Flows of equal limit form a class,
and a class is either limited or levelled as a whole. Service is kept in virtual work, as in generalized processor
sharing (Parekh and Gallager 1993): all levelled flows get the same, so one clock, V, serves them all and a flow is
done when its clock reaches the value that was set on arrival. A change of the level changes no flow's entry.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.simulation.flow import Flow, Link

_NEVER = float("inf")
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
    """Flows through `link`. Call `rebalance` after changes, at the same time; nothing changes in between.

    Attributes:
        end_s: when the next flow is done, if none comes or goes before; as of the last `rebalance`.
        timer_s: for whoever waits for that: the time at which it looks.
    """

    __slots__ = ("link", "end_s", "timer_s", "_classes", "_order", "_v", "_t", "_level", "_limited_sum", "_limited",
                 "_levelled", "_lowest", "_highest", "_limited_ends", "_levelled_ends")  # fmt: skip

    def __init__(self, link: Link, now_s: float):
        self.link = link
        self.end_s = self.timer_s = _NEVER
        self._classes: dict[float, _Class] = {}
        self._order = 0
        self._v, self._t, self._level = 0.0, now_s, 0.0
        self._limited_sum, self._limited, self._levelled = 0.0, 0, 0
        self._lowest: list[tuple[float, int, _Class]] = []  # levelled classes by limit
        self._highest: list[tuple[float, int, _Class]] = []  # limited classes by falling limit
        self._limited_ends: list[tuple[float, int, int, _Class]] = []  # time, …, stamp
        self._levelled_ends: list[tuple[float, int, int, _Class]] = []  # V, …, stamp

    # -- flows -------------------------------------------------------------------------

    def add(self, flow: Flow, nbytes: float, limit: float, now_s: float) -> None:
        if now_s > self._t:
            self._advance(now_s)
        c = self._classes.get(limit)
        if c is None:
            c = self._new_class(limit)
        c.count += 1
        if c.limited:
            self._limited += 1
            self._limited_sum += limit
        else:
            self._levelled += 1
        flow.share = c
        self._queue(flow, c, self._served(c) + nbytes)

    def remove(self, flow: Flow, now_s: float) -> float:
        """The bytes that it still had to go."""
        left = self.left(flow, now_s)
        c = flow.share
        self.done(flow)
        if c.count and c.heap[0][2] is flow:
            self._announce(c)
        return left

    def left(self, flow: Flow, now_s: float) -> float:
        """The bytes that it still has to go."""
        if now_s > self._t:
            self._advance(now_s)
        return max(0.0, flow.finish - self._served(flow.share))

    def limit(self, flow: Flow) -> float:
        return flow.share.limit

    def rate(self, flow: Flow) -> float:
        """Its rate since the last `rebalance`."""
        return flow.share.limit if flow.share.limited else self._level

    def take_due(self, now_s: float) -> list[Flow]:
        """The flows that are done now. Each must be `extended` or dropped by `done`."""
        if now_s > self._t:
            self._advance(now_s)
        classes = _due(self._limited_ends, now_s + _DUE_S)
        if self._levelled:
            classes += _due(self._levelled_ends, self._v + _DUE_BYTES + self._level * _DUE_S)
        due: list[Flow] = []
        for c in classes:
            reach = self._served(c) + _DUE_BYTES + (c.limit if c.limited else self._level) * _DUE_S
            heap = c.heap
            while heap:
                finish, _, flow = heap[0]
                live = flow.share is c and flow.finish == finish
                if live and finish > reach:
                    break
                heappop(heap)
                if live:
                    due.append(flow)
            self._announce(c)
        return due

    def extend(self, flow: Flow, nbytes: float) -> None:
        """A flow that was due goes on with more bytes."""
        self._queue(flow, flow.share, flow.finish + nbytes)

    def done(self, flow: Flow) -> None:
        """A flow that was due leaves."""
        c, flow.share = flow.share, None
        c.count -= 1
        if c.limited:
            self._limited -= 1
            self._limited_sum = self._limited_sum - c.limit if self._limited else 0.0
        else:
            self._levelled -= 1
        if not c.count:
            del self._classes[c.limit]
            c.stamp = -1

    def flows(self) -> list[Flow]:
        return [e[2] for c in self._classes.values() for e in c.heap if not _stale(e, c)]

    # -- the level ---------------------------------------------------------------------

    def rebalance(self, now_s: float) -> None:
        """Find the level anew, and `end_s`."""
        if now_s > self._t:
            self._advance(now_s)
        if self._levelled or self._limited_sum > self.link.rate * (1 + _ROUNDING):
            self._find_level(now_s)
        else:
            self._level = 0.0
        end = _NEVER
        ends = self._limited_ends
        while ends:
            first = ends[0]
            if first[2] == first[3].stamp:
                end = first[0]
                break
            heappop(ends)
        if self._level > 0:
            ends = self._levelled_ends
            while ends:
                first = ends[0]
                if first[2] == first[3].stamp:
                    end = min(end, now_s + (first[0] - self._v) / self._level)
                    break
                heappop(ends)
        self.end_s = end if end > now_s else now_s

    def _find_level(self, now_s: float) -> None:
        capacity = self.link.rate
        while True:
            if self._levelled:
                level = (capacity - self._limited_sum) / self._levelled
            else:
                level = _NEVER if self._limited_sum <= capacity * (1 + _ROUNDING) else -1.0
            highest = _current(self._highest, limited=True)
            if highest is not None and highest.limit > level * (1 + _ROUNDING) + 1e-12:
                self._level_class(highest)
                continue
            lowest = _current(self._lowest, limited=False)
            if lowest is not None and lowest.limit <= level:
                self._limit_class(lowest, now_s)
                continue
            break
        self._level = level if self._levelled else 0.0

    # -- inside ------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        self._v += self._level * (now_s - self._t)
        self._t = now_s

    def _new_class(self, limit: float) -> _Class:
        c = self._classes[limit] = _Class(limit, self._v)
        if not self._levelled and self._limited_sum + limit <= self.link.rate:
            c.limited, c.t0 = True, self._t
            self._push_order(self._highest, -limit, c)
        else:
            self._push_order(self._lowest, limit, c)
        return c

    def _push_order(self, heap: list[tuple[float, int, _Class]], key: float, c: _Class) -> None:
        if len(heap) > 2 * len(self._classes) + 64:  # most are classes that are gone
            limited = heap is self._highest
            heap[:] = [entry for entry in heap if entry[2].stamp >= 0 and entry[2].limited is limited]
            heapify(heap)
        self._order += 1
        heappush(heap, (key, self._order, c))

    def _limit_sum(self, count: int, limit: float) -> None:
        self._limited += count
        self._limited_sum = self._limited_sum + count * limit if self._limited else 0.0  # 0: drops what rounding left

    def _served(self, c: _Class) -> float:
        return c.v0 + c.limit * (self._t - c.t0) if c.limited else self._v - c.offset

    def _queue(self, flow: Flow, c: _Class, finish: float) -> None:
        flow.finish = finish
        self._order += 1
        heappush(c.heap, (finish, self._order, flow))
        if c.heap[0][2] is flow:
            self._announce(c)

    def _announce(self, c: _Class) -> None:
        """Its first flow to end is another one, or its service runs otherwise."""
        if c.stamp < 0:
            return
        c.stamp += 1
        heap = c.heap
        while heap and _stale(heap[0], c):
            heappop(heap)
        if not heap:
            return
        first = heap[0][0]
        self._order += 1
        if c.limited:
            at = c.t0 + (first - c.v0) / c.limit if c.limit > 0 else _NEVER
            heappush(self._limited_ends, (at, self._order, c.stamp, c))
        else:
            heappush(self._levelled_ends, (first + c.offset, self._order, c.stamp, c))

    def _limit_class(self, c: _Class, now_s: float) -> None:
        c.v0, c.t0 = self._served(c), now_s
        c.limited = True
        self._levelled -= c.count
        self._limit_sum(c.count, c.limit)
        self._push_order(self._highest, -c.limit, c)
        self._announce(c)

    def _level_class(self, c: _Class) -> None:
        c.offset = self._v - self._served(c)
        c.limited = False
        self._levelled += c.count
        self._limit_sum(-c.count, c.limit)
        self._push_order(self._lowest, c.limit, c)
        self._announce(c)


def _stale(entry: tuple[float, int, Flow], c: _Class) -> bool:
    flow = entry[2]
    return flow.share is not c or flow.finish != entry[0]


def _due(ends: list[tuple[float, int, int, _Class]], reach: float) -> list[_Class]:
    classes = []
    while ends and ends[0][0] <= reach:
        _, _, stamp, c = heappop(ends)
        if stamp == c.stamp:
            classes.append(c)
    return classes


def _current(heap: list[tuple[float, int, _Class]], *, limited: bool) -> _Class | None:
    while heap and (heap[0][2].limited is not limited or heap[0][2].stamp < 0):
        heappop(heap)
    return heap[0][2] if heap else None
