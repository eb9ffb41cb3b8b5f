"""A device's part of the pipeline: obey the coordinator, train a stage, keep what a rollback may need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from runners.data import Batches, micro_batch_sizes
from runners.messaging import Assembly, Outbox, cancel, chunks
from runners.pipeline import protocol as p
from runners.pipeline.checkpoint import Uploader
from runners.pipeline.options import parse_options
from runners.pipeline.stage import Stage
from runners.schedules import SCHEDULES, Op
from runners.state import HERE, SEED, StateId, VersionStore
from testbed.cluster.model import SERVER
from testbed.runtime import Message, Node, PeerLost, Plan


@dataclass
class Kept:
    """What outlives a lost lease when the process does: states, and the notes of the steps that made them."""

    store: VersionStore = field(default_factory=VersionStore)
    notes: dict[StateId, p.Note] = field(default_factory=dict)


@dataclass
class Epoch:
    """A START message. stages: (device, first, end) in order; sources: of this device's layers."""

    number: int
    stages: list[tuple[str, int, int]]
    state: StateId
    sources: dict[int, str]
    gives: list[tuple[str, list[int]]]
    complete: StateId
    uploading: StateId | None
    paused: bool = False  # the first stage begins no further step

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Epoch:
        return cls(
            number=meta["epoch"], stages=[tuple(s) for s in meta["stages"]], state=StateId(*meta["state"]),
            sources=dict(map(tuple, meta["sources"])), gives=[tuple(g) for g in meta["gives"]],
            complete=StateId(*meta["complete"]), uploading=p.state_from_wire(meta["uploading"]),
        )  # fmt: skip

    def position(self, device: str) -> int | None:
        return next((i for i, (name, _, _) in enumerate(self.stages) if name == device), None)


