"""Messages in the background: ordered queues a peer, and large tensors in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from testbed.cluster import Device
from testbed.runtime import Node, PeerLost

CHUNK_S = 0.1  # how long a chunk may hold up an activation on the way
CHUNK_BYTES = 16 * 2**10, 16 * 2**20  # but no less and no more than this


class Outbox:
    """Sends in the background, so that compute goes on meanwhile. Keeps the order of messages to one peer.

    What is queued for a peer that is lost is dropped: whoever coordinates learns of the loss from the
    membership. When this node's own lease runs out, or a send fails with a bug, `failed` gets the
    exception.
    """

    def __init__(self, node: Node):
        self._node = node
        self._queues: dict[str, asyncio.Queue] = {}
        self._tasks: list[asyncio.Task] = []
        self.failed: asyncio.Future = asyncio.get_running_loop().create_future()

    def post(self, to: str, tag: str, tensors: Sequence[torch.Tensor] = (), **meta: Any) -> None:
        """Queue a message; returns at once. See `Node.send` for the arguments."""
        if to not in self._queues:
            self._queues[to] = asyncio.Queue()
            self._tasks.append(asyncio.create_task(self._drain(to), name=f"outbox to {to}"))
        self._queues[to].put_nowait((tag, tensors, meta))

    async def _drain(self, to: str) -> None:
        while True:
            tag, tensors, meta = await self._queues[to].get()
            try:
                await self._node.send(to, tag, tensors, **meta)
            except PeerLost as lost:
                if lost.peer == self._node.name:
                    self._fail(lost)
                    return
            except Exception as error:
                self._fail(error)
                return

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def close(self) -> None:
        """Stop sending and forget what is queued."""
        await cancel(self._tasks)
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()  # seen
        else:
            self.failed.cancel()


async def cancel(tasks: Iterable[asyncio.Task]) -> None:
    """Cancel tasks and wait until they have ended, however they end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def chunks(flat: torch.Tensor, sender: Device, receiver: Device) -> tuple[torch.Tensor, ...]:
    """A flat tensor in pieces that take about CHUNK_S each on the way; at least one piece."""
    rate_bps = min(sender.link.uplink_bps, receiver.link.downlink_bps)
    nbytes = min(max(CHUNK_S * rate_bps / 8, CHUNK_BYTES[0]), CHUNK_BYTES[1])
    return flat.split(int(nbytes) // flat.element_size())


class Assembly:
    """Collects the chunks of several flat tensors, each known by a key."""

    def __init__(self) -> None:
        self._parts: dict[Any, dict[int, torch.Tensor]] = {}

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forget the chunks of keys that are not wanted any more."""
        self._parts = {key: parts for key, parts in self._parts.items() if wanted(key)}

    def add(self, key: Any, index: int, count: int, part: torch.Tensor) -> torch.Tensor | None:
        """Take a chunk; the whole tensor when this was the last one missing."""
        parts = self._parts.setdefault(key, {})
        parts[index] = part
        if len(parts) < count:
            return None
        del self._parts[key]
        return parts[0] if count == 1 else torch.cat([parts[i] for i in range(count)])
