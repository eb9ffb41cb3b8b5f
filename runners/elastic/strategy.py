"""The contract between the elastic core and a strategy.

The core (coordinator at the server, a worker on each device) knows epochs, membership, checkpoints, rollbacks and the
moving of state. A strategy knows the model: what the units of state are, who holds which, and what a step is.
Units are numbered from 0 on; a unit's state is one flat float32 tensor, never empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from runners.elastic.memory import Memory, Part
from runners.elastic.protocol import Epoch, reduce_tag
from runners.messaging import Outbox
from testbed.cluster import Cluster
from testbed.runtime import ANY, Node, Plan


class Options(Protocol):
    """What the core asks of a strategy's options."""

    @property
    def recovery(self) -> str:
        """When a member is lost: 'replan' over those who remain, or 'wait' until it is back."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints at the server; 0: none."""

    @property
    def local_copies(self) -> bool:
        """Whether devices keep copies of states, so that a rollback moves only what was lost."""


class Assignment(Protocol):
    """Who does what in an epoch."""

    @property
    def step_time_s(self) -> float:
        """Predicted."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The members, in order."""

    @property
    def spans(self) -> Sequence[tuple[Any, ...]]:
        """(device, what it does …) of each member, in order; JSON-like, as the members get it (`Epoch.stages`)."""

    @property
    def layers_by_device(self) -> Mapping[str, Sequence[int]]:
        """The units of state that each member holds."""


class UnitCost(Protocol):
    """What a unit of state weighs."""

    @property
    def state_bytes(self) -> int:
        """Of its flat tensor."""


class Planner(Protocol):
    """Makes assignments over any subset of the devices. `layers`: the units' costs, by number."""

    @property
    def layers(self) -> Sequence[UnitCost]: ...

    def candidates(self, cluster: Cluster, current: Sequence[tuple[Any, ...]] = ()) -> Sequence[Assignment]:
        """Assignments worth weighing over the cluster's devices; none when they can't hold the model.

        current: the spans up to now; some of their devices may be gone.
        """


@dataclass
class Member:
    """A device's place in an epoch: all that its steps need.

    here: its position among `epoch.stages`; outbox: to the other members, sends run beside compute;
    report: posts a report to the coordinator (kind, **fields).
    """

    node: Node
    plan: Plan
    epoch: Epoch
    here: int
    memory: Memory
    outbox: Outbox
    report: Callable[..., None]

    @property
    def names(self) -> list[str]:
        """The members of the epoch, in order."""
        return [stage[0] for stage in self.epoch.stages]


class Steps(ABC):
    """A member's steps, for the length of an epoch."""

    def __init__(self, member: Member):
        self.member, self.node, self.epoch, self.here = member, member.node, member.epoch, member.here
        self.memory, self.outbox, self.report = member.memory, member.outbox, member.report

    @abstractmethod
    async def step(self, step: int) -> dict[int, torch.Tensor] | None:
        """One optimizer step, of which it reports DONE; a copy of the units that this member uploads, if any.

        Raises:
            PeerLost: a member is gone, or messages of it are. The coordinator has the last word on what follows.
        """

    def committed(self, step: int, checkpoint: bool) -> None:  # noqa: B027
        """The server says that every member can apply the step (lockstep alone)."""

    async def settled(self) -> None:  # noqa: B027
        """Returns when nothing is under way that HALT must not cut short."""


class Strategy(ABC):
    """What a way of training fills in. One is made for each life of a node, at the server and on the devices.

    Attributes:
        options: of the experiment, see `Options`.
        units: how many units of state there are.
        planner, first_choice: for the server; `first_choice` is the assignment that was made before the start.
    """

    options: Options
    units: int
    planner: Planner
    first_choice: Assignment

    @abstractmethod
    def __init__(self, plan: Plan):
        """Read the plan."""

    @abstractmethod
    def build(self, member: Member, states: Mapping[int, torch.Tensor]) -> Part:
        """This member's part of the model in the state `member.epoch.state`. Runs inside `Node.compute`.

        states: unit -> flat state; a unit that is absent starts from the seed.
        """

    @abstractmethod
    def steps(self, member: Member) -> Steps:
        """How this member trains the part in `member.memory.stage`."""

    def tags(self, epoch: Epoch, here: int) -> Sequence[tuple[str | None, str]]:
        """(source or ANY, tag) of messages to member `here`, which are dropped when they come after the epoch's end."""
        return [(ANY, reduce_tag(epoch.number, 0))]

    def about(self, assignment: Any, version: int) -> dict[str, Any]:
        """Further fields of the `plan` event; `note` is a sentence for people."""
        return {"note": f"from step {version}: {', '.join(assignment.devices)}"}
