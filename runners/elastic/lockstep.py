"""One member's steps: reduce with the others, wait for the commit, update."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

import torch

from runners.collectives import Gap
from runners.elastic import protocol as p
from runners.elastic.strategy import Member, Steps
from runners.state import StateId
from testbed.runtime import PeerLost


class LockstepSteps(Steps):
    """Steps that every member applies, or none (see the coordinator)."""

    keeps = False  # whether a member keeps its part of the last checkpoint, for a rollback

    def __init__(self, member: Member):
        super().__init__(member)
        self._commit: asyncio.Future[bool] | None = None
        self._at_rest = asyncio.Event()  # clear while the update runs, which must not be cut short
        self._at_rest.set()

    @abstractmethod
    async def reduce(self, step: int) -> torch.Tensor:
        """Forward and backward passes and all-reduces; the batch's mean loss as a scalar tensor.

        Raises:
            PeerLost: a member is gone.
            runners.collectives.Gap: a message is missing.
        """

    @abstractmethod
    def uploads(self) -> set[int]:
        """The units of state that this member uploads for a checkpoint; each is some member's."""

    def committed(self, step: int, checkpoint: bool) -> None:
        if self._commit is not None and not self._commit.done():
            self._at_rest.clear()  # from this moment on: HALT may be the next message
            self._commit.set_result(checkpoint)

    async def settled(self) -> None:
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
            self.report(p.STUCK, epoch=epoch.number, peer=gap.peer, what=gap.tag, missing=gap.missing)
            raise PeerLost(gap.peer, str(gap)) from None
        self.report(p.REDUCED, epoch=epoch.number, step=step)
        mark = await self._commit
        try:
            copy = await self._update(StateId(step + 1, epoch.number), mark)
        finally:
            self._at_rest.set()
        note: p.Note = {"step": step, "epoch": epoch.number, "stage": self.here, "began": began, "ended": node.now()}
        note["loss"] = None if loss.is_meta else float(loss)
        self.memory.notes[StateId(step + 1, epoch.number)] = note
        self.report(p.DONE, **note)
        return copy

    async def _update(self, result: StateId, mark: bool) -> dict[int, torch.Tensor] | None:
        copy = await self.memory.update(self.node, result, mark)
        if copy is not None:
            self.epoch.uploading = result
            if self.keeps:
                self.memory.store.put(result, copy)
        self.memory.forget({self.epoch.complete, self.epoch.uploading})
        if copy is None:
            return None
        wanted = self.uploads()
        return {unit: flat for unit, flat in copy.items() if unit in wanted}
