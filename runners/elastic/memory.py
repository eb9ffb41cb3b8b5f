"""What a device remembers of its part of the model: the live state, and copies that a rollback may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from runners.elastic import protocol as p
from runners.state import StateId, VersionStore
from testbed.runtime import Node, PeerLost


class Part(Protocol):
    """A member's part of the model, in the training state `state`. Plain synchronous PyTorch."""

    state: StateId
    update_flops: float

    def update(self, result: StateId) -> None:
        """Apply the optimizer; the state becomes `result`."""

    def pack(self) -> dict[int, torch.Tensor]:
        """Unit -> flat state, copies."""


class Memory:
    """Outlives a lost lease when the process does.

    stage: the live one, if its state is known. store: copies of states. notes: of the steps that made them.
    """

    def __init__(self) -> None:
        self.stage: Part | None = None
        self.store = VersionStore()
        self.notes: dict[StateId, p.Note] = {}

    def shelve(self) -> None:
        """Turn the live stage into a copy of its state."""
        if self.stage is not None:
            self.store.put(self.stage.state, self.stage.pack())
        self.stage = None

    def forget(self, wanted: Iterable[StateId | None], layers: Iterable[int] | None = None) -> None:
        """Keep only the copies of these states (and of these layers), and the notes that belong to them."""
        self.store.keep(wanted, layers)
        live = self.stage.state if self.stage else None
        self.notes = {s: n for s, n in self.notes.items() if s == live or self.store.has(s)}

    async def update(self, node: Node, result: StateId, mark: bool) -> dict[int, torch.Tensor] | None:
        """Apply the optimizer to the live stage; a copy of the new state if marked. May be cancelled."""
        stage = self.stage
        assert stage is not None
        claim = [stage]  # whoever takes it out, the update or the one who cancels it, has the stage to itself

        def apply() -> dict[int, torch.Tensor] | None:
            claim.pop()
            stage.update(result)
            return stage.pack() if mark else None

        self.stage = None  # an update that is cut short leaves no state to keep
        try:
            copy: dict[int, torch.Tensor] | None = await node.compute(apply, flops=stage.update_flops, label="update")
        except BaseException:
            with suppress(IndexError):
                self.stage = claim.pop()
            raise
        self.stage = stage
        return copy

    def as_meta(self) -> dict[str, Any]:
        """For HELLO and HELD."""
        return {"held": p.holdings_to_wire(self.store.holdings()), "notes": list(self.notes.values())}


class KeptMemory:
    """A runner's memory of its node: outlives a lost lease but not a kill, as the runner object does."""

    def __init__(self) -> None:
        self._of: dict[str, Memory] = {}

    @contextmanager
    def of(self, node: str) -> Iterator[Memory]:
        memory = self._of.pop(node, None) or Memory()
        try:
            yield memory
        except PeerLost:  # the lease ran out, but memory is still there: offer it when the device is back
            self._of[node] = memory
            raise
