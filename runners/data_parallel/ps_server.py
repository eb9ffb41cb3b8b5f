"""The parameter server: holds weights and optimizer, hands out samples, adds up gradients, updates bucket by bucket.

The unit of work is a task: these samples' gradients, for these buckets, with the weights of one step. A bucket is
updated when all samples of the batch are in it, and goes out at once, while others are still on their way in. When a
device is lost, what its tasks still owe is handed to others as new tasks of the same step: nothing is done twice, and
nobody is halted. One queue feeds one loop, so every decision sees a consistent picture.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from runners.costs import ADAMW_TRAFFIC_BYTES, FLOAT, FLOPS_PER_BYTE, layer_costs
from runners.data_parallel import ps_protocol as p
from runners.data_parallel.helpers import choose_helpers
from runners.data_parallel.options import parse_options
from runners.data_parallel.planner import Assignment, Planner
from runners.data_parallel.replica import make_replica
from runners.elastic.coordinator import START_GRACE_S
from runners.inbox import Inbox
from runners.messaging import Assembly, Outbox, cancel, chunks
from runners.planning.paths import path
from runners.planning.shares import whole_shares
from runners.state import SEED_STATE
from testbed.runtime import ANY, MembershipEvent, Message, Node, Plan

ADD_TRAFFIC_BYTES = 3 * FLOAT  # per parameter: sum and part read, sum written


@dataclass
class Task:
    """Samples [first, end) on a device; `owed`: buckets whose gradients are not in yet."""

    device: str
    first: int
    end: int
    owed: set[int]

    @property
    def samples(self) -> int:
        return self.end - self.first


@dataclass
class Recovery:
    """A loss until what was lost is done. tasks: those that make up for it; left: what nobody has been given yet."""

    kind: str
    peer: str
    detected: float
    start: float
    step: int
    restored: float | None = None
    tasks: set[int] = field(default_factory=set)
    left: list[tuple[int, int, set[int]]] = field(default_factory=list)


class ParameterServer(Inbox):
    """One training job, seen from the server."""

    def __init__(self, node: Node, plan: Plan):
        self.node, self.plan, self.training = node, plan, plan.training
        options = parse_options(plan.training.options)
        self.planner = Planner(plan.model, plan.training, options)
        self.first_choice = Assignment.from_data(plan.data["assignment"])
        self.buckets = self.first_choice.buckets
        self.devices = {d.name: d for d in plan.cluster.devices}
        self.fits = {d.name for d in self.planner.usable(plan.cluster)}
        self.uplinks = {d.name: path(plan.cluster, d).uplink_bps for d in plan.cluster.devices}
        costs = layer_costs(plan.model)
        self.parameters = [sum(c.parameters for c in costs[first:end]) for first, end in self.buckets]
        self.step = -1  # under way
        self.peers: dict[str, int] = {}  # who has said hello -> generation
        self.has: dict[str, list[int]] = {}  # peer -> version of each bucket's weights that it has, or is being sent
        self.tasks: dict[int, Task] = {}
        self.numbers = itertools.count()
        self.assembly = Assembly()
        self.recoveries: list[Recovery] = []
        self.joined: dict[str, Recovery] = {}
        self.grace_over = False
        self.deserted = False

    async def run(self) -> None:
        """Train; returns when the last step is complete."""

        def build():
            everything = self.plan.model, self.training, self.buckets, SEED_STATE, {}
            replica = make_replica(*everything, optimizer=True)
            return replica, [replica.weights(b) for b in range(len(self.buckets))]

        self.replica, self.current = await self.node.compute(build, flops=0, label="build")
        self.previous = list(self.current)  # the step's own weights, where `current` is one ahead already
        self.version = [0] * len(self.buckets)
        self.inbox: asyncio.Queue[tuple] = asyncio.Queue()
        self.control, self.bulk = Outbox(self.node), Outbox(self.node)  # apart: tasks don't stand behind weights
        pumps = [
            self._pump(self.node.membership.next_event, self._on_member),
            self._pump(lambda: self.node.recv(ANY, p.HELLO), self._on_hello),
            self._pump(lambda: self.node.recv(ANY, p.GRADIENT), self._on_chunk),
            self._grace(),
        ]
        tasks = [asyncio.create_task(pump) for pump in pumps]
        for end in (*tasks, self.control.failed, self.bulk.failed):
            end.add_done_callback(self._ended)
        try:
            while self.step < self.training.steps:
                handler, item = await self.inbox.get()
                await handler(item)
        finally:
            await cancel(tasks)
            await self.control.close()
            await self.bulk.close()

    async def _grace(self) -> None:
        await self.node.sleep(START_GRACE_S)
        self.grace_over = True
        self.inbox.put_nowait((self._try_begin, None))

    # -- who is there ----------------------------------------------------------------

    async def _on_hello(self, message: Message) -> None:
        name = message.source
        if name in self.peers:  # a new life of a device whose loss went unnoticed
            self._lost(name, self.node.now(), 0.0)
        self.peers[name] = message.generation
        self.has[name] = [0] * len(self.buckets)  # it has the seed's
        self.deserted = False
        if self.step < 0:
            await self._try_begin()
            return
        if name in self.fits:
            self.joined[name] = Recovery("join", name, 0.0, self.node.now(), self.step)
            self._reassign()
            if name not in self.joined:
                return
            for b, version in enumerate(self.version):  # what it will need in the next step
                if version > self.step:
                    self._send(name, b)

    async def _on_member(self, event: MembershipEvent) -> None:
        if event.kind == "left" and self.peers.get(event.name, event.generation + 1) <= event.generation:
            self._lost(event.name, event.at_s, event.detection_s)

    def _lost(self, name: str, at_s: float, detection_s: float) -> None:
        del self.peers[name], self.has[name]
        self.joined.pop(name, None)
        if self.step < 0 or self.step >= self.training.steps:
            return
        mine = {number: task for number, task in self.tasks.items() if task.device == name}
        for number in mine:
            del self.tasks[number]
        self.assembly.keep(lambda key: key[0] not in mine)
        took_part = name in self.participants
        if took_part or mine:
            recovery = Recovery("reassign", name, detection_s, at_s, self.step)
            recovery.left = [(t.first, t.end, t.owed) for t in mine.values() if t.owed]
            for earlier in self.recoveries:  # it was making up for someone else
                earlier.tasks -= mine.keys()
            self.recoveries.append(recovery)
            self._reassign()
            self._close()

    def _reassign(self) -> None:
        """Hand out what lost devices left undone."""
        present = [n for n in self.peers if n in self.fits]
        waiting = [r for r in self.recoveries if r.left]
        if not present:
            if waiting and not self.deserted:
                self.deserted = True
                self.node.record("warning", text="no device is there: training waits")
            for recovery in waiting:
                recovery.kind = "wait"
            return
        for recovery in waiting:
            for first, end, owed in recovery.left:
                owed_bytes = FLOAT * sum(self.parameters[b] for b in owed)
                busy = [n for n in present if n in self.participants] or present
                speeds = [self.devices[n].flops for n in busy]
                ways = [8 * owed_bytes / self.uplinks[n] for n in busy]
                chosen = choose_helpers(speeds, ways, (end - first) * self.planner.sample_flops)
                for name, (a, z) in self._ranges([busy[i] for i in chosen], first, end):
                    recovery.tasks.add(self._give(name, a, z, owed))
            recovery.left = []
            recovery.restored = self.node.now()

    def _ranges(self, names: list[str], first: int, end: int) -> Iterable[tuple[str, tuple[int, int]]]:
        shares = whole_shares(end - first, [self.devices[n].flops for n in names])
        for name, n in zip(names, shares):
            if n:
                yield name, (first, first + n)
            first += n

    # -- steps -----------------------------------------------------------------------

    async def _try_begin(self, _: None = None) -> None:
        """Begin with the devices of the plan, or after a while with those who are there."""
        present = self.fits & self.peers.keys()
        complete = all(name in present for name in self.first_choice.devices)
        if self.step < 0 and present and (complete or self.grace_over):
            self.participants: tuple[str, ...] = ()
            self._begin()

    def _begin(self) -> None:
        """Hand out the next step."""
        self.step += 1
        if self.step == self.training.steps:
            return
        self.began, self.losses = self.node.now(), []
        self.remaining = [self.training.batch] * len(self.buckets)
        self.parts = [0] * len(self.buckets)
        self.previous = list(self.current)
        names = [d.name for d in self.plan.cluster.devices if d.name in self.peers and d.name in self.fits]
        before, everything = self.participants, set(range(len(self.buckets)))
        if not names:  # all were lost in the very moment in which the last step was complete
            lost = Recovery("wait", "", 0.0, self.began, self.step, left=[(0, self.training.batch, everything)])
            self.recoveries.append(lost)
            self._reassign()
            return
        ranges = list(self._ranges(names, 0, self.training.batch))
        self.participants = tuple(name for name, _ in ranges)
        if self.participants != before:
            shares = ", ".join(f"{name} ({z - a})" for name, (a, z) in ranges[:16])
            self.node.record(
                "plan", devices=list(self.participants), samples=[z - a for _, (a, z) in ranges],
                note=f"parameter server from step {self.step}, samples each: {shares}"
                + (f" and {len(ranges) - 16} more" if len(ranges) > 16 else ""),
            )  # fmt: skip
        for name, (a, z) in ranges:
            number = self._give(name, a, z, everything)
            if name in self.joined:
                join = self.joined.pop(name)
                join.restored, join.step = self.node.now(), self.step
                join.tasks.add(number)
                self.recoveries.append(join)
        for name in list(self.joined):  # no sample for it: a spare
            del self.joined[name]

    def _give(self, name: str, first: int, end: int, owed: Iterable[int]) -> int:
        """A task of this step, and the weights that it takes."""
        number = next(self.numbers)
        self.tasks[number] = Task(name, first, end, set(owed))
        self.control.post(name, p.TASK, task=number, step=self.step, first=first, end=end, buckets=sorted(owed))
        for b in reversed(range(len(self.buckets))):
            if self.has[name][b] != self.step:
                self._send(name, b, of_step=True)
        return number

    def _send(self, name: str, bucket: int, *, of_step: bool = False) -> None:
        """A bucket's newest weights, or those of the step under way."""
        ahead = self.version[bucket] > self.step
        flat = self.previous[bucket] if of_step and ahead else self.current[bucket]
        version = self.step if of_step else self.version[bucket]
        self.has[name][bucket] = version
        parts = chunks(flat, self.node.device, self.devices[name])
        for index, part in enumerate(parts):
            self.bulk.post(name, p.WEIGHTS, [part], version=version, bucket=bucket, index=index, count=len(parts))

    async def _on_chunk(self, message: Message) -> None:
        meta = message.meta
        number, bucket = meta["task"], meta["bucket"]
        task = self.tasks.get(number)
        if task is None or self.peers.get(message.source) != message.generation:
            return
        whole = self.assembly.add((number, bucket), meta["index"], meta["count"], message.tensors[0])
        if whole is None:
            return
        self.replica.add_gradient(bucket, whole)  # a copy's worth of work; priced with the update
        task.owed.discard(bucket)
        self.parts[bucket] += 1
        self.remaining[bucket] -= task.samples
        if bucket == len(self.buckets) - 1:
            self.losses.append(meta["loss"])
        if not task.owed:
            del self.tasks[number]
            self._close(number)
        if self.remaining[bucket] == 0:
            await self._update(bucket)

    async def _update(self, bucket: int) -> None:
        def apply() -> torch.Tensor:
            self.replica.update_bucket(bucket)
            return self.replica.weights(bucket)

        traffic = ADAMW_TRAFFIC_BYTES + self.parts[bucket] * ADD_TRAFFIC_BYTES
        flops = FLOPS_PER_BYTE * traffic * self.parameters[bucket]
        self.current[bucket] = await self.node.compute(apply, flops=flops, label=f"update bucket {bucket}")
        self.version[bucket] = self.step + 1
        if self.step + 1 < self.training.steps:
            for name in (*self.participants, *self.joined):
                if name in self.peers and self.has[name][bucket] != self.step + 1:
                    self._send(name, bucket)
        if all(version == self.step + 1 for version in self.version):
            self._record()
            self._begin()

    def _record(self) -> None:
        known = [loss for loss in self.losses if loss is not None]
        self.node.record(
            "step", step=self.step, loss=sum(known) if known else None, start=self.began, end=self.node.now(),
            samples=self.training.batch, attempt=1, devices=len(self.participants),
        )  # fmt: skip

    def _close(self, number: int | None = None) -> None:
        """Record the recoveries that are over, now that this task is done."""
        for recovery in [r for r in self.recoveries if number is None or number in r.tasks]:
            recovery.tasks.discard(number)
            if recovery.tasks or recovery.left:
                continue
            self.recoveries.remove(recovery)
            now = self.node.now()
            fields: dict[str, Any] = {"restored": now if recovery.restored is None else recovery.restored}
            self.node.record(
                "recovery", kind=recovery.kind, peer=recovery.peer, detected=recovery.detected,
                start=recovery.start, end=now, step=recovery.step, lost_steps=0, **fields,
            )  # fmt: skip
