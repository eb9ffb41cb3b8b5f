"""The books on losses and joins: `recovery` events, in the form in which the pipeline's are (docs/events.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from runners.cleave.job import Task
from testbed.runtime import MembershipEvent, Node


@dataclass
class _Loss:
    event: MembershipEvent
    step: int
    waited: bool
    tasks: list[Task] = field(default_factory=list)


class Recoveries:
    """From a loss to the moment at which the blocks that it took are done; from a join to the first result."""

    def __init__(self, node: Node):
        self._node = node
        self._losses: list[_Loss] = []
        self._joins: dict[str, tuple[MembershipEvent, int]] = {}
        self.nobody = False  # no device is there

    def lost(self, event: MembershipEvent, step: int, tasks: list[Task], *, waits: bool) -> None:
        """A device is gone with those tasks. waits: there is no one else."""
        self._joins.pop(event.name, None)
        self._losses.append(_Loss(event, step, waits, tasks))
        self.settle()

    def joined(self, event: MembershipEvent, step: int) -> None:
        self._joins[event.name] = event, step

    def heard(self, name: str) -> None:
        """A result came from that device."""
        if name in self._joins:
            event, step = self._joins.pop(name)
            self._record("join", event, step)

    def settle(self) -> None:
        """Record the losses whose blocks are all done. Cheap when there is none."""
        if self.nobody or not self._losses:
            return
        for loss in [loss for loss in self._losses if all(task.satisfied for task in loss.tasks)]:
            self._losses.remove(loss)
            self._record("wait" if loss.waited else "replan", loss.event, loss.step)

    def _record(self, kind: str, event: MembershipEvent, step: int) -> None:
        now = self._node.now()
        self._node.record(
            "recovery", kind=kind, peer=event.name, detected=event.detection_s, start=event.at_s, end=now,
            restored=now, step=step, lost_steps=0,
        )  # fmt: skip
