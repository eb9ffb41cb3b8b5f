"""The coordinator's books: which steps are complete, how often each was begun, what a loss cost.

A step is complete when every stage of one epoch has applied its update. Each step is recorded once for
each time that it is completed; a step done again after a rollback has a higher attempt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from runners.elastic.protocol import Note
from runners.state import StateId
from testbed.runtime import Node


@dataclass
class Recovery:
    """A loss (or a join) until training is back where it was.

    step: the step under way then; restored: when every stage had its state again.
    """

    kind: str
    peer: str
    detected: float
    start: float
    step: int
    lost_steps: int = 0
    restored: float | None = None


class Ledger:
    """Books of one training job.

    committed: optimizer updates that every stage has applied, in the present history.
    """

    def __init__(self, node: Node, samples: int):
        self._node, self._samples = node, samples
        self._notes: dict[StateId, dict[int, Note]] = {}
        self._begun: Counter[int] = Counter()
        self._recorded: set[int] = set()
        self._open: list[Recovery] = []
        self._at_rest = False
        self._first = 0  # version that the present epoch started from
        self.committed = 0
        self.epoch = 0
        self.devices: tuple[str, ...] = ()

    def restart(self, state: StateId, epoch: int, devices: tuple[str, ...]) -> None:
        """A new epoch starts from `state`."""
        self._settle(state)
        if self.epoch:
            self._begun.update(range(self._first, self.committed + (0 if self._at_rest else 1)))
        self._at_rest = False
        for recovery in self._open:
            recovery.lost_steps = max(recovery.lost_steps, recovery.step - state.version)
            recovery.restored = None
        self._first = self.committed = state.version
        self.epoch, self.devices = epoch, devices
        self._notes = {}

    def usable(self, state: StateId) -> bool:
        """Whether the losses of all steps before `state` are known, so that the record has no gap."""
        return all(
            step in self._recorded or self._loss(StateId(step + 1, state.epoch)) is not None
            for step in range(state.version)
        )

    def note(self, note: Note) -> None:
        """A stage has finished a step. Records the step when it was the last stage to."""
        self._notes.setdefault(StateId(note["step"] + 1, note["epoch"]), {})[note["stage"]] = note
        while len(self._notes.get(StateId(self.committed + 1, self.epoch), ())) == len(self.devices) > 0:
            self.committed += 1
            self._record(StateId(self.committed, self.epoch))
            self._close()

    def ready(self) -> None:
        """Every stage has its state."""
        for recovery in self._open:
            recovery.restored = self._node.now()
        self._close()

    def paused_for(self, peer: str) -> None:
        """Training rests between two steps so that `peer` can join."""
        self._at_rest = True
        self.lost("join", peer, self._node.now(), 0.0)

    def lost(self, kind: str, peer: str, at_s: float, detection_s: float) -> None:
        """Open a recovery."""
        self._open.append(Recovery(kind, peer, detection_s, at_s, self.committed))

    def _settle(self, state: StateId) -> None:
        """Record steps that are complete in `state` though not every stage's report came through."""
        for version in range(1, state.version + 1):
            if version - 1 not in self._recorded:
                self.committed = version
                self._record(StateId(version, state.epoch))

    def _loss(self, state: StateId) -> Note | None:
        return next((n for n in self._notes.get(state, {}).values() if "loss" in n), None)

    def _record(self, state: StateId) -> None:
        step, notes = state.version - 1, self._notes[state]
        first = notes.get(0) or min(notes.values(), key=lambda n: n["began"])
        self._node.record(
            "step", step=step, loss=(self._loss(state) or {})["loss"], start=first["began"],
            end=max(n["ended"] for n in notes.values()), samples=self._samples, attempt=self._begun[step] + 1,
            devices=len(self.devices),
        )  # fmt: skip
        self._recorded.add(step)
        self._notes = {s: n for s, n in self._notes.items() if s.version >= state.version}

    def _close(self) -> None:
        now = self._node.now()
        for recovery in [r for r in self._open if r.restored is not None and self.committed >= r.step]:
            self._open.remove(recovery)
            self._node.record(
                "recovery", kind=recovery.kind, peer=recovery.peer, detected=recovery.detected,
                start=recovery.start, end=now, restored=recovery.restored, step=recovery.step,
                lost_steps=recovery.lost_steps,
            )  # fmt: skip
