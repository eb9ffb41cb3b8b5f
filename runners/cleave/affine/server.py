"""The server's part: it keeps the model and the step's activations, and does what needs neither much work nor weights:
embedding, the head's sums over shares, sums of gradients, optimizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import torch

from runners.cleave.affine.duty import Duty, Redone
from runners.cleave.affine.flow import Flow
from runners.cleave.affine.group import Group
from runners.cleave.affine.lane import Lane
from runners.cleave.affine.planned import planned
from runners.cleave.affine.protocol import BACKWARD, FORWARD, TO_SERVER, WEIGHTS
from runners.cleave.affine.slabs import slab_edges
from runners.cleave.hollow import hollow
from runners.cleave.options import CleaveOptions
from runners.cleave.precision import Codec
from runners.cleave.recoveries import Recoveries
from runners.costs import FLOAT, FLOPS_PER_BYTE, layer_costs
from runners.data import Batches
from runners.flat import FlatLayers
from runners.models.gpt import build_layer, layer_count
from testbed.errors import InputError
from testbed.runtime import ANY, MembershipEvent, Message, Node, Plan

SET_UP_S = 0.5  # building the model, before the first step
PIECE_BYTES = 1 << 20  # of weights and gradients in one message, at least
MOST_PIECES = 32  # a part's gradient comes in, so that summing keeps up, and helpers can share out what was lost


class _Part:
    """A part of the model in this step."""

    def __init__(self, group: Group, wire_bytes: float):
        self.group = group
        count = min(MOST_PIECES, max(1, int(group.size * wire_bytes / PIECE_BYTES)), group.size)
        edges = [group.size * i // count for i in range(count + 1)]
        self.spans = list(zip(edges, edges[1:]))
        self.weights: list[list[torch.Tensor]] = []  # encoded, by piece
        self.gradient: torch.Tensor | None = None


class AffineServer:
    """One training job, seen from the server."""

    def __init__(self, node: Node, plan: Plan, options: CleaveOptions):
        self._node, self._plan, self._options = node, plan, options
        self._model, self._training = plan.model, plan.training
        self._codec = Codec(options.wire)
        self._batches = Batches(plan.model, plan.training)
        self._tokens = plan.training.batch * plan.model.sequence
        self._costs = layer_costs(plan.model)
        self._lanes: dict[str, Lane] = {}
        self._devices = {d.name: d for d in plan.cluster.devices}
        self._changed = True
        self._joined = asyncio.Event()
        self._jobs: asyncio.Queue[tuple[Callable, float, str, Callable]] = asyncio.Queue()
        self._recoveries = Recoveries(node)
        self._orphans: list[tuple[int, list[int], list[int], Redone]] = []
        self._flow: Flow | None = None
        self._parts: list[_Part] = []
        self._step = 0
        self._failed: asyncio.Future = asyncio.get_running_loop().create_future()
        self._done: asyncio.Future | None = None

    async def run(self, steps: int | None = None) -> None:
        """Train; returns when the last step is complete."""
        node = self._node
        await node.compute(self._build, flops=SET_UP_S * node.device.flops, label="set up")
        for name, generation in node.membership.alive.items():
            self._add(name, generation)
        steps = self._training.steps if steps is None else steps
        parts = [self._train(steps), self._members(), self._results(), self._work()]
        tasks = [asyncio.create_task(part) for part in parts]
        for task in tasks[1:]:
            task.add_done_callback(self._ended)
        try:
            await asyncio.wait([tasks[0], self._failed], return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                self._failed.result()
            tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            for lane in self._lanes.values():
                lane.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._failed.cancel()

    def _ended(self, task: asyncio.Task) -> None:
        if not task.cancelled() and task.exception() is not None and not self._failed.done():
            self._failed.set_exception(task.exception())

    def _build(self) -> None:
        self._layers = {i: build_layer(self._model, i, self._training.seed) for i in range(layer_count(self._model))}
        self._hollow = next(self._layers[0].parameters()).is_meta
        self._flat = {} if self._hollow else {
            i: FlatLayers({i: layer}, self._training.optimizer) for i, layer in self._layers.items()
        }  # fmt: skip

    # -- a step --------------------------------------------------------------------------

    async def _train(self, steps: int) -> None:
        for step in range(steps):
            self._step = step
            await self._cut()
            await self._one_step(step)

    async def _cut(self) -> None:
        """Have a plan for the devices that are there; wait where there are none, or too few."""
        while self._changed or not self._lanes:
            self._changed = False
            try:
                if self._lanes:
                    self._affine = planned(self._plan.cluster, self._model, self._training.batch, self._options,
                                           tuple(self._lanes))  # fmt: skip
                    self._cut_into(self._affine)
                    continue
                why = "no device is left"
            except InputError as error:
                why = error.message
            self._node.record("warning", text=f"{why}: step {self._step} waits")
            self._joined.clear()
            await self._joined.wait()

    def _cut_into(self, plan: Any) -> None:
        self._parts = [_Part(Group(self._model, units), self._codec.nbytes(64) / 64) for units in plan.parts]
        self._edges = slab_edges(self._model.sequence, plan.slab)
        self._of_layer: dict[int, set[int]] = {}  # layer -> the parts that have some of it
        for number, units in enumerate(plan.parts):
            for unit in units:
                self._of_layer.setdefault(unit.layer, set()).add(number)

    async def _one_step(self, step: int) -> None:
        node, plan = self._node, self._affine
        start = node.now()
        self._done = asyncio.get_running_loop().create_future()
        self._left = {layer: set(parts) for layer, parts in self._of_layer.items()}
        self._embedding_left = self._training.batch * (len(self._edges) - 1)
        self._updates = len(self._costs)
        self._loss = 0.0
        self._sent_up: dict[str, int] = {}
        self._gone_down: dict[str, int] = {}
        self._messages = 0
        for lane in self._lanes.values():
            lane.begin_step()
        flow = self._flow = Flow(
            plan.groups, len(plan.parts) - plan.groups, self._training.batch, len(self._edges) - 1,
            [part.spans for part in self._parts], self._score, self._sum, self._embed_back,
        )  # fmt: skip
        for part in self._parts:
            part.weights, part.gradient = [], None
        for number, part in enumerate(self._parts):
            part.weights = await node.compute(
                self._encode_weights, part, flops=self._moved(part.group.size, 12), label="weights"
            )
            for share in plan.shares[number]:
                lane = self._lanes.get(share.device)
                pieces = range(len(part.spans))
                if lane is not None:
                    self._send_weights(lane, number)
                    flow.assign(number, lane, share.samples, pieces)
                else:  # it was lost a moment ago
                    self._take_over(number, list(share.samples), list(pieces), Redone({}, False))
        slabs = await node.compute(
            self._embed, step, flops=self._moved(self._tokens * self._model.d_model, 12, always=True), label="embedding"
        )
        for j, c, tensors in slabs:
            flow.put_input(0, j, c, tensors)
        del slabs
        await self._done
        self._flow = None
        self._orphans = []
        self._report(step, start)
        self._recoveries.settle()

    def _encode_weights(self, part: _Part) -> list[list[torch.Tensor]]:
        if self._hollow:
            return [self._codec.encode(hollow((b - a,))) for a, b in part.spans]
        flat = part.group.gather(self._layers)
        return [self._codec.encode(flat[a:b]) for a, b in part.spans]

    def _send_weights(self, lane: Lane, number: int) -> None:
        part = self._parts[number]
        if number in lane.groups:
            return
        lane.groups.add(number)
        lane.room_bytes -= 2 * FLOAT * part.group.size
        slab = self._affine.slab
        units = [[u.kind, u.layer, u.first, u.end, u.parameters, u.matrix] for u in part.group.units]
        for i, ((a, _), tensors) in enumerate(zip(part.spans, part.weights)):
            first = {"u": units} if i == 0 else {}
            lane.post(WEIGHTS, tensors, g=number, s=self._step, t=slab, i=i, n=len(part.spans), a=a, **first)

    def _embed(self, step: int) -> list[tuple[int, int, list[torch.Tensor]]]:
        """(sample, slab, the first group's input), in the order in which they leave: everyone's first samples first."""
        spans = list(enumerate(zip(self._edges, self._edges[1:])))
        samples = range(self._training.batch)
        if self._hollow:
            examples = [(c, self._codec.encode(hollow((b - a, self._model.d_model)))) for c, (a, b) in spans]
            return [(j, c, example) for j in samples for c, example in examples]
        tokens, _ = self._batches.batch(step)
        x = self._x = self._layers[0](tokens)
        self._dx = torch.zeros_like(x)
        return [(j, c, self._codec.encode(x.detach()[j, a:b].clone())) for j in samples for c, (a, b) in spans]

    # -- the server's own work -------------------------------------------------------------

    async def _work(self) -> None:
        """One thing after the other, so that results keep their order."""
        while True:
            fn, flops, label, then = await self._jobs.get()
            then(await self._node.compute(fn, flops=flops, label=label))

    def _job(self, fn: Callable, flops: float, label: str, then: Callable = lambda result: None) -> None:
        self._jobs.put_nowait((fn, flops, label, then))

    def _moved(self, numbers: float, nbytes: int, *, always: bool = False) -> float:
        """FLOPs that take as long as so many numbers cross the memory; without conversion nothing does."""
        return 0.0 if self._codec.wire == "fp32" and not always else float(FLOPS_PER_BYTE * nbytes * numbers)

    def _score(self, j: int, c: int) -> None:
        flow = self._flow
        scores = [t for _, t in sorted(flow.scores[j][c].items())]

        def combine() -> tuple[torch.Tensor, float]:
            if self._hollow:
                return hollow((scores[0].shape[1],)), 0.0
            both = torch.stack(scores)
            total = both[:, 0].logsumexp(dim=0)
            return total, float((total - both[:, 1].sum(dim=0)).double().sum())

        def then(result: tuple[torch.Tensor, float]) -> None:
            self._loss += result[1]
            flow.put_total(j, c, result[0])

        self._job(combine, 32.0 * sum(t.numel() for t in scores), "scores", then)

    def _sum(self, j: int, c: int) -> None:
        flow = self._flow
        partial = [t for _, t in sorted(flow.partial[j][c].items())]
        if len(partial) == 1:
            flow.put_gradient(flow.groups, j, c, partial[0])
            return

        def add() -> list[torch.Tensor]:
            total = self._codec.decode(partial[0])
            if not self._hollow:
                for t in partial[1:]:
                    total = total + self._codec.decode(t)
            return self._codec.encode(total)

        numbers = len(partial) * partial[0][0].numel()
        self._job(
            add, self._moved(numbers, 12, always=True), "head", lambda out: flow.put_gradient(flow.groups, j, c, out)
        )

    def _embed_back(self, j: int, c: int, tensors: list[torch.Tensor]) -> None:
        a, b = self._edges[c], self._edges[c + 1]

        def add() -> None:
            if not self._hollow:
                self._dx[j, a:b] = self._codec.decode(tensors)

        def then(_: None) -> None:
            self._embedding_left -= 1
            if not self._embedding_left:
                self._job(self._embedding_update, self._costs[0].update_flops, "update", self._updated)

        self._job(add, self._moved(tensors[0].numel(), 8, always=True), "embedding", then)

    def _embedding_update(self) -> None:
        if not self._hollow:
            self._x.backward(self._dx / self._tokens)
            self._x = None
            self._flat[0].update()

    def _updated(self, _: Any) -> None:
        self._updates -= 1
        if not self._updates:
            self._done.set_result(None)

    def _add_piece(self, duty: Duty, piece: int, tensors: list[torch.Tensor]) -> None:
        part = self._parts[duty.group]
        a, b = part.spans[piece]
        if part.gradient is None and not self._hollow:
            part.gradient = torch.zeros(part.group.size)
        complete = self._flow.piece_done(duty, piece)

        def add() -> None:
            if not self._hollow:
                part.gradient[a:b] += self._codec.decode(tensors)

        self._job(add, self._moved(b - a, 14, always=True), "gradient",
                  lambda _: self._complete(duty.group) if complete else None)  # fmt: skip

    def _complete(self, number: int) -> None:
        """A part's gradient is all there: its layers are updated, once their other parts' are."""
        part = self._parts[number]
        for layer in sorted({u.layer for u in part.group.units}):
            left = self._left[layer]
            left.discard(number)
            if not left:
                flops = self._costs[layer].update_flops + self._moved(self._costs[layer].parameters, 12, always=True)
                self._job(lambda layer=layer: self._update(layer), flops, "update", self._updated)

    def _update(self, layer: int) -> None:
        if self._hollow:
            return
        for number in sorted(self._of_layer[layer]):
            part = self._parts[number]
            part.group.add_gradient(part.gradient / self._tokens, self._layers, layer)
        self._flat[layer].update()

    # -- results ---------------------------------------------------------------------------

    async def _results(self) -> None:
        while True:
            self._result(await self._node.recv(ANY, TO_SERVER))

    def _result(self, message: Message) -> None:
        meta, name = message.meta, message.source
        lane, flow = self._lanes.get(name), self._flow
        if lane is None or lane.generation != message.generation or flow is None:
            return
        lane.up_bytes += sum(t.nbytes for t in message.tensors)
        self._messages += 1
        self._recoveries.heard(name)
        duty = flow.duties.get(meta["u"])
        if duty is None:
            return
        if meta["k"] == FORWARD:
            flow.forward_done(duty, meta["j"], meta["c"], message.tensors)
        elif meta["k"] == BACKWARD:
            flow.backward_done(duty, meta["j"], meta["c"], message.tensors)
        else:
            self._add_piece(duty, meta["p"], message.tensors)
        self._recoveries.settle()

    # -- membership --------------------------------------------------------------------------

    async def _members(self) -> None:
        while True:
            event = await self._node.membership.next_event()
            (self._left_us if event.kind == "left" else self._join)(event)

    def _add(self, name: str, generation: int) -> None:
        device = self._devices[name]
        self._lanes[name] = Lane(self._node, name, generation, device.memory_bytes, device.link.uplink_bps, self._ended)
        self._changed = True
        self._joined.set()

    def _left_us(self, event: MembershipEvent) -> None:
        lane = self._lanes.get(event.name)
        if lane is None or lane.generation > event.generation:
            return
        del self._lanes[event.name]
        lane.close()
        self._count(lane)
        self._changed = True
        lost = self._flow.lost(lane) if self._flow is not None else []
        waits = self._recoveries.nobody = not self._lanes
        if waits:
            self._node.record("warning", text=f"no device is left: step {self._step} waits, with all it has so far")
        again = []
        for duty in lost:
            redone = duty.redone = Redone(dict(duty.done), duty.handing)
            again.append(redone)
            self._take_over(duty.group, list(duty.samples), sorted(duty.pieces), redone)
        self._recoveries.lost(event, self._step, again, waits=waits)
        self._plan_event(f"{event.name} is lost: {sum(len(d.samples) for d in lost)} samples' parts go to others")

    def _join(self, event: MembershipEvent) -> None:
        if event.name in self._lanes:
            self._left_us(MembershipEvent("left", event.name, event.generation - 1, event.at_s))
        self._add(event.name, event.generation)
        self._recoveries.nobody = False
        self._recoveries.joined(event, self._step)
        orphans, self._orphans = self._orphans, []
        for orphan in orphans:
            self._take_over(*orphan)
        self._recoveries.settle()
        self._plan_event(f"{event.name} joins: it gets work from the next step on, or when another is lost")

    def _take_over(self, number: int, samples: list[int], pieces: list[int], redone: Redone) -> None:
        """Give a lost device's samples, or the pieces of their gradient that it still owed, to others.

        To those who have the weights if there are any: added to what they do, or, when they are past that, pieces of
        the gradient shared out among them; else to those with least to do, with the weights.
        """
        flow = self._flow
        if not self._lanes:
            self._orphans.append((number, samples, pieces, redone))
            return
        every = len(pieces) == len(self._parts[number].spans)
        unfinished = [d for d in flow.duties.values() if d.group == number and not d.handing
                      and len(d.pieces) == len(self._parts[number].spans)]  # fmt: skip
        if every and unfinished:
            for j in samples:
                duty = min(unfinished, key=lambda d: (d.left / d.lane.speed, d.id))
                flow.extend(duty, [j])
                if duty not in redone.duties:
                    redone.duties.append(duty)
            return
        busy: dict[str, int] = {}
        for duty in flow.duties.values():
            if duty.pieces:
                busy[duty.lane.name] = busy.get(duty.lane.name, 0) + 1
        lanes = sorted(self._lanes.values(), key=lambda lane: (busy.get(lane.name, 0), -lane.speed, lane.name))
        holders = [lane for lane in lanes if number in lane.groups][: len(pieces)]
        if holders:
            for k, lane in enumerate(holders):
                redone.duties.append(flow.assign(number, lane, samples, pieces[k :: len(holders)]))
            return
        needed = 2 * FLOAT * self._parts[number].group.size
        able = [lane for lane in lanes if lane.room_bytes >= needed]
        able = able or [max(lanes, key=lambda lane: lane.room_bytes)]
        idle = [lane for lane in able if lane.name not in busy]
        able = (idle or able[:1])[: len(samples)]
        for k, lane in enumerate(able):
            self._send_weights(lane, number)
            redone.duties.append(flow.assign(number, lane, samples[k :: len(able)], pieces))

    def _plan_event(self, note: str) -> None:
        self._node.record("plan", devices=sorted(self._lanes), note=note)

    # -- books -------------------------------------------------------------------------------

    def _count(self, lane: Lane) -> None:
        if lane.down_bytes:
            self._gone_down[lane.name] = self._gone_down.get(lane.name, 0) + lane.down_bytes
        if lane.up_bytes:
            self._sent_up[lane.name] = self._sent_up.get(lane.name, 0) + lane.up_bytes

    def _report(self, step: int, start: float) -> None:
        for lane in self._lanes.values():
            self._count(lane)
        down, up = self._gone_down, self._sent_up
        loss = None if self._hollow else self._loss / self._tokens
        self._node.record("step", step=step, loss=loss, start=start, end=self._node.now(),
                          samples=self._training.batch, attempt=1, devices=len(up))  # fmt: skip
        self._node.record("traffic", step=step, server_out=sum(down.values()), server_in=sum(up.values()), saved=0,
                          duplicates=0, messages=self._messages, down=dict(down), up=dict(up))  # fmt: skip
