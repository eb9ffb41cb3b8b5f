"""Matrix products out to the devices and back: who gets which block, when, and what happens if it does not come back.

Each device has a queue. A product that a layer's result waits for goes before weights sent ahead, and those before
products that nothing waits for (gradients of weights). A few tasks are under way at each device, so that one block
comes down while another is computed and a third goes up.

What is lost with a device, or long overdue, is given to others; whichever result comes first counts. Nothing here
blocks:
one task dispatches, one takes results, one follows the membership, one watches for what is overdue.
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
from runners.cleave.job import Job, Region, Task, View
from runners.cleave.options import CleaveOptions
from runners.cleave.peers import Peer, Prefetch
from runners.cleave.planned import Plans
from runners.cleave.precision import ROUNDING, Codec
from runners.cleave.recoveries import Recoveries
from runners.costs import FLOAT
from runners.planning.gemm import Gemm, default_rates, replan
from testbed.cluster import Cluster
from testbed.cluster.model import SERVER
from testbed.runtime import ANY, MembershipEvent, Message, Node, PeerLost

TASK, RESULT = "task", "result"
CRITICAL, AHEAD, LATER = 0, 1, 2  # priorities
LOOK_AHEAD = 1  # products beyond the latest whose weights are sent ahead
OVERDUE_S = 1.0  # least delay beyond the expected that counts as one
MOST_FAULTS = 3  # wrong results, after which a device gets no more work


class Products:
    """The products of one training job. `start` it, `submit` jobs; each comes back in its `finished` queue."""

    def __init__(self, node: Node, cluster: Cluster, options: CleaveOptions):
        self._node, self._cluster, self._options = node, cluster, options
        self._codec = Codec(options.wire)
        self._default = default_rates(cluster)
        self._memory = {d.name: d.memory_bytes for d in cluster.devices}
        self._peers: dict[str, Peer] = {}
        self._plans = Plans(cluster, options, self._codec.element_bytes, self._current)
        self._learned = dict(self._default)  # rates, also of devices that are away
        self._wake = asyncio.Event()
        self._runnable: dict[str, Peer] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._watch_again = asyncio.Event()
        self._tasks: dict[int, Task] = {}
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
        self.step = 0
        self.down_bytes: dict[str, int] = {}
        self.up_bytes: dict[str, int] = {}
        self.saved_bytes = 0  # not sent since the device had it
        self.duplicates = 0
        self.messages = 0
        self._lateness = 1.0  # how long results take, over what was expected; a running mean, at least 1
        self._out_free_s = 0.0  # when the server's uplink will be

    # -- for the training loop ---------------------------------------------------------

    def start(self) -> None:
        for name, generation in self._node.membership.alive.items():
            self._add(name, generation)
        for part in (self._members(), self._results(), self._dispatch(), self._watch()):
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
        self.down_bytes, self.up_bytes, self.saved_bytes, self.duplicates, self.messages = {}, {}, 0, 0, 0
        changed = False
        for peer in self._peers.values():
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
        return len(self.up_bytes)

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
        for block in planned.pieces:
            self._queue(Task(job, block))
        self._wake.set()

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
        self._wake.set()

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
            team = names[number::len(tasks)] if len(tasks) < len(names) else [names[number % len(names)]]
            gemm = Gemm(task.job.name, task.job.product.gemm.m, task.job.product.gemm.k, task.job.product.gemm.n,
                        task.job.product.gemm.batch, self._codec.element_bytes)  # fmt: skip
            blocks = replan(self._cluster, gemm, [task.block], team, rates)
            if any(b.device == SERVER for b in blocks) and len(team) < len(names):
                blocks = replan(self._cluster, gemm, [task.block], names, rates)
            task.children = [Task(task.job, block, task) for block in blocks]
            for child in task.children:
                child.tries = task.tries
                self._queue(child)
        self._wake.set()

    def _compute_here(self, task: Task) -> None:
        a, b = self._operands(task)

        async def run() -> None:
            left, right = task.job.a.cut(a), task.job.b.cut(b)
            fn = _product_of(left, task.job.a.transposed, right, task.job.b.transposed)
            self._accept(task, await self._node.compute(fn, flops=task.flops, label=task.job.name))

        here = asyncio.create_task(run())
        self._at_server.add(here)
        here.add_done_callback(self._at_server.discard)
        here.add_done_callback(self._ended)

    @staticmethod
    def _operands(task: Task) -> tuple[Region, Region]:
        b = task.block
        return (
            task.job.a.region(b.batch0, b.batch1, (b.row0, b.row1), None),
            task.job.b.region(b.batch0, b.batch1, None, (b.col0, b.col1)),
        )

    # -- sending -----------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._runnable:
                _, peer = self._runnable.popitem()
                while peer.waiting and self._peers.get(peer.name) is peer:
                    priority, _, item = peer.waiting[0]
                    if isinstance(item, Task):
                        if item.satisfied:
                            heapq.heappop(peer.waiting)
                            continue
                        if not peer.room(priority == LATER, item.resident_bytes):
                            break
                        heapq.heappop(peer.waiting)
                        await self._send(peer, item)
                    else:
                        heapq.heappop(peer.waiting)
                        await self._prefetch(peer, item)

    async def _send(self, peer: Peer, task: Task) -> None:
        job, block = task.job, task.block
        a, b = self._operands(task)
        out = block.products * block.rows * block.columns
        drop = peer.held.shrink(max(0.0, peer.memory_bytes - peer.resident_bytes - task.resident_bytes))
        pieces: list[torch.Tensor] = []
        left = self._operand(peer, job.a, a, pieces, drop, shared=block.columns < job.product.gemm.n)
        right = self._operand(peer, job.b, b, pieces, drop, shared=block.rows < job.product.gemm.m)
        tensors = await self._encoded(pieces)
        task.id = next(self._ids)
        task.device, task.generation = peer.name, peer.generation
        nbytes = sum(self._codec.nbytes(_count(r)) for r, spec in ((a, left), (b, right)) if not spec[0])
        now = self._node.now()
        task.sent_s = now
        task.down_from_s = now if peer.unasked_from_s is None else peer.unasked_from_s
        task.down_bytes, task.up_bytes = nbytes + peer.unasked_bytes, self._codec.nbytes(out)
        peer.unasked_bytes, peer.unasked_from_s = 0, None
        self._out_free_s = max(now, self._out_free_s) + 8 * nbytes / self._cluster.server.link.uplink_bps
        expected = peer.expect_s(self._out_free_s, nbytes, task.flops, task.up_bytes)
        wait = self._lateness * (expected - now)
        task.expected_s = expected - now
        task.deadline_s = now + max(self._options.straggler * wait, wait + OVERDUE_S)
        heapq.heappush(self._deadlines, (task.deadline_s, task.id))
        self._watch_again.set()
        peer.tasks[task.id] = self._tasks[task.id] = task
        peer.resident_bytes += task.resident_bytes
        self.down_bytes[peer.name] = self.down_bytes.get(peer.name, 0) + nbytes
        meta: dict[str, Any] = {"i": task.id, "a": left, "b": right, "f": task.flops}
        if self._options.wire == "int8" and self._options.error_feedback and job.product.swapped:  # a weight's
            meta["e"] = [job.name, block.row0, block.row1, block.col0, block.col1]
        await self._message(peer, tensors, drop, meta)

    async def _prefetch(self, peer: Peer, ahead: Prefetch) -> None:
        if not any(name == ahead.job for name, _, _ in itertools.islice(self._upcoming, LOOK_AHEAD + 1)):
            return  # too late: its product has begun
        if peer.held.find(ahead.view.key, ahead.region) is not None:
            return
        size = FLOAT * _count(ahead.region)
        if peer.resident_bytes + peer.held.bytes + size > peer.memory_bytes:
            return
        number, drop = peer.held.add(ahead.view.key, ahead.region, size)
        if not number:
            return
        part = ahead.view.cut(ahead.region)
        nbytes = self._codec.nbytes(_count(ahead.region))
        now = self._node.now()
        peer.down_free_s = max(now, peer.down_free_s) + 8 * nbytes / peer.rates.downlink_bps
        peer.unasked_bytes += nbytes
        if peer.unasked_from_s is None:
            peer.unasked_from_s = now
        self.down_bytes[peer.name] = self.down_bytes.get(peer.name, 0) + nbytes
        await self._message(peer, await self._encoded([part]), drop, {"s": number})

    async def _encoded(self, pieces: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._options.wire == "fp32" or not pieces:
            return pieces
        flops = float(4 * FLOAT * sum(t.numel() for t in pieces))
        encode = self._codec.encode
        return await self._node.compute(lambda: [e for t in pieces for e in encode(t)], flops=flops, label="encode")

    async def _message(self, peer: Peer, tensors: list[torch.Tensor], drop: list[int], meta: dict[str, Any]) -> None:
        if peer.clear:
            peer.clear = False
            meta["c"] = True
        if drop:
            meta["d"] = drop
        self.messages += 1
        try:
            await self._node.send(peer.name, TASK, tensors, **meta)
        except PeerLost:
            pass  # the membership tells, and what was under way is given to others then

    def _operand(self, peer: Peer, view: View, region: Region, pieces: list[torch.Tensor], drop: list[int], *,
                 shared: bool) -> list[int]:  # fmt: skip
        """How the device comes to an operand: [id if it has it, id to keep it under, transposed, which part of it]."""
        found = peer.held.find(view.key, region)
        if found is not None:
            number, held = found
            self.saved_bytes += self._codec.nbytes(_count(region))
            if held == region:
                return [number, 0, int(view.transposed)]
            b0, r0, c0 = held[::2]
            part = region[0] - b0, region[1] - b0, region[2] - r0, region[3] - r0, region[4] - c0, region[5] - c0
            return [number, 0, int(view.transposed), *part]
        pieces.append(view.cut(region))
        keep = 0
        # other pieces of the block need it; or later products of the step, and nothing but the whole of it helps them
        if shared or (view.uses > 1 and view.whole(region)):
            keep, dropped = peer.held.add(view.key, region, FLOAT * _count(region))
            drop += dropped
        return [0, keep, int(view.transposed)]

    # -- results -----------------------------------------------------------------------

    async def _results(self) -> None:
        recv = self._node.recv
        while True:
            self._result(await recv(ANY, RESULT))

    def _result(self, message: Message) -> None:
        self.messages += 1
        task = self._tasks.pop(message.meta["i"], None)
        peer = self._peers.get(message.source)
        if task is None or peer is None or task.generation != message.generation:
            return
        peer.tasks.pop(task.id, None)
        peer.resident_bytes -= task.resident_bytes
        self._runnable[peer.name] = peer
        self._wake.set()
        self.up_bytes[peer.name] = self.up_bytes.get(peer.name, 0) + task.up_bytes
        received_s, began_s, ended_s = message.meta["t"]
        if task.expected_s > 0:  # what the expectation does not know of, such as the server's own work, makes all late
            ratio = (self._node.now() - task.sent_s) / task.expected_s
            self._lateness = max(1.0, 0.9 * self._lateness + 0.1 * ratio)
        peer.meter.note(task, peer.rates, received_s, began_s, ended_s, message.sent_s, message.received_s)
        if not peer.tasks:
            peer.forget_clocks()
        if peer.suspect and all(t.deadline_s > self._node.now() for t in peer.tasks.values()):
            peer.suspect = False
            self._replan()
        self._recoveries.heard(peer.name)
        if task.satisfied:
            self.duplicates += 1
            return
        part = self._shaped(task, message.tensors)
        if part is None:
            shapes = [list(t.shape) for t in message.tensors]
            self._fault(peer.name, f"a result of shape {shapes} for a block of {task.block.rows} × "
                                   f"{task.block.columns} in {task.job.name}")  # fmt: skip
            task.tries += 1
            self._reassign([task], avoid={peer.name})
            return
        self._accept(task, part)

    def _accept(self, task: Task, part: torch.Tensor) -> None:
        if task.satisfied:
            return
        job = task.job
        job.parts.append((task, part))
        if job.complete(task):
            job.finished.put_nowait(job)
        self._recoveries.settle()

    def _shaped(self, task: Task, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """The block, or None when the tensors can't be it."""
        b = task.block
        shape = (b.products, b.rows, b.columns)
        if task.job.a.flat:
            shape = shape[1:]
        if not tensors or tuple(tensors[0].shape) != shape:
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

    async def _watch(self) -> None:
        while True:
            while self._deadlines and self._deadlines[0][1] not in self._tasks:
                heapq.heappop(self._deadlines)
            if not self._deadlines:
                self._watch_again.clear()
                await self._watch_again.wait()
                continue
            left = self._deadlines[0][0] - self._node.now()
            if left > 0:
                await self._node.sleep(left)
                continue
            task = self._tasks[heapq.heappop(self._deadlines)[1]]
            self._overdue(task)

    def _overdue(self, task: Task) -> None:
        peer = self._peers.get(task.device)
        if peer is None or task.id not in peer.tasks:
            return
        usable = self._usable()
        others = [p for p in usable if p is not peer]
        as_late = sum(1 for p in others if p.tasks and next(iter(p.tasks.values())).sent_s <= task.sent_s)
        second = task.parent is not None  # it was taken over once: passing it on and on helps nobody
        # no one to help, or everyone is as late (the server's link, say): go on waiting
        if second or not others or 2 * as_late >= len(usable):
            task.deadline_s = self._node.now() + max(OVERDUE_S, 2 * (task.deadline_s - task.sent_s))
            heapq.heappush(self._deadlines, (task.deadline_s, task.id))
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
        for task in peer.tasks.values():
            self._tasks.pop(task.id, None)
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


def _count(region: Region) -> int:
    b0, b1, r0, r1, c0, c1 = region
    return (b1 - b0) * (r1 - r0) * (c1 - c0)


def _product_of(left: torch.Tensor, left_turned: bool, right: torch.Tensor, right_turned: bool):
    def run() -> torch.Tensor:
        return (left.mT if left_turned else left) @ (right.mT if right_turned else right)

    return run
