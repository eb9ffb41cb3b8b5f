"""A device's part: obey the coordinator, train a part of the model, keep what a rollback may need."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from runners.elastic import protocol as p
from runners.elastic.checkpoint import Uploader
from runners.elastic.memory import Memory, Part
from runners.elastic.strategy import Member, Steps, Strategy
from runners.messaging import Assembly, Outbox, cancel, chunks
from runners.state import HERE, SEED, StateId
from testbed.cluster.model import SERVER
from testbed.runtime import Node, PeerLost, Plan


class Worker:
    """One life of a device's worker."""

    def __init__(self, node: Node, plan: Plan, memory: Memory, strategy: Strategy):
        self.node, self.plan, self.memory, self.strategy = node, plan, memory, strategy
        self.cluster = plan.cluster
        self.steps: Steps | None = None  # of the epoch
        self.epoch: p.Epoch | None = None
        self.data: Outbox | None = None  # to other stages; replaced each epoch
        self.tasks: list[asyncio.Task[None]] = []  # of the epoch
        self.drains: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            PeerLost: this device's lease ran out.
        """
        self.reports, self.uploader = Outbox(self.node), Uploader(self.node, self.cluster.server)
        self.crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
            self.memory.shelve()

    # -- control ----------------------------------------------------------------------

    async def _control(self) -> None:
        while True:
            meta = (await self.node.recv(SERVER, p.CONTROL)).meta
            kind = meta["kind"]
            if kind == p.HALT:
                if self.steps is not None:
                    await self.steps.settled()
                await self._stop_epoch()
                if self.memory.stage is not None:
                    await self.node.compute(self.memory.shelve, flops=0, label="copy")
                self._report(p.HELD, epoch=meta["epoch"], **self._holdings())
            elif kind == p.START:
                await self._begin(p.Epoch.from_meta(meta))
            elif kind == p.PAUSE and self.epoch and meta["epoch"] == self.epoch.number:
                self.epoch.paused = True
            elif kind == p.CHECKPOINTED:
                self._checkpoint_over(StateId(*meta["state"]), complete=True)
            elif kind == p.ABANDONED:
                state = StateId(*meta["state"])
                if self.uploader.state == state:
                    await self.uploader.stop()
                self._checkpoint_over(state, complete=False)
            elif kind == p.COMMIT and self.steps is not None and self.epoch and meta["epoch"] == self.epoch.number:
                self.steps.committed(meta["step"], meta["checkpoint"])

    def _checkpoint_over(self, state: StateId, *, complete: bool) -> None:
        if self.epoch is None:
            return
        if complete:
            self.epoch.complete = max(self.epoch.complete, state)
        if self.epoch.uploading == state:
            self.epoch.uploading = None

    def _report(self, kind: str, **fields: Any) -> None:
        self.reports.post(SERVER, p.REPORT, kind=kind, **fields)

    def _holdings(self) -> dict[str, Any]:
        return {**self.memory.as_meta(), "uploading": p.holdings_to_wire(self.uploader.remaining())}

    def _watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A neighbour's loss ends the task quietly (the coordinator calls); other errors end this life."""

        def ended(done: asyncio.Task[None]) -> None:
            error = None if done.cancelled() else done.exception()
            lost_neighbour = isinstance(error, PeerLost) and error.peer not in (self.node.name, SERVER)
            if error is not None and not lost_neighbour and not self.crashed.done():
                self.crashed.set_exception(error)

        task.add_done_callback(ended)
        return task

    # -- epochs ----------------------------------------------------------------------

    async def _begin(self, epoch: p.Epoch) -> None:
        await cancel(self.drains)
        self.drains = [self._watch(asyncio.create_task(self._drain(*stale))) for stale in self._stale()]
        self.epoch = epoch
        if epoch.uploading != self.uploader.state:
            await self.uploader.stop()
        self.data = Outbox(self.node)
        self.data.failed.add_done_callback(self._data_failed)
        self.tasks.append(self._watch(asyncio.create_task(self._train(epoch), name=f"epoch {epoch.number}")))

    def _data_failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None and not self.crashed.done():
            self.crashed.set_exception(error)

    async def _stop_epoch(self) -> None:
        await cancel(self.tasks)
        self.tasks, self.steps = [], None
        if self.data is not None:
            await self.data.close()
            self.data = None

    def _stale(self) -> list[tuple[str | None, str]]:
        """(source, tag) under which messages of the epoch that ends may still come."""
        if self.epoch is None:
            return []
        givers = sorted({*self.epoch.sources.values()} - {HERE, SEED})
        here = self.epoch.position(self.node.name)
        stale: list[tuple[str | None, str]] = [(giver, p.state_tag(self.epoch.number)) for giver in givers]
        return stale if here is None else [*stale, *self.strategy.tags(self.epoch, here)]

    async def _drain(self, source: str | None, tag: str) -> None:
        """Take and drop late messages, which would otherwise stay in memory."""
        while True:
            await self.node.recv(source, tag)

    async def _train(self, epoch: p.Epoch) -> None:
        for to, layers in epoch.gives:
            self._give(epoch, to, layers)
        here = epoch.position(self.node.name)
        member = None if here is None else self._member(epoch, here)
        if member is not None:
            self.memory.stage = await self._build(member)
        # units that move away are kept until the first update, by when whoever takes them has them
        keeps = self.strategy.options.local_copies
        self.memory.forget({epoch.state, epoch.complete, epoch.uploading} if keeps else ())
        if member is None:
            return
        self._report(p.READY, epoch=epoch.number, stage=here)
        steps = self.steps = self.strategy.steps(member)
        for step in range(epoch.state.version, self.plan.training.steps):
            if here == 0 and epoch.paused:
                self._report(p.PAUSED, epoch=epoch.number, version=step)
                return
            copy = await steps.step(step)
            if copy is not None:  # after DONE, so that no checkpoint is ahead of the losses that led to it
                self._watch(self.uploader.start(StateId(step + 1, epoch.number), copy))

    async def _build(self, member: Member) -> Part:
        states = await self._gather(member.epoch)  # not kept beyond: the part has copies
        part: Part = await self.node.compute(self.strategy.build, member, states, flops=0, label="build")
        return part

    def _member(self, epoch: p.Epoch, here: int) -> Member:
        assert self.data is not None  # since `_begin`
        return Member(self.node, self.plan, epoch, here, self.memory, self.data, self._report)

    def _give(self, epoch: p.Epoch, to: str, layers: list[int]) -> None:
        assert self.data is not None  # since `_begin`
        for layer in layers:
            flat = self.memory.store.get(epoch.state, layer)
            if flat is None:
                raise RuntimeError(f"{self.node.name} was to give layer {layer} of {epoch.state} and has it not")
            parts = chunks(flat, self.node.device, self.cluster.device(to))
            for index, part in enumerate(parts):
                self.data.post(to, p.state_tag(epoch.number), [part], layer=layer, index=index, count=len(parts))

    async def _gather(self, epoch: p.Epoch) -> dict[int, torch.Tensor]:
        """The flat state of each layer of this stage; those that start from the seed are absent."""
        states: dict[int, torch.Tensor] = {}
        for source in sorted({*epoch.sources.values()} - {SEED}):
            layers = {i for i, s in epoch.sources.items() if s == source}
            if source == HERE:
                states.update({i: self.memory.store.kept(epoch.state, i) for i in layers})
                continue
            assembly = Assembly()
            while layers:
                message = await self.node.recv(source, p.state_tag(epoch.number))
                meta = message.meta
                whole = assembly.add(meta["layer"], meta["index"], meta["count"], message.tensors[0])
                if whole is not None:
                    states[meta["layer"]] = whole
                    self.memory.store.put(epoch.state, {meta["layer"]: whole})  # so that it need not come twice
                    layers.discard(meta["layer"])
        return states
