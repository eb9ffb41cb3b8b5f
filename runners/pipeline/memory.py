"""What a device remembers of its stage: the live state, and copies that a rollback may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from runners.pipeline import protocol as p
from runners.pipeline.stage import Stage
from runners.state import StateId, VersionStore
from testbed.runtime import PeerLost


class Memory:
    """Outlives a lost lease when the process does.

    stage: the live one, if its state is known. store: copies of states. notes: of the steps that made them.
    """

    def __init__(self) -> None:
        self.stage: Stage | None = None
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
