"""Checkpoints: each stage uploads its layers to the server in the background, a chunk at a time.

A chunk is sent only when the server has acknowledged the one before, and the uplink is then left alone for
as long as that took. So at most one chunk stands between an activation and the uplink, whatever the
transport buffers, and an upload takes at most half of the uplink's time.

All stages copy their state in the same step (a mark travels with the activations), so the copy is a state
that existed (Chandy and Lamport 1985 have the general rule).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import torch

from runners.costs import STATE_BYTES, model_parameters
from runners.messaging import Assembly, cancel, chunks
from runners.state import SEED_STATE, StateId
from testbed.cluster import Cluster, Device, ModelSpec
from testbed.cluster.model import SERVER
from testbed.errors import InputError
from testbed.runtime import Message, Node
from testbed.units import size

CHUNK = "checkpoint"
ACK = "checkpoint-ack"


def check_server_memory(cluster: Cluster, model: ModelSpec) -> None:
    """Raises InputError where the server can't hold the full copy, and the next one on its way."""
    needed = 2 * STATE_BYTES * model_parameters(model)
    if needed > cluster.server.memory_bytes:
        raise InputError(
            f"device {cluster.server.name!r}, memory",
            f"two checkpoints need {needed:,} bytes ({size(needed)}), but it has "
            f"{int(cluster.server.memory_bytes):,} bytes ({size(cluster.server.memory_bytes)})",
            hint="more memory for the server, or training.checkpoint_every: 0",
        )


class Uploader:
    """The device's side. One upload at a time; a new one replaces the old."""

    def __init__(self, node: Node, server: Device):
        self._node, self._server = node, server
        self._task: asyncio.Task[None] | None = None
        self._remaining: set[int] = set()
        self.state: StateId | None = None

    def start(self, state: StateId, layers: Mapping[int, torch.Tensor]) -> asyncio.Task[None]:
        """Begin to send; the task ends when all is there."""
        if self._task is not None:
            self._task.cancel()
        self.state, self._remaining = state, set(layers)
        self._task = asyncio.create_task(self._upload(state, dict(layers), self._node.now()), name="checkpoint")
        return self._task

    async def _upload(self, state: StateId, layers: dict[int, torch.Tensor], began: float) -> None:
        for layer, flat in layers.items():
            parts = chunks(flat, self._node.device, self._server)
            for index, part in enumerate(parts):
                key, start = [*state, layer, index], self._node.now()
                await self._node.send(SERVER, CHUNK, [part], key=key, count=len(parts), began=began)
                while (await self._node.recv(SERVER, ACK)).meta["key"] != key:
                    pass  # of an upload that was given up
                await self._node.sleep(self._node.now() - start)
            self._remaining.discard(layer)

    def remaining(self) -> dict[StateId, set[int]]:
        """Layers that the server does not have for certain, of the upload under way."""
        return {self.state: set(self._remaining)} if self.state is not None and self._remaining else {}

    async def stop(self) -> None:
        if self._task is not None:
            await cancel([self._task])
        self._task, self.state, self._remaining = None, None, set()


class CheckpointStore:
    """The server's side: the last full copy, and the parts of copies under way.

    Args:
        layers: how many a full copy has.
    """

    def __init__(self, layers: int):
        self._all = set(range(layers))
        self._parts: dict[StateId, dict[int, torch.Tensor]] = {}
        self._assembly = Assembly()
        self._began: dict[StateId, float] = {}
        self.complete: StateId = SEED_STATE

    def add(self, message: Message) -> StateId | None:
        """Take a chunk. The state's name when it made the copy full; the one before is forgotten then."""
        version, epoch, layer, index = message.meta["key"]
        state = StateId(version, epoch)
        if state <= self.complete:
            return None
        self._began[state] = min(self._began.get(state, message.meta["began"]), message.meta["began"])
        whole = self._assembly.add((state, layer), index, message.meta["count"], message.tensors[0])
        if whole is None:
            return None
        parts = self._parts.setdefault(state, {})
        parts[layer] = whole
        if parts.keys() < self._all:
            return None
        self.complete = state
        self.keep([state])
        return state

    def began(self, state: StateId) -> float:
        """When the first stage began to send it."""
        return self._began[state]

    def nbytes(self, state: StateId) -> int:
        return sum(t.numel() * t.element_size() for t in self._parts[state].values())

    def layer(self, state: StateId, layer: int) -> torch.Tensor:
        return self._parts[state][layer]

    def holdings(self) -> dict[StateId, set[int]]:
        return {state: set(parts) for state, parts in self._parts.items()}

    def keep(self, states: Iterable[StateId]) -> None:
        """Forget copies under way but these; the full copy stays."""
        states = {*states, self.complete}
        self._parts = {s: p for s, p in self._parts.items() if s in states}
        self._began = {s: t for s, t in self._began.items() if s in states}
        self._assembly.keep(lambda key: key[0] in states)

    def can_finish(self, state: StateId, uploads: Iterable[Mapping[StateId, set[int]]]) -> bool:
        """Whether what is here and what devices still send make a full copy of `state`."""
        found = set(self._parts.get(state, ()))
        for upload in uploads:
            found |= upload.get(state, set())
        return found >= self._all
