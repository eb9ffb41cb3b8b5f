"""A device under a parameter server: it has weights from the server, and computes what it is told."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from runners.data_parallel import ps_protocol as p
from runners.data_parallel.passes import Passes
from runners.data_parallel.planner import Assignment
from runners.data_parallel.replica import HollowReplica, Replica, make_replica
from runners.messaging import Assembly, Outbox, cancel, chunks
from runners.state import SEED_STATE
from testbed.cluster.model import SERVER
from testbed.runtime import Node, Plan


class PsWorker:
    """One life of a device's worker."""

    def __init__(self, node: Node, plan: Plan):
        self.node, self.plan = node, plan
        self.buckets = Assignment.from_data(plan.data["assignment"]).buckets
        self.passes = Passes(plan.model, plan.training, self.buckets)
        self._assembly = Assembly()
        self._arrived: dict[tuple[int, int], torch.Tensor] = {}  # (version, bucket) -> weights not yet in use
        self._version = [0] * len(self.buckets)  # of the weights in use: the seed's
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            PeerLost: this device's lease ran out.
        """
        self.outbox = Outbox(self.node)
        self.tasks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outbox.post(SERVER, p.HELLO)
        parts = [asyncio.create_task(part) for part in (self._take_weights(), self._take_tasks(), self._work())]
        try:
            ends = [*parts, self.outbox.failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                if end.done():
                    end.result()
        finally:
            await cancel(parts)
            await self.outbox.close()

    async def _take_weights(self) -> None:
        while True:
            message = await self.node.recv(SERVER, p.WEIGHTS)
            meta = message.meta
            key = meta["version"], meta["bucket"]
            whole = self._assembly.add(key, meta["index"], meta["count"], message.tensors[0])
            if whole is not None:
                self._arrived[key] = whole
                self._news.set()

    async def _take_tasks(self) -> None:
        while True:
            self.tasks.put_nowait((await self.node.recv(SERVER, p.TASK)).meta)

    async def _work(self) -> None:
        def build() -> Replica | HollowReplica:
            model, training = self.plan.model, self.plan.training
            return make_replica(model, training, self.buckets, SEED_STATE, {}, optimizer=False)

        replica = await self.node.compute(build, flops=0, label="build")
        while True:
            await self._task(replica, await self.tasks.get())

    async def _task(self, replica: Replica | HollowReplica, meta: dict[str, Any]) -> None:
        step, wanted = meta["step"], set(meta["buckets"])
        fresh = [b for b in range(len(self.buckets)) if self._version[b] != step]
        while any((step, b) not in self._arrived for b in fresh):
            self._news.clear()
            await self._news.wait()
        self._arrived, arrived = {k: w for k, w in self._arrived.items() if k[0] > step}, self._arrived

        def load() -> None:
            for b in fresh:
                replica.put_weights(b, arrived[step, b])

        def ready(bucket: int, gradient: torch.Tensor, loss: torch.Tensor) -> None:
            if bucket not in wanted:
                return
            value = float(loss) if bucket == len(self.buckets) - 1 and not loss.is_meta else None
            parts = chunks(gradient, self.node.device, self.plan.cluster.server)
            for index, part in enumerate(parts):
                self.outbox.post(SERVER, p.GRADIENT, [part], task=meta["task"], bucket=bucket, index=index,
                                 count=len(parts), loss=value)  # fmt: skip

        await self.passes.run(self.node, replica, step, meta["first"], meta["end"], min(wanted), ready, load)
        for b in fresh:
            self._version[b] = step
