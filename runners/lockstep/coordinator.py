"""The server's part of training in lockstep: the pipeline's epochs, with a commit before each update.

No member applies a step before the server has heard that every member can (as torchft's `should_commit`). Members
that remain after a loss are then all at the same version, where the pipeline's stages may differ by one; it costs
a step one round trip between server and members.
"""

from __future__ import annotations

from typing import Any

from runners.lockstep import protocol as p
from runners.pipeline.coordinator import Coordinator
from runners.state import StateId
from testbed.runtime import Message, Node, Plan


class LockstepCoordinator(Coordinator):
    """Subclasses say in `_prepare` what the units of state are, and who takes what."""

    def __init__(self, node: Node, plan: Plan):
        super().__init__(node, plan)
        self._reduced: set[str] = set()
        self._marked: StateId | None = None  # the state of which members were told to upload a copy

    def _start(self, assignment) -> None:
        self._reduced, self._marked = set(), None
        super()._start(assignment)

    async def _on_other(self, name: str, meta: dict[str, Any]) -> None:
        if meta["kind"] != p.REDUCED or meta["step"] != self.ledger.committed:
            return
        self._reduced.add(name)
        if len(self._reduced) == len(self.assignment.devices):
            self._reduced = set()
            version = meta["step"] + 1
            mark = self._checkpoint_due(version)
            if mark:
                self._marked = StateId(version, self.epoch)
            for member in self.assignment.devices:
                self._control(member, p.COMMIT, epoch=self.epoch, step=meta["step"], checkpoint=mark)

    async def _on_chunk(self, message: Message) -> None:
        await super()._on_chunk(message)
        if self._marked is not None and self.checkpoints.complete >= self._marked:
            self._marked = None

    def _checkpoint_due(self, version: int) -> bool:
        every = self.options.checkpoint_every
        due = every and version % every == 0 and version < self.steps
        return bool(due and self._marked is None and self.uploading is None)
