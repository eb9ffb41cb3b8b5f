"""One member's steps: reduce with the others, wait for the commit, update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import torch

from runners.collectives import Gap
from runners.lockstep import protocol as p
from runners.messaging import Outbox
from runners.pipeline.executor import update
from runners.pipeline.memory import Memory
from runners.pipeline.protocol import DONE, STUCK, Epoch
from runners.state import StateId
from testbed.runtime import Node, PeerLost


class LockstepExecutor:
    """Steps of `memory.stage`, which has `update_flops`, `update(StateId)`, `state` and `pack()`.

    Args:
        outbox: to the other members; sends run beside compute.
        report: posts a report to the coordinator (kind, **fields).
    """

    keeps = False  # whether a member keeps its part of the last checkpoint, for a rollback

    def __init__(
        self, node: Node, epoch: Epoch, here: int, memory: Memory, outbox: Outbox, report: Callable[..., None]
    ):
        self.node, self.epoch, self.here = node, epoch, here
        self.memory, self.outbox, self.report = memory, outbox, report
        self._commit: asyncio.Future | None = None
        self._at_rest = asyncio.Event()  # clear while the update runs, which must not be cut short
        self._at_rest.set()

    async def reduce(self, step: int) -> Any:
        """Forward and backward passes and all-reduces; the batch's mean loss as a scalar tensor."""
        raise NotImplementedError

    def uploads(self) -> set[int]:
        """The units of state that this member uploads for a checkpoint."""
        raise NotImplementedError

    def committed(self, step: int, checkpoint: bool) -> None:
        """The server says that everyone can apply the step."""
        if self._commit is not None and not self._commit.done():
            self._at_rest.clear()  # from this moment on: HALT may be the next message
            self._commit.set_result(checkpoint)

    async def settled(self) -> None:
        """Returns when no update is under way."""
        await self._at_rest.wait()

    async def step(self, step: int) -> dict[int, torch.Tensor] | None:
        """One optimizer step; a copy of this member's units of the state that it made, if they go to the server.

        Raises:
            PeerLost: a member is gone, or messages of it are.
        """
        node, epoch = self.node, self.epoch
        began = node.now()
        self._commit = asyncio.get_running_loop().create_future()
        try:
            loss = await self.reduce(step)
        except Gap as gap:
            self.report(STUCK, epoch=epoch.number, peer=gap.peer, what=gap.tag, missing=gap.missing)
            raise PeerLost(gap.peer, str(gap)) from None
        self.report(p.REDUCED, epoch=epoch.number, step=step)
        mark = await self._commit
        try:
            copy = await self._update(StateId(step + 1, epoch.number), mark)
        finally:
            self._at_rest.set()
        note = {"step": step, "epoch": epoch.number, "stage": self.here, "began": began, "ended": node.now()}
        note["loss"] = None if loss.is_meta else float(loss)
        self.memory.notes[self.memory.stage.state] = note
        self.report(DONE, **note)
        return copy

    async def _update(self, result: StateId, mark: bool) -> dict[int, torch.Tensor] | None:
        copy = await update(self.node, self.memory, result, mark)
        if copy is not None:
            self.epoch.uploading = result
            if self.keeps:
                self.memory.store.put(result, copy)
        self.memory.forget({self.epoch.complete, self.epoch.uploading})
        if copy is None:
            return None
        wanted = self.uploads()
        return {unit: flat for unit, flat in copy.items() if unit in wanted}
