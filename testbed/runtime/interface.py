"""The runtime interface: a runner is a plan and two coroutines, executed as they are by either engine.

Rules for runner code, which make one text run on real processes and in virtual time:

* asyncio is the concurrency (tasks, gather, queues, events); no threads, no blocking calls, no wall clock.
* time passes only through `Node.now`, `Node.sleep`, `Node.compute` and messages; in emulated seconds.
* tensor work happens inside `Node.compute`, so that it is paced (emulation) or priced (simulation).
* who is alive is known only from `Node.membership`, the failure detector's view: never an oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from testbed.cluster import Cluster, Device, ModelSpec, TrainingSpec

ANY = None  # as a `source`: from whichever peer


class PeerLost(Exception):
    """The failure detector has given up on a peer (or on this node's own lease, when peer is this node)."""

    def __init__(self, peer: str, reason: str = "lost"):
        super().__init__(f"{peer}: {reason}")
        self.peer = peer
        self.reason = reason


@dataclass(slots=True)
class Message:
    """A message as received. Tensors arrive in the order sent, with their dtypes and shapes.

    bytes: size on the wire at the message layer (headers and tensor data).
    sent_s, received_s: emulated times at which sending began and the last byte arrived.
    """

    source: str
    tag: str
    tensors: list[torch.Tensor]
    meta: dict[str, Any]
    generation: int  # the sender's
    bytes: int = 0
    sent_s: float = 0.0
    received_s: float = 0.0


@dataclass(frozen=True)
class MembershipEvent:
    """A change in the failure detector's view.

    kind: 'joined' or 'left'. generation: grows by one each time that a device joins.
    at_s: when the detector decided; detection_s: how long after the last sign of life (for 'left').
    """

    kind: str
    name: str
    generation: int
    at_s: float
    detection_s: float = 0.0


class Membership(Protocol):
    """The failure detector's view at this node. On devices it follows the server's, a link delay behind."""

    @property
    def alive(self) -> Mapping[str, int]:
        """Devices in the view (the server excluded) -> their generation."""

    async def next_event(self) -> MembershipEvent:
        """The next change, in order; each call consumes one. Waits."""


class Node(Protocol):
    """This node's side of the world."""

    name: str
    device: Device
    membership: Membership

    async def send(self, to: str, tag: str, tensors: Sequence[torch.Tensor] = (), **meta: Any) -> None:
        """Hand a message to the transport; waits while the peer's queue is full.

        `meta` is JSON-like (None, bool, int, float, str, lists, dicts). Messages to one peer keep their order.

        Raises:
            PeerLost: `to` is not in this node's view, or left it while the message waited.
        """

    async def recv(self, source: str | None, tag: str) -> Message:
        """The next message of that tag from that source (ANY: from whoever); tag is matched exactly.

        Raises:
            PeerLost: `source` is not in the view (any more) and nothing of that tag from it is waiting.
                The server is in every device's view until the device's own lease runs out.
        """

    async def compute(self, fn: Callable[..., Any], *args: Any, flops: float, label: str = "compute") -> Any:
        """Run `fn(*args)`; takes flops / device.flops emulated seconds in all. One at a time a node."""

    def now(self) -> float:
        """Emulated seconds since the experiment started."""

    async def sleep(self, seconds: float) -> None:
        """Let emulated seconds pass."""

    def record(self, event: str, **fields: Any) -> None:
        """Write an event of this node, stamped with now(). Fields are JSON-like. See docs/events.md."""


@dataclass
class Plan:
    """What a runner decided before the start. `data` is JSON-like and goes to every node (and to plan.json).

    predicted: the planner's own estimates, e.g. {'step_time_s': 1.2}.
    notes: sentences for people.
    """

    runner: str
    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    data: dict[str, Any] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Runner(Protocol):
    """A training strategy. Engines get it by its entry point (group `testbed.runners`), called without arguments."""

    correctness: str  # 'E0' … 'E3', see docs/runners.md

    def plan(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Plan:
        """Decide before the start.

        Raises:
            testbed.errors.InputError: settings or memory that can't work, with key, value, expectation.
        """

    async def coordinate(self, node: Node, plan: Plan) -> None:
        """The server's part. Returns when training is complete; the engine then ends the workers."""

    async def work(self, node: Node, plan: Plan) -> None:
        """A device's part; called anew, with a new node, whenever the device (re)joins.

        The runner object lives as long as the device's process: what it keeps in itself is lost when the device is
        killed, and still there when it was only suspended or cut off.
        """
