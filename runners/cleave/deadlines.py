"""Whose result is overdue: the tasks under way by the moment at which they count as such."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping

from runners.cleave.job import Task
from testbed.runtime import Node


class Deadlines:
    """Args:
    under_way: tasks by id; what is not in it any more is forgotten.
    overdue: called with each task whose deadline has passed; may `add` it again, with a later one.
    """

    def __init__(self, node: Node, under_way: Mapping[int, Task], overdue: Callable[[Task], None]):
        self._node, self._under_way, self._overdue = node, under_way, overdue
        self._heap: list[tuple[float, int]] = []
        self._more = asyncio.Event()

    def add(self, task: Task) -> None:
        if not self._heap:
            self._more.set()
        heapq.heappush(self._heap, (task.deadline_s, task.id))

    async def watch(self) -> None:
        """Until cancelled."""
        heap, under_way = self._heap, self._under_way
        while True:
            while heap and heap[0][1] not in under_way:
                heapq.heappop(heap)
            if not heap:
                self._more.clear()
                await self._more.wait()
                continue
            left = heap[0][0] - self._node.now()
            if left > 0:
                await self._node.sleep(left)
                continue
            self._overdue(under_way[heapq.heappop(heap)[1]])
