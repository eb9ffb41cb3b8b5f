"""The server's part: forms epochs, keeps the books and the checkpoints.

An epoch is a spell of training with fixed members. When one is lost, the coordinator halts
everyone, hears what each holds, picks the newest state of which every layer still exists, decides who
takes which layers, and starts the next epoch from there. One queue feeds one loop, so every decision sees
a consistent picture.

In lockstep no member applies a step before the server has heard that every member can (as torchft's `should_commit`).
Members that remain after a loss are then all at the same version, where a pipeline's stages may differ by one; it
costs a step one round trip between server and members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from runners.elastic import protocol as p
from runners.elastic.checkpoint import ACK, CHUNK, CheckpointStore
from runners.elastic.ledger import Ledger
from runners.elastic.replanning import Replanner
from runners.elastic.strategy import Assignment, Strategy
from runners.inbox import Inbox
from runners.messaging import Outbox, cancel, chunks
from runners.state import Holdings, StateId, moved_bytes, restorable, transfers
from testbed.cluster.model import SERVER
from testbed.runtime import ANY, MembershipEvent, Message, Node, Plan

START_GRACE_S = 10.0  # how long the first plan's devices may take to appear before those present start without


@dataclass
class Peer:
    """A device that has said hello. held, uploading: as last reported; answered: the last HALT answered."""

    generation: int
    held: Holdings
    uploading: Holdings
    answered: int = 0


class Coordinator(Inbox):
    """One training job, seen from the server."""

    def __init__(self, node: Node, plan: Plan, strategy: Strategy):
        self.node, self.plan, self.strategy = node, plan, strategy
        self.steps = plan.training.steps
        self.options, self.layers = strategy.options, range(strategy.units)
        self.first_choice = strategy.first_choice
        self.replanner = Replanner(plan.cluster, strategy.planner, self.first_choice)
        self.peers: dict[str, Peer] = {}
        self.ledger = Ledger(node, plan.training.batch)
        self.checkpoints = CheckpointStore(len(self.layers))
        self.epoch = 0
        self.assignment: Assignment | None = None  # of the latest epoch
        self.running = False  # False between epochs
        self.states: Outbox | None = None  # state on its way to the devices of this epoch
        self.uploads: dict[str, set[int]] = {}  # who still sends what of `uploading`
        self.uploading: StateId | None = None
        self.ready: set[int] = set()
        self.pausing: str | None = None  # the device for whose sake training pauses
        self.pause_at: int | None = None
        self.grace_over = False
        self.deserted = False  # nobody is there to go on with
        self.reduced: set[str] = set()  # lockstep: members that can apply the step under way
        self.marked: StateId | None = None  # lockstep: the state of which members were told to upload a copy

    async def run(self) -> None:
        """Train; returns when the last step is complete."""
        self.inbox: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
        self.outbox = Outbox(self.node)
        pumps: list[Coroutine[Any, Any, None]] = [
            self._pump(self.node.membership.next_event, self._on_member),
            self._pump(lambda: self.node.recv(ANY, p.REPORT), self._on_report),
            self._pump(lambda: self.node.recv(ANY, CHUNK), self._on_chunk),
            self._grace(),
        ]
        tasks = [asyncio.create_task(pump) for pump in pumps]
        for task in tasks:
            task.add_done_callback(self._ended)
        self.outbox.failed.add_done_callback(self._ended)
        try:
            await self._gather()
            while self.ledger.committed < self.steps:
                handler, item = await self.inbox.get()
                await handler(item)
        finally:
            await cancel(tasks)
            await self.outbox.close()
            if self.states is not None:
                await self.states.close()

    async def _grace(self) -> None:
        await self.node.sleep(START_GRACE_S)
        self.grace_over = True
        self.inbox.put_nowait((self._try_start, None))

    # -- what happens ----------------------------------------------------------------

    async def _on_member(self, event: MembershipEvent) -> None:
        if event.kind != "left":
            return
        peer = self.peers.get(event.name)
        if peer is not None and peer.generation <= event.generation:
            await self._lost(event.name, event.at_s, event.detection_s)

    async def _lost(self, name: str, at_s: float, detection_s: float) -> None:
        del self.peers[name]
        staged = self.assignment is not None and name in self.assignment.devices
        if staged and self.ledger.committed < self.steps:
            self.ledger.lost(self.options.recovery, name, at_s, detection_s)
        if not self.running:
            await self._try_start()
        elif staged:
            await self._gather()
        elif name in self.uploads:
            self._abandon()

    async def _on_report(self, message: Message) -> None:
        meta, name = message.meta, message.source
        kind = meta["kind"]
        if kind == p.HELLO:
            if name in self.peers:  # a new life of a device whose loss went unnoticed
                await self._lost(name, self.node.now(), 0.0)
            self.peers[name] = Peer(message.generation, {}, {}, answered=self.epoch)
            self._take_holdings(name, meta)
            await (self._consider(name) if self.running else self._try_start())
        peer = self.peers.get(name)
        if peer is None or peer.generation != message.generation:
            return
        if kind == p.HELD and meta["epoch"] == self.epoch:
            peer.answered = self.epoch
            self._take_holdings(name, meta)
            await self._try_start()
        elif kind == p.DONE and meta["epoch"] == self.ledger.epoch:
            self.ledger.note({k: v for k, v in meta.items() if k != "kind"})
            await self._paused()
        elif kind == p.READY and self.running and meta["epoch"] == self.epoch:
            self.ready.add(meta["stage"])
            if self.assignment is not None and len(self.ready) == len(self.assignment.devices):
                self.ledger.ready()
        elif kind == p.STUCK and self.running and meta["epoch"] == self.epoch:
            text = f"{name} misses {meta['missing']} of {meta['what']} from {meta['peer']}: again"
            self.node.record("warning", text=text)
            await self._gather()
        elif kind == p.PAUSED and self.running and meta["epoch"] == self.epoch:
            self.pause_at = meta["version"]
            await self._paused()
        elif kind == p.REDUCED and self.running and meta["epoch"] == self.epoch:
            self._on_reduced(name, meta["step"])

    def _on_reduced(self, name: str, step: int) -> None:
        """Lockstep: when the last member can, all apply the step."""
        if self.assignment is None or step != self.ledger.committed:
            return
        self.reduced.add(name)
        if len(self.reduced) < len(self.assignment.devices):
            return
        self.reduced = set()
        mark = self._checkpoint_due(step + 1)
        if mark:
            self.marked = StateId(step + 1, self.epoch)
        for member in self.assignment.devices:
            self._control(member, p.COMMIT, epoch=self.epoch, step=step, checkpoint=mark)

    def _checkpoint_due(self, version: int) -> bool:
        every = self.options.checkpoint_every
        due = every and version % every == 0 and version < self.steps
        return bool(due and self.marked is None and self.uploading is None)

    async def _paused(self) -> None:
        """When every stage has finished the step after which training pauses: on to the next epoch."""
        if self.running and self.pausing is not None and self.pause_at == self.ledger.committed < self.steps:
            self.ledger.paused_for(self.pausing)
            await self._gather()

    def _take_holdings(self, name: str, meta: dict[str, Any]) -> None:
        self.peers[name].held = p.holdings_from_wire(meta["held"])
        self.peers[name].uploading = p.holdings_from_wire(meta["uploading"])
        for note in meta["notes"]:
            self.ledger.note(note)

    async def _on_chunk(self, message: Message) -> None:
        full = self.checkpoints.add(message)
        self.outbox.post(message.source, ACK, key=message.meta["key"])
        if self.marked is not None and self.checkpoints.complete >= self.marked:
            self.marked = None
        if full is None:
            return
        self.node.record(
            "checkpoint", start=self.checkpoints.began(full), end=self.node.now(), step=full.version - 1,
            bytes=self.checkpoints.nbytes(full),
        )  # fmt: skip
        self.uploading, self.uploads = None, {}
        for name in self.peers:
            self._control(name, p.CHECKPOINTED, state=full)

    def _abandon(self) -> None:
        """The checkpoint under way can't be completed any more."""
        for name in self.peers:
            self._control(name, p.ABANDONED, state=self.uploading)
        self.uploading, self.uploads = None, {}
        self.checkpoints.keep(())

    def _control(self, name: str, kind: str, **fields: Any) -> None:
        self.outbox.post(name, p.CONTROL, kind=kind, **fields)

    # -- epochs ----------------------------------------------------------------------

    async def _gather(self) -> None:
        """End the epoch: halt everyone and ask what they hold."""
        self.running, self.pausing, self.pause_at = False, None, None
        if self.states is not None:
            await self.states.close()
        self.epoch += 1
        for name in self.peers:
            self._control(name, p.HALT, epoch=self.epoch)
        await self._try_start()

    async def _try_start(self, _: None = None) -> None:
        """Start the next epoch if everyone has answered and there are devices enough."""
        if self.running or any(peer.answered < self.epoch for peer in self.peers.values()):
            return
        assignment = await self._choose()
        if assignment is not None:
            self.deserted = False
            self._start(assignment)
        elif not self.peers and self.ledger.epoch and not self.deserted:
            self.deserted = True
            self.node.record("warning", text="no device is there: training waits")

    async def _choose(self) -> Assignment | None:
        """The stages of the next epoch; None: wait for more devices."""
        complete = all(name in self.peers for name in self.first_choice.devices)
        if self.ledger.epoch == 0 and complete or self.options.recovery == "wait":
            return self.first_choice if complete else None
        if not self.peers or (self.ledger.epoch == 0 and not self.grace_over):
            return None
        state, holders = self._newest()
        left = self.steps - state.version
        best: Assignment | None = await self.node.compute(
            self.replanner.best, set(self.peers), self.assignment, state, holders, left, flops=0, label="plan"
        )
        return best

    def _newest(self) -> tuple[StateId, dict[str, Holdings]]:
        """The newest state of which every layer is held by someone, and who holds what."""
        holders: dict[str, Holdings] = {SERVER: self.checkpoints.holdings()}
        holders.update({name: peer.held for name, peer in self.peers.items()})
        return next(s for s in restorable(self.layers, holders.values()) if self.ledger.usable(s)), holders

    def _start(self, assignment: Assignment) -> None:
        self.reduced, self.marked = set(), None
        state, holders = self._newest()
        sources = transfers(assignment.layers_by_device, state, SERVER, holders)
        self.states = Outbox(self.node)
        self.states.failed.add_done_callback(self._ended)
        for name, got in sources.items():
            self._give(name, state, [i for i, source in got.items() if source == SERVER])
        self._settle_upload()  # after _give: it may drop the parts of a copy that was given from
        self.assignment, self.running, self.ready = assignment, True, set()
        self.ledger.restart(state, self.epoch, assignment.devices)
        for name in self.peers:
            gives = [
                (to, layers) for to, got in sources.items()
                if (layers := [i for i, source in got.items() if source == name])
            ]  # fmt: skip
            self._control(
                name, p.START, epoch=self.epoch, state=state, gives=gives,
                stages=assignment.spans,
                sources=list(sources.get(name, {}).items()),
                complete=self.checkpoints.complete, uploading=self.uploading,
            )  # fmt: skip
        self.node.record(
            "plan", devices=list(assignment.devices), epoch=self.epoch, version=state.version,
            step_time_s=assignment.step_time_s, moved_bytes=moved_bytes(sources, self.replanner.layer_bytes),
            **self.strategy.about(assignment, state.version),
        )  # fmt: skip

    def _give(self, to: str, state: StateId, layers: list[int]) -> None:
        assert self.states is not None  # since `_start`
        for layer in layers:
            parts = chunks(self.checkpoints.layer(state, layer), self.node.device, self.plan.cluster.device(to))
            for index, part in enumerate(parts):
                self.states.post(to, p.state_tag(self.epoch), [part], layer=layer, index=index, count=len(parts))

    def _settle_upload(self) -> None:
        """Which checkpoint under way goes on through the change of epochs, if any."""
        uploads = {name: peer.uploading for name, peer in self.peers.items()}
        under_way = {
            s for u in [*uploads.values(), self.checkpoints.holdings()] for s in u if s > self.checkpoints.complete
        }
        self.uploading = next(
            (s for s in sorted(under_way, reverse=True) if self.checkpoints.can_finish(s, uploads.values())), None
        )
        going = self.uploading
        self.uploads = {} if going is None else {name: u[going] for name, u in uploads.items() if going in u}
        self.checkpoints.keep(() if going is None else [going])

    async def _consider(self, name: str) -> None:
        """A device has joined: is there now a plan so much better that it pays for the change?"""
        if self.options.recovery != "replan" or self.pausing is not None or self.assignment is None:
            return
        left = self.steps - self.ledger.committed - 1
        state = StateId(self.ledger.committed + 1, self.epoch)  # that it would change in
        running = self.assignment
        if await self.node.compute(self.replanner.better, set(self.peers), running, state, left, flops=0, label="plan"):
            self.pausing = name
            self._control(running.devices[0], p.PAUSE, epoch=self.epoch)
