"""A device's part of training in lockstep."""

from __future__ import annotations

from typing import Any

from runners.lockstep import protocol as p
from runners.lockstep.executor import LockstepExecutor
from runners.pipeline.protocol import Epoch, state_tag
from runners.pipeline.worker import Worker
from runners.state import HERE, SEED
from testbed.runtime import ANY


class LockstepWorker(Worker):
    """Subclasses build the member's part of the model (`_build`) and its executor (`_make`)."""

    executor: LockstepExecutor | None = None

    def _executor(self, epoch: Epoch, here: int) -> LockstepExecutor:
        self.executor = self._make(epoch, here)
        return self.executor

    def _make(self, epoch: Epoch, here: int) -> LockstepExecutor:
        raise NotImplementedError

    def _lanes(self) -> int:
        """How many collectives run beside each other."""
        raise NotImplementedError

    async def _settle(self) -> None:
        if self.executor is not None:
            await self.executor.settled()

    async def _stop_epoch(self) -> None:
        await super()._stop_epoch()
        self.executor = None

    def _on_other(self, meta: dict[str, Any]) -> None:
        current = self.executor is not None and self.epoch is not None and meta.get("epoch") == self.epoch.number
        if meta["kind"] == p.COMMIT and current:
            self.executor.committed(meta["step"], meta["checkpoint"])

    def _stale(self) -> list[tuple[str | None, str]]:
        if self.epoch is None:
            return []
        givers = sorted({*self.epoch.sources.values()} - {HERE, SEED})
        stale: list[tuple[str | None, str]] = [(giver, state_tag(self.epoch.number)) for giver in givers]
        if self.epoch.position(self.node.name) is not None:
            stale += [(ANY, p.reduce_tag(self.epoch.number, lane)) for lane in range(self._lanes())]
        return stale
