"""The server's side of one life of a device: messages in order, and what is known of the device."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from runners.cleave.affine.protocol import TO_DEVICE
from testbed.runtime import Node, PeerLost


class Lane:
    """Sends in the background, in order; what is queued is dropped with it.

    groups: whose weights of this step are there, or on their way. room_bytes: of memory that is not spoken for.
    speed: how much it does compared with others, in any unit.
    """

    def __init__(self, node: Node, name: str, generation: int, memory_bytes: float, speed: float,
                 ended: Callable):  # fmt: skip
        self.name, self.generation, self.memory_bytes, self.speed = name, generation, memory_bytes, speed
        self.groups: set[int] = set()
        self.room_bytes = memory_bytes
        self.down_bytes = self.up_bytes = 0
        self._node = node
        self._queue: deque[tuple[Sequence[torch.Tensor], dict[str, Any]]] = deque()
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._drain())
        self._task.add_done_callback(ended)

    def post(self, kind: str, tensors: Sequence[torch.Tensor] = (), **meta: Any) -> None:
        """Queue a message; returns at once."""
        self._queue.append((tensors, {"k": kind, **meta}))
        self._more.set()

    async def _drain(self) -> None:
        queue = self._queue
        while True:
            while queue:
                tensors, meta = queue.popleft()
                self.down_bytes += sum(t.nbytes for t in tensors)
                try:
                    await self._node.send(self.name, TO_DEVICE, tensors, **meta)
                except PeerLost:
                    return  # the membership tells, and its work is given to others then
            self._more.clear()
            await self._more.wait()

    def begin_step(self) -> None:
        self.groups.clear()
        self.room_bytes = self.memory_bytes
        self.down_bytes = self.up_bytes = 0

    def close(self) -> None:
        self._task.cancel()
        self._queue.clear()
