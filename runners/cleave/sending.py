"""What goes to a device: tasks with the operands that it lacks, and weights ahead of the products that need them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from runners.cleave.deadlines import Deadlines
from runners.cleave.job import Region, Task, View, count
from runners.cleave.options import CleaveOptions
from runners.cleave.peers import Peer, Prefetch
from runners.cleave.precision import Codec
from runners.costs import FLOAT
from testbed.cluster import Cluster
from testbed.runtime import Node, PeerLost

TASK = "task"
OVERDUE_S = 1.0  # least delay beyond the expected that counts as one


@dataclass
class Traffic:
    """A step's messages, and bytes of their contents: down to each device, up from each; saved: it had them."""

    down_bytes: dict[str, int] = field(default_factory=dict)
    up_bytes: dict[str, int] = field(default_factory=dict)
    saved_bytes: int = 0
    messages: int = 0
    duplicates: int = 0


class _Parcel:
    """A message in the making.

    drop: ids of what the device is to forget. nbytes: of the tensors on the wire. kept: of those that it is to keep.
    """

    __slots__ = ("drop", "kept", "nbytes", "tensors")

    def __init__(self, drop: list[int]):
        self.drop = drop
        self.kept = self.nbytes = 0
        self.tensors: list[torch.Tensor] = []