class Worker:
    """One life of a device's worker."""

    def __init__(self, node: Node, plan: Plan, kept: Kept):
        self.node, self.kept = node, kept
        self.model, self.training = plan.model, plan.training
        self.options = parse_options(plan.training.options)
        self.batches = Batches(plan.model, plan.training)
        self.sizes = micro_batch_sizes(plan.training.batch, plan.training.micro_batches)
        self.life = repr(node.now())  # tells this life from the device's earlier ones
        self.stage: Stage | None = None
        self.epoch: Epoch | None = None
        self.data: Outbox | None = None  # to other stages; replaced each epoch
        self.tasks: list[asyncio.Task] = []  # of the epoch
        self.drains: list[asyncio.Task] = []

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            PeerLost: this device's lease ran out.
        """
        self.reports, self.uploader = Outbox(self.node), Uploader(self.node)
        self.crashed: asyncio.Future = asyncio.get_running_loop().create_future()
        self._report(p.HELLO, **self._holdings())
        control = asyncio.create_task(self._control(), name="control")
        try:
            ends = [control, self.crashed, self.reports.failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                if end.done():
                    end.result()
        finally:
            await cancel([control])
            await self._stop_epoch()
            await cancel(self.drains)
            await self.uploader.stop()
            await self.reports.close()
            if self.crashed.done():
                self.crashed.exception()  # seen
            self._shelve()

    # -- control ----------------------------------------------------------------------

    async def _control(self) -> None:
        while True:
            message = await self.node.recv(SERVER, p.CONTROL)
            meta = message.meta
            if meta["life"] != self.life:
                continue
            kind = meta["kind"]
            if kind == p.HALT:
                await self._stop_epoch()
                await self.node.compute(self._shelve, flops=0, label="copy")
                self._report(p.HELD, epoch=meta["epoch"], **self._holdings())
            elif kind == p.START:
                await self._begin(Epoch.from_meta(meta))
            elif kind == p.PAUSE and self.epoch and meta["epoch"] == self.epoch.number:
                self.epoch.paused = True
            elif kind == p.CHECKPOINTED:
                self._checkpoint_over(StateId(*meta["state"]), complete=True)
            elif kind == p.ABANDONED:
                state = StateId(*meta["state"])
                if self.uploader.state == state:
                    await self.uploader.stop()
                self._checkpoint_over(state, complete=False)

    def _checkpoint_over(self, state: StateId, *, complete: bool) -> None:
        if self.epoch is None:
            return
        if complete:
            self.epoch.complete = max(self.epoch.complete, state)
        if self.epoch.uploading == state:
            self.epoch.uploading = None

    def _report(self, kind: str, **fields: Any) -> None:
        self.reports.post(SERVER, p.REPORT, kind=kind, life=self.life, **fields)

    def _holdings(self) -> dict[str, Any]:
        return {
            "held": p.holdings_to_wire(self.kept.store.holdings()),
            "uploading": p.holdings_to_wire(self.uploader.remaining()),
            "notes": list(self.kept.notes.values()),
        }

    def _watch(self, task: asyncio.Task) -> asyncio.Task:
        """A neighbour's loss ends the task quietly (the coordinator calls); other errors end this life."""

        def ended(done: asyncio.Task) -> None:
            error = None if done.cancelled() else done.exception()
            lost_neighbour = isinstance(error, PeerLost) and error.peer not in (self.node.name, SERVER)
            if error is not None and not lost_neighbour and not self.crashed.done():
                self.crashed.set_exception(error)

        task.add_done_callback(ended)
        return task

    # -- epochs ----------------------------------------------------------------------

    async def _begin(self, epoch: Epoch) -> None:
        await cancel(self.drains)
        self.drains = [self._watch(asyncio.create_task(self._drain(*stale))) for stale in self._stale()]
        self.epoch = epoch
        if epoch.uploading != self.uploader.state:
            await self.uploader.stop()
        self.data = Outbox(self.node)
        self.data.failed.add_done_callback(self._data_failed)
        self.tasks.append(self._watch(asyncio.create_task(self._train(epoch), name=f"epoch {epoch.number}")))

    def _data_failed(self, failed: asyncio.Future) -> None:
        if not failed.cancelled() and failed.exception() is not None and not self.crashed.done():
            self.crashed.set_exception(failed.exception())

    async def _stop_epoch(self) -> None:
        await cancel(self.tasks)
        self.tasks = []
        if self.data is not None:
            await self.data.close()
            self.data = None

    def _shelve(self) -> None:
        """Put the live stage, if it is in a known state, among the kept states."""
        if self.stage is not None:
            self.kept.store.put(self.stage.state, self.stage.pack())
        self.stage = None

    def _stale(self) -> list[tuple[str, str]]:
        """(source, tag) under which messages of the epoch that ends may still come."""
        if self.epoch is None:
            return []
        number, here = self.epoch.number, self.epoch.position(self.node.name)
        stale = [
            (giver, p.state_tag(number)) for giver in sorted({*self.epoch.sources.values()} - {HERE, SEED})
        ]
        if here is not None and here > 0:
            stale.append((self.epoch.stages[here - 1][0], p.activation_tag(number)))
        if here is not None and here < len(self.epoch.stages) - 1:
            stale.append((self.epoch.stages[here + 1][0], p.gradient_tag(number)))
        return stale

    async def _drain(self, source: str, tag: str) -> None:
        """Take and drop late messages, which would otherwise stay in memory."""
        while True:
            await self.node.recv(source, tag)

    async def _train(self, epoch: Epoch) -> None:
        for to, layers in epoch.gives:
            self._give(epoch, to, layers)
        here = epoch.position(self.node.name)
        if here is not None:
            _, first, end = epoch.stages[here]
            self.stage = await self._build(epoch, first, end)
        # layers that move away are kept until the first update, by when whoever takes them has them
        self._forget(epoch, None, epoch.state)
        if here is None:
            return
        self._report(p.READY, epoch=epoch.number, stage=here)
        for step in range(epoch.state.version, self.training.steps):
            if here == 0 and epoch.paused:
                self._report(p.PAUSED, epoch=epoch.number, version=step)
                return
            await self._step(epoch, here, step)

    async def _build(self, epoch: Epoch, first: int, end: int) -> Stage:
        states, options = await self._gather(epoch), self.options

        def build() -> Stage:
            return Stage(
                self.model, self.training, first, end, epoch.state, states,
                recompute=options.recompute, wire=options.wire,
            )  # fmt: skip

        return await self.node.compute(build, flops=0, label="build")

    def _give(self, epoch: Epoch, to: str, layers: list[int]) -> None:
        for layer in layers:
            flat = self.kept.store.get(epoch.state, layer)
            if flat is None:
                raise RuntimeError(
                    f"{self.node.name} was to give layer {layer} of {epoch.state} and has it not"
                )
            parts = chunks(flat)
            for index, part in enumerate(parts):
                self.data.post(
                    to, p.state_tag(epoch.number), [part], layer=layer, index=index, count=len(parts)
                )

    async def _gather(self, epoch: Epoch) -> dict[int, torch.Tensor]:
        """The flat state of each layer of this stage; those that start from the seed are absent."""
        states: dict[int, torch.Tensor] = {}
        for source in sorted({*epoch.sources.values()} - {SEED}):
            layers = {i for i, s in epoch.sources.items() if s == source}
            if source == HERE:
                states.update({i: self.kept.store.get(epoch.state, i) for i in layers})
                continue
            assembly = Assembly()
            while layers:
                message = await self.node.recv(source, p.state_tag(epoch.number))
                meta = message.meta
                whole = assembly.add(meta["layer"], meta["index"], meta["count"], message.tensors[0])
                if whole is not None:
                    states[meta["layer"]] = whole
                    layers.discard(meta["layer"])
        return states

    def _forget(
        self, epoch: Epoch, layers: Iterable[int] | None = None, previous: StateId | None = None
    ) -> None:
        """Keep only the states that a rollback may ask for; without local copies, none."""
        wanted = {previous, epoch.complete, epoch.uploading} if self.options.local_copies else set()
        self.kept.store.keep(wanted, layers)
        live = self.stage.state if self.stage else None
        self.kept.notes = {s: n for s, n in self.kept.notes.items() if s == live or self.kept.store.has(s)}

    # -- one step ----------------------------------------------------------------------

    async def _step(self, epoch: Epoch, here: int, step: int) -> None:
        node, stage, options = self.node, self.stage, self.options
        began = node.now()
        make = SCHEDULES[options.schedule]
        program = make(here, len(epoch.stages), self.training.micro_batches, options.recompute)
        before = epoch.stages[here - 1][0] if here > 0 else None
        after = epoch.stages[here + 1][0] if here < len(epoch.stages) - 1 else None
        text = None
        if stage.is_first or stage.is_last:
            text = await node.compute(self.batches.micro_batches, step, flops=0, label="load")
        mark = stage.is_first and self._checkpoint_due(epoch, step + 1)
        losses: list[torch.Tensor] = []
        x = gradient = out = copy = None
        for instruction in program:
            m = instruction.micro_batch
            where = {"step": step, "micro_batch": m}
            match instruction.op:
                case Op.RECV_ACTIVATION:
                    message = self._expected(
                        await node.recv(before, p.activation_tag(epoch.number)), epoch, where
                    )
                    x, mark = message.tensors[0], message.meta["checkpoint"]
                case Op.FORWARD:
                    tokens = text[m][0] if stage.is_first else x
                    targets = text[m][1] if stage.is_last else None
                    flops = self.sizes[m] * stage.forward_flops
                    out = await node.compute(
                        stage.forward, m, tokens, targets, flops=flops, label=f"forward {m}"
                    )
                    if stage.is_last:
                        losses.append(out)
                case Op.SEND_ACTIVATION:
                    self.data.post(after, p.activation_tag(epoch.number), [out], checkpoint=mark, **where)
                case Op.RECV_GRADIENT:
                    message = self._expected(
                        await node.recv(after, p.gradient_tag(epoch.number)), epoch, where
                    )
                    gradient = message.tensors[0]
                case Op.RECOMPUTE:
                    flops = self.sizes[m] * stage.forward_flops
                    await node.compute(stage.recompute, m, flops=flops, label=f"recompute {m}")
                case Op.BACKWARD:
                    flops = self.sizes[m] * stage.backward_flops
                    out = await node.compute(stage.backward, m, gradient, flops=flops, label=f"backward {m}")
                case Op.SEND_GRADIENT:
                    self.data.post(before, p.gradient_tag(epoch.number), [out], **where)
                case Op.UPDATE:
                    copy = await self._update(epoch, StateId(step + 1, epoch.number), mark)
        note = {"step": step, "epoch": epoch.number, "stage": here, "began": began, "ended": node.now()}
        if stage.is_last:
            note["loss"] = _total(losses)
        self.kept.notes[stage.state] = note
        self._report(p.DONE, **note)
        if copy is not None:  # after the report, so that no checkpoint is ahead of the losses that led to it
            self.uploader.start(stage.state, copy)
            self._watch(self.uploader.task)

    def _expected(self, message: Message, epoch: Epoch, where: dict[str, int]) -> Message:
        """The message, if it is the next one; when some are missing, the sender was cut off for a while."""
        if all(message.meta[key] == value for key, value in where.items()):
            return message
        self._report(p.STUCK, epoch=epoch.number, peer=message.source, what=message.tag, missing=where)
        raise PeerLost(message.source, f"{message.tag}: {where} is missing")

    def _checkpoint_due(self, epoch: Epoch, version: int) -> bool:
        every = self.options.checkpoint_every
        due = every and version % every == 0 and version < self.training.steps
        return bool(due and epoch.uploading is None and version > epoch.complete.version)

    async def _update(self, epoch: Epoch, result: StateId, mark: bool) -> dict[int, torch.Tensor] | None:
        """Apply the optimizer; a copy of the new state if the step is marked for a checkpoint."""
        stage, previous = self.stage, self.stage.state
        span = range(stage.first, stage.end)
        self._forget(
            epoch, span, previous
        )  # every stage has got to `previous`, or this step would not have ended
        if self.options.local_copies and not self.kept.store.has(previous, span):
            self.kept.store.put(previous, await self.node.compute(stage.pack, flops=0, label="copy"))

        def apply() -> dict[int, torch.Tensor] | None:
            stage.update(result)
            return stage.pack() if mark else None

        self.stage = None  # an update that is cut short leaves no state to keep
        copy = await self.node.compute(apply, flops=stage.update_flops, label="update")
        self.stage = stage
        if copy is not None:
            epoch.uploading = result
            if self.options.local_copies:
                self.kept.store.put(result, copy)
        return copy


def _total(losses: list[torch.Tensor]) -> float | None:
    """The step's mean loss; None for tensors without data (simulation)."""
    return None if losses[0].is_meta else float(sum(loss.double() for loss in losses))
