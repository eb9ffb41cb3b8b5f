"""Matrix products out to the devices and back: who gets which block, when, and what happens if it does not come back.

Each device has a queue. A product that a layer's result waits for goes before weights sent ahead, and those before
products that nothing waits for (gradients of weights). A few tasks are under way at each device, so that one block
comes down while another is computed and a third goes up.

What is lost with a device, or long overdue, is given to others; whichever result comes first counts. Nothing here
blocks: one coroutine dispatches, one takes results, one follows the membership, one watches for what is overdue.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from runners.cleave.capture import Product
from runners.cleave.deadlines import Deadlines
from runners.cleave.job import Job, Task, View
from runners.cleave.options import CleaveOptions
from runners.cleave.peers import Peer, Prefetch
from runners.cleave.planned import Plans
from runners.cleave.precision import ROUNDING, Codec
from runners.cleave.recoveries import Recoveries
from runners.cleave.sending import OVERDUE_S, Sender, Traffic
from runners.planning.gemm import Gemm, default_rates, replan
from testbed.cluster import Cluster
from testbed.cluster.model import SERVER
from testbed.runtime import ANY, MembershipEvent, Message, Node

RESULT = "result"
CRITICAL, AHEAD, LATER = 0, 1, 2  # priorities
LOOK_AHEAD = 1  # products beyond the latest whose weights are sent ahead
MOST_FAULTS = 3  # wrong results, after which a device gets no more work


class Products:
    """The products of one training job. `start` it, `submit` jobs; each comes back in its `finished` queue."""

    def __init__(self, node: Node, cluster: Cluster, options: CleaveOptions):
        self._node, self._cluster, self._options = node, cluster, options
        self._codec = Codec(options.wire)
        self._default = default_rates(cluster)
        self._memory = {d.name: d.memory_bytes for d in cluster.devices}
        self._peers: dict[str, Peer] = {}
        self._plans = Plans(cluster, options, self._codec, self._current)
        self._learned = dict(self._default)  # rates, also of devices that are away
        self._paused: asyncio.Future | None = None  # what the dispatcher waits for when it has nothing to do
        self._runnable: dict[str, Peer] = {}
        self._tasks: dict[int, Task] = {}  # under way, by id
        self._deadlines = Deadlines(node, self._tasks, self._overdue)
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._homeless: list[Job] = []  # no device is there to plan with
        self._orphans: list[Task] = []  # no device is left to take them over
        self._upcoming: deque[tuple[str, Product, View]] = deque()
        self._ahead = 0
        self._recoveries = Recoveries(node)
        self._running: list[asyncio.Task] = []
        self._at_server: set[asyncio.Task] = set()
        self.failed: asyncio.Future = asyncio.get_running_loop().create_future()
        self._sender = Sender(node, cluster, options, self._codec, self._deadlines)
        self.step = 0

    # -- for the training loop ---------------------------------------------------------

    def start(self) -> None:
        for name, generation in self._node.membership.alive.items():
            self._add(name, generation)
        for part in (self._members(), self._results(), self._dispatch(), self._deadlines.watch()):
            task = asyncio.create_task(part)
            task.add_done_callback(self._ended)
            self._running.append(task)

    async def stop(self) -> None:
        tasks = [*self._running, *self._at_server]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()  # seen
        else:
            self.failed.cancel()

    def begin_step(self, step: int, upcoming: Iterable[tuple[str, Product, View]]) -> None:
        """Values of the step before are of no use any more; measured rates count from now on.

        upcoming: products with weights that the step will need, in order.
        """
        self.step = step
        self._sender.traffic = Traffic()
        changed = False
        for peer in self._peers.values():
            peer.stale_bytes += peer.held.bytes
            peer.held.clear()
            peer.clear = True
            peer.rates = self._learned[peer.name] = peer.meter.measured(peer.rates, self._options.ewma)
            peer.meter.reset()
            changed = changed or peer.changed()
        if changed:
            self._replan()
        self._upcoming = deque(upcoming)
        self._ahead = 0
        self._send_ahead()

    def is_local(self, gemm: Gemm) -> bool:
        """Whether the server is to compute the product itself."""
        return self._plans.of(gemm).plan.local

    def submit(self, job: Job) -> None:
        """Send a product out. Its operands must not change until it has come back."""
        job.check_rounds, job.rounding = self._options.check, ROUNDING.get(self._options.wire, 0.0)
        job.resident_bytes = self._codec.resident_bytes
        while self._upcoming and self._ahead and self._upcoming[0][0] != job.name and job.product.weight:
            self._upcoming.popleft()
            self._ahead -= 1
        if self._upcoming and self._upcoming[0][0] == job.name:
            self._upcoming.popleft()
            self._ahead = max(0, self._ahead - 1)
        self._place(job)
        self._send_ahead()

    async def redo(self, jobs: list[Job]) -> list[Job]:
        """Have wrong parts done again, by others where there are any. Returns the jobs when they are complete."""
        done: asyncio.Queue[Job] = asyncio.Queue()
        for job in jobs:
            again = []
            for task, why in job.bad:
                self._fault(task.device, f"{why} in {job.name}")
                fresh = Task(job, task.block)
                fresh.tries = task.tries + 1
                again.append(fresh)
            job.bad, job.finished = [], done
            job.open += len(again)
            self._reassign(again, avoid={t.device for t in again})
        return [await done.get() for _ in jobs]

    def participants(self) -> int:
        """Devices that took part in the step so far."""
        return len(self.traffic.up_bytes)

    @property
    def traffic(self) -> Traffic:
        """Of the step so far."""
        return self._sender.traffic

    # -- placing -----------------------------------------------------------------------

    def _current(self) -> tuple[list[str], dict[str, Any]]:
        """Devices and rates that plans are made with: all of the cluster's when none is there."""
        peers = self._usable() or list(self._peers.values())
        for peer in peers:
            peer.planned = peer.rates
        if not peers:
            return [d.name for d in self._cluster.devices], self._learned
        return [p.name for p in peers], {p.name: p.rates for p in peers}

    def _usable(self, avoid: Iterable[str] = ()) -> list[Peer]:
        trusted = [p for p in self._peers.values() if not p.distrusted] or list(self._peers.values())
        usable = [p for p in trusted if not p.suspect] or trusted
        return [p for p in usable if p.name not in avoid] or usable

    def _replan(self) -> None:
        self._plans.clear()

    def _place(self, job: Job) -> None:
        if not self._peers:
            self._homeless.append(job)
            return
        planned = self._plans.of(job.product.gemm)
        job.plan = planned.plan
        job.open = len(planned.pieces)
        extents = planned.extents(job.a, job.b, job.product.gemm.k)
        for block, extent in zip(planned.pieces, extents):
            self._queue(Task(job, block, None, extent))
        self._go_on()

    def _queue(self, task: Task) -> None:
        task.device = task.block.device
        peer = self._peers.get(task.device)
        if peer is None:  # the server itself: no device can hold the block
            self._compute_here(task)
            return
        heapq.heappush(peer.waiting, (task.job.priority, next(self._order), task))
        self._runnable[peer.name] = peer

    def _send_ahead(self) -> None:
        """Queue parts of weights for the products that come next."""
        if not (self._options.prefetch and self._options.cache and self._peers):
            return
        while self._ahead <= LOOK_AHEAD and self._ahead < len(self._upcoming):
            name, product, view = self._upcoming[self._ahead]
            self._ahead += 1
            planned = self._plans.of(product.gemm)
            if planned.plan.local:
                continue
            for block in planned.plan.blocks:
                peer = self._peers.get(block.device)
                if peer is not None:
                    region = view.region(0, 1, None, (block.col0, block.col1))
                    heapq.heappush(peer.waiting, (AHEAD, next(self._order), Prefetch(view, region, name)))
                    self._runnable[peer.name] = peer
        self._go_on()

    def _reassign(self, tasks: list[Task], avoid: Iterable[str] = ()) -> None:
        """Give the blocks of tasks that can't be waited for to other devices. A task with children stays answerable."""
        tasks = [t for t in tasks if not t.satisfied]
        peers = self._usable(avoid)
        if not peers:
            self._orphans += tasks
            return
        peers = sorted(peers, key=lambda p: (p.up_free_s, -p.rates.flops))
        names = [p.name for p in peers]
        rates = {p.name: p.rates for p in peers}
        for number, task in enumerate(tasks):
            team = names[number :: len(tasks)] if len(tasks) < len(names) else [names[number % len(names)]]
            gemm = Gemm(task.job.name, task.job.product.gemm.m, task.job.product.gemm.k, task.job.product.gemm.n,
                        task.job.product.gemm.batch, self._codec.element_bytes)  # fmt: skip
            resident = self._codec.resident_bytes
            blocks = replan(self._cluster, gemm, [task.block], team, rates, resident_bytes=resident)
            if any(b.device == SERVER for b in blocks) and len(team) < len(names):
                blocks = replan(self._cluster, gemm, [task.block], names, rates, resident_bytes=resident)
            task.children = [Task(task.job, block, task) for block in blocks]
            for child in task.children:
                child.tries = task.tries
                self._queue(child)
        self._go_on()

    def _compute_here(self, task: Task) -> None:
        async def run() -> None:
            left, right = task.job.a.cut(task.extent.a), task.job.b.cut(task.extent.b)
            fn = _product_of(left, task.job.a.transposed, right, task.job.b.transposed)
            part = await self._node.compute(fn, flops=task.flops, label=task.job.name)
            if not task.satisfied:
                self._accept(task, part)

        here = asyncio.create_task(run())
        self._at_server.add(here)
        here.add_done_callback(self._at_server.discard)
        here.add_done_callback(self._ended)

    # -- sending -----------------------------------------------------------------------

    def _go_on(self) -> None:
        """There may be something to send."""
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    async def _dispatch(self) -> None:
        while True:
            while self._runnable:
                _, peer = self._runnable.popitem()
                waiting = peer.waiting
                while waiting and self._peers.get(peer.name) is peer:
                    priority, _, item = waiting[0]
                    if not isinstance(item, Task):
                        heapq.heappop(waiting)
                        if any(name == item.job for name, _, _ in itertools.islice(self._upcoming, LOOK_AHEAD + 1)):
                            await self._sender.ahead(peer, item)
                        # else it is too late: its product has begun
                    elif item.satisfied:
                        heapq.heappop(waiting)
                    elif peer.room(priority == LATER, item.resident_bytes):
                        heapq.heappop(waiting)
                        item.id = next(self._ids)
                        self._tasks[item.id] = item
                        await self._sender.task(peer, item)
                    else:
                        if peer.cramped(item.resident_bytes):
                            await self._sender.make_room(peer, item)
                        break
            self._paused = asyncio.get_running_loop().create_future()
            await self._paused

    # -- results -----------------------------------------------------------------------

    async def _results(self) -> None:
        recv = self._node.recv
        while True:
            self._result(await recv(ANY, RESULT))

    def _result(self, message: Message) -> None:
        traffic, name = self._sender.traffic, message.source
        traffic.messages += 1
        task = self._tasks.pop(message.meta["i"], None)
        peer = self._peers.get(name)
        if task is None or peer is None or task.generation != message.generation:
            return
        peer.answered(task)
        if peer.waiting:
            self._runnable[name] = peer
            self._go_on()
        traffic.up_bytes[name] = traffic.up_bytes.get(name, 0) + task.up_bytes
        now = self._node.now()
        if task.expected_s > 0:  # what the expectation does not know of, such as the server's own work, makes all late
            sender = self._sender
            sender.lateness = max(1.0, 0.9 * sender.lateness + 0.1 * (now - task.sent_s) / task.expected_s)
        received_s, began_s, ended_s = message.meta["t"]
        peer.meter.note(task, peer.rates, received_s, began_s, ended_s, message.sent_s, message.received_s)
        if not peer.tasks:
            peer.forget_clocks()
        if peer.suspect and all(t.deadline_s > now for t in peer.tasks.values()):
            peer.suspect = False
            self._replan()
        self._recoveries.heard(name)
        if task.satisfied:
            traffic.duplicates += 1
            return
        part = self._shaped(task, message.tensors)
        if part is None:
            shapes = [list(t.shape) for t in message.tensors]
            self._fault(name, f"a result of shape {shapes} for a block of {task.block.rows} × "
                              f"{task.block.columns} in {task.job.name}")  # fmt: skip
            task.tries += 1
            self._reassign([task], avoid={name})
            return
        self._accept(task, part)

    def _accept(self, task: Task, part: torch.Tensor) -> None:
        """The first result of a block."""
        job = task.job
        job.parts.append((task, part))
        if job.complete(task):
            job.finished.put_nowait(job)
        self._recoveries.settle()

    def _shaped(self, task: Task, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """The block, or None when the tensors can't be it."""
        if not tensors or tensors[0].shape != task.extent.shape:
            return None
        if tensors[0].is_meta:
            return tensors[0]
        try:
            return self._codec.decode(tensors)
        except ValueError:
            return None

    def _fault(self, name: str, why: str) -> None:
        self._node.record("fault", peer=name, text=why, step=self.step)
        self._node.record("warning", text=f"{name} returned {why}; it is done again")
        peer = self._peers.get(name)
        if peer is None:
            return
        peer.faults += 1
        if peer.faults >= MOST_FAULTS and not peer.distrusted:
            peer.distrusted = True
            self._node.record("warning", text=f"{name} gets no more work after {peer.faults} wrong results")
            self._replan()

    # -- overdue -----------------------------------------------------------------------

    def _overdue(self, task: Task) -> None:
        peer = self._peers.get(task.device)
        if peer is None or task.id not in peer.tasks:
            return
        # it was taken over once: passing it on and on helps nobody; or no one to help, or everyone is as late (the
        # server's link, say): go on waiting
        if task.parent is not None or self._is_general(peer, task.sent_s):
            task.deadline_s = self._node.now() + max(OVERDUE_S, 2 * (task.deadline_s - task.sent_s))
            self._deadlines.add(task)
            return
        if not peer.suspect:
            peer.suspect = True
            self._node.record("straggler", peer=peer.name, label=task.job.name, step=self.step,
                              after=self._node.now() - task.sent_s)  # fmt: skip
            self._replan()
        waiting = [item for _, _, item in peer.waiting if isinstance(item, Task)]
        peer.waiting.clear()
        late = [t for t in peer.tasks.values() if not t.satisfied and not t.children and t.parent is None]
        self._reassign(late + waiting, avoid={peer.name})

    def _is_general(self, peer: Peer, sent_s: float) -> bool:
        """Whether no device but that one could help, or half of them have not answered what was sent as early."""
        usable = self._usable()
        as_late = 0
        for other in usable:
            if other is not peer and other.tasks and next(iter(other.tasks.values())).sent_s <= sent_s:
                as_late += 2
                if as_late >= len(usable):
                    return True
        return usable == [peer] or not usable

    # -- membership --------------------------------------------------------------------

    async def _members(self) -> None:
        while True:
            event = await self._node.membership.next_event()
            if event.kind == "left":
                self._left(event)
            else:
                self._joined(event)

    def _add(self, name: str, generation: int) -> None:
        self._peers[name] = Peer(name, generation, self._learned[name], self._memory[name], cache=self._options.cache)

    def _left(self, event: MembershipEvent) -> None:
        peer = self._peers.get(event.name)
        if peer is None or peer.generation > event.generation:
            return
        del self._peers[event.name]
        self._learned[event.name] = self._default[event.name]  # its link may be another one when it is back
        self._runnable.pop(event.name, None)
        self._replan()
        tasks = [*peer.tasks.values(), *(item for _, _, item in peer.waiting if isinstance(item, Task))]
        for number in peer.tasks:
            self._tasks.pop(number, None)
        peer.tasks.clear()
        lost = [t for t in tasks if not t.satisfied]
        waits = self._recoveries.nobody = not self._peers
        if waits:
            self._node.record("warning", text=f"no device is left: step {self.step} waits, with all it has so far")
        self._reassign([t for t in lost if not t.children])  # others were overdue, and are with other devices already
        self._recoveries.lost(event, self.step, lost, waits=waits)
        self._plan_event(f"{event.name} is lost: {len(lost)} blocks go to others")

    def _joined(self, event: MembershipEvent) -> None:
        if event.name in self._peers:
            self._left(MembershipEvent("left", event.name, event.generation - 1, event.at_s))
        self._add(event.name, event.generation)
        self._replan()
        self._recoveries.nobody = False
        self._recoveries.joined(event, self.step)
        orphans, self._orphans = self._orphans, []
        homeless, self._homeless = self._homeless, []
        if orphans:
            self._reassign(orphans)
        for job in homeless:
            self._place(job)
        self._recoveries.settle()
        self._plan_event(f"{event.name} joins: it gets work from the next product on")

    def _plan_event(self, note: str) -> None:
        self._node.record("plan", devices=sorted(self._peers), note=note)

    def _ended(self, task: asyncio.Task) -> None:
        if not task.cancelled() and task.exception() is not None and not self.failed.done():
            self.failed.set_exception(task.exception())


def _product_of(left: torch.Tensor, left_turned: bool, right: torch.Tensor, right_turned: bool):
    def run() -> torch.Tensor:
        return (left.mT if left_turned else left) @ (right.mT if right_turned else right)

    return run