class Sender:
    """The server's outgoing side. One message at a time: what a device holds is known when the next one is made.

    Attributes:
        traffic: of this step; the owner's, who begins a new one with each step.
        lateness: how long results take, over what was expected; a running mean, at least 1.
    """

    def __init__(self, node: Node, cluster: Cluster, options: CleaveOptions, codec: Codec,
                 deadlines: Deadlines):  # fmt: skip
        self._node, self._options, self._codec, self._deadlines = node, options, codec, deadlines
        self._uplink_bps = cluster.server.link.uplink_bps
        self._out_free_s = 0.0  # when the server's uplink will be
        self._feedback = options.wire == "int8" and options.error_feedback
        self.traffic = Traffic()
        self.lateness = 1.0

    async def task(self, peer: Peer, task: Task) -> None:
        """Send a task with what the device lacks. It is among the peer's `tasks` from the first, if only by its id."""
        job, block, extent = task.job, task.block, task.extent
        task.device, task.generation, task.sent_s = peer.name, peer.generation, self._node.now()
        peer.tasks[task.id] = task
        if len(peer.tasks) == 1 and peer.used_bytes + peer.stale_bytes + task.resident_bytes > peer.memory_bytes:
            # it is idle: it drops that before the task's operands are there
            drop = peer.held.shrink(peer.memory_bytes - task.resident_bytes)
            await self._message(peer, [], _Parcel(drop), {})
        parcel = _Parcel([])
        gemm = job.product.gemm
        kept = peer.held.bytes
        left = self._operand(peer, task, job.a, extent.a, extent.a_elements, parcel, block.col1 - block.col0 < gemm.n)
        right = self._operand(peer, task, job.b, extent.b, extent.b_elements, parcel, block.row1 - block.row0 < gemm.m)
        if parcel.drop:
            peer.lets_go(kept + parcel.kept - peer.held.bytes, task.id)
        tensors = parcel.tensors
        peer.resident_bytes += task.resident_bytes
        if tensors and self._codec.wire != "fp32":
            tensors = await self._encoded(tensors)
            if task.id not in peer.tasks:
                return  # the peer was lost meanwhile
        task.up_bytes = self._codec.nbytes(extent.elements)
        self._expect(peer, task, parcel.nbytes)
        meta: dict[str, Any] = {"i": task.id, "a": left, "b": right, "f": task.flops}
        if self._feedback and job.product.swapped:  # a weight's gradient
            meta["e"] = [job.name, block.row0, block.row1, block.col0, block.col1]
        self._address(peer, parcel, meta)
        try:
            await self._node.send(peer.name, TASK, tensors, **meta)
        except PeerLost:
            pass  # the membership tells, and what was under way is given to others then

    async def ahead(self, peer: Peer, ahead: Prefetch) -> None:
        """Send a part of a weight, if the device has room for it and lacks it."""
        view, region = ahead.view, ahead.region
        if peer.held.find(view.key, region) is not None:
            return
        elements = count(region)
        if peer.used_bytes + peer.stale_bytes + self._codec.resident_bytes * elements > peer.memory_bytes:
            return
        kept = peer.held.bytes
        number, drop = peer.held.add(view.key, region, FLOAT * elements)
        if not number:
            return
        peer.lets_go(kept + FLOAT * elements - peer.held.bytes)
        parcel = _Parcel(drop)
        tensors = [view.cut(region)]
        parcel.nbytes = self._codec.nbytes(elements)
        now = self._node.now()
        peer.down_free_s = max(now, peer.down_free_s) + 8 * parcel.nbytes / peer.rates.downlink_bps
        peer.unasked_bytes += parcel.nbytes
        if peer.unasked_from_s is None:
            peer.unasked_from_s = now
        if self._codec.wire != "fp32":
            tensors = await self._encoded(tensors)
        await self._message(peer, tensors, parcel, {"s": number})

    async def make_room(self, peer: Peer, task: Task) -> None:
        """Have a `cramped` device drop what it keeps, as far as it is in a waiting task's way."""
        kept = peer.held.bytes
        drop = peer.held.shrink(peer.memory_bytes - peer.resident_bytes - task.resident_bytes)
        peer.lets_go(kept - peer.held.bytes)
        await self._message(peer, [], _Parcel(drop), {})

    def _expect(self, peer: Peer, task: Task, nbytes: int) -> None:
        """Set when a task's result should be here, and when it counts as overdue."""
        now = task.sent_s = self._node.now()
        task.down_from_s = now if peer.unasked_from_s is None else peer.unasked_from_s
        task.down_bytes = nbytes + peer.unasked_bytes
        peer.unasked_bytes, peer.unasked_from_s = 0, None
        self._out_free_s = max(now, self._out_free_s) + 8 * nbytes / self._uplink_bps
        task.expected_s = peer.expect_s(self._out_free_s, nbytes, task.flops, task.up_bytes) - now
        wait = self.lateness * task.expected_s
        task.deadline_s = now + max(self._options.straggler * wait, wait + OVERDUE_S)
        self._deadlines.add(task)

    def _operand(self, peer: Peer, task: Task, view: View, region: Region, elements: int, parcel: _Parcel,
                 shared: bool) -> list[int]:  # fmt: skip
        """How the device comes to an operand: [id if it has it, id to keep it under, transposed, which part of it]."""
        nbytes = self._codec.nbytes(elements)
        found = peer.held.find(view.key, region)
        if found is not None:
            number, held = found
            task.resident_bytes -= FLOAT * elements  # it is among what the device keeps
            self.traffic.saved_bytes += nbytes
            if held == region:
                return [number, 0, view.turned]
            b0, r0, c0 = held[::2]
            part = region[0] - b0, region[1] - b0, region[2] - r0, region[3] - r0, region[4] - c0, region[5] - c0
            return [number, 0, view.turned, *part]
        parcel.tensors.append(view.cut(region))
        parcel.nbytes += nbytes
        keep = 0
        # other pieces of the block need it; or later products of the step, and nothing but the whole of it helps them
        if shared or (view.uses > 1 and view.whole(region)):
            keep, dropped = peer.held.add(view.key, region, FLOAT * elements)
            parcel.drop += dropped
            if keep:
                parcel.kept += FLOAT * elements
                task.resident_bytes -= FLOAT * elements
        return [0, keep, view.turned]

    async def _encoded(self, pieces: list[torch.Tensor]) -> list[torch.Tensor]:
        flops = float(4 * FLOAT * sum(t.numel() for t in pieces))
        encode = self._codec.encode
        return await self._node.compute(lambda: [e for t in pieces for e in encode(t)], flops=flops, label="encode")

    async def _message(self, peer: Peer, tensors: list[torch.Tensor], parcel: _Parcel, meta: dict[str, Any]) -> None:
        self._address(peer, parcel, meta)
        try:
            await self._node.send(peer.name, TASK, tensors, **meta)
        except PeerLost:
            pass  # the membership tells, and what was under way is given to others then

    def _address(self, peer: Peer, parcel: _Parcel, meta: dict[str, Any]) -> None:
        """What is left to say in a message to that peer, and the books on it."""
        if peer.clear:
            peer.clear = False
            peer.stale_bytes = 0
            meta["c"] = True
        if parcel.drop:
            meta["d"] = parcel.drop
        traffic = self.traffic
        traffic.messages += 1
        traffic.down_bytes[peer.name] = traffic.down_bytes.get(peer.name, 0) + parcel.nbytes
