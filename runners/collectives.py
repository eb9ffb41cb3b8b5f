"""All-reduce over home links, in chunks: by a ring, or each with each.

Both are a reduce-scatter and an all-gather of R segments among R members, so each member sends and receives
2 (R-1) / R of the tensor. They differ in the rounds that follow one another, each of which costs a link delay:

* ring: 2 (R-1) rounds, to one neighbour (Patarasu, Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
  workstations"; Baidu's and Horovod's ring). A chunk is passed on when it is there, not when its segment is.
* direct: 2 rounds, each with each. Over a star of access links a neighbour is no nearer than anyone else, so
  for small tensors this is the quicker one.

Every segment is added up in one place and copied from there, so all members get the same bits. The additions (one
a float received) are done where messages are put together, beside `Node.compute`: their cost is that of a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from runners.messaging import CHUNK_BYTES, CHUNK_S, Outbox
from testbed.cluster import Cluster
from testbed.runtime import Message, Node

ALGORITHMS = ("ring", "direct")
FLOAT = 4


class Gap(Exception):
    """A message of a member is missing: TCP gave up on a connection that the failure detector did not."""

    def __init__(self, peer: str, tag: str, missing: int):
        super().__init__(f"{peer}: message {missing} of {tag} is missing")
        self.peer, self.tag, self.missing = peer, tag, missing


def chunk_floats(cluster: Cluster, members: Iterable[str]) -> int:
    """Floats of a chunk that takes about CHUNK_S on the slowest link of these members."""
    members = set(members)
    links = [d.link for d in cluster.devices if d.name in members]
    rate_bps = min(min(link.uplink_bps, link.downlink_bps) for link in links)
    return int(min(max(CHUNK_S * rate_bps / 8, CHUNK_BYTES[0]), CHUNK_BYTES[1])) // FLOAT


class Collective:
    """All-reduces among `members` under one tag, one after the other, in the same order at each.

    Args:
        members: in the same order at each member; `node` is one of them.
        chunk: floats a message, the same at each.
        outbox: carries the messages; sends run beside what the caller does.
    """

    def __init__(
        self, node: Node, outbox: Outbox, members: Sequence[str], tag: str, chunk: int, algorithm: str = "ring"
    ):
        self._node, self._outbox, self._members, self._tag, self._chunk = node, outbox, members, tag, chunk
        self._here = members.index(node.name)
        self._run = {"ring": self._ring, "direct": self._direct}[algorithm]
        self._sent: dict[str, int] = {}
        self._got: dict[str, int] = {}

    async def all_reduce(self, flat: torch.Tensor, op: Callable[..., torch.Tensor] = torch.add) -> torch.Tensor:
        """The sum (or what `op` makes) of all members' tensors, of the same flat float32 size.

        The caller must not change `flat` any more: parts of it may still wait to be sent.

        Raises:
            PeerLost: a member is gone.
            Gap: a message is missing.
        """
        if len(self._members) == 1:
            return flat
        out = torch.empty_like(flat)
        await self._run(self._parts(flat), self._parts(out), op)
        return out

    def _parts(self, flat: torch.Tensor) -> list[Sequence[torch.Tensor]]:
        """Chunks of each member's segment; none of an empty one."""
        segments = flat.tensor_split(len(self._members))
        return [s.split(self._chunk) if s.numel() else () for s in segments]

    async def _ring(self, mine: list, out: list, op: Callable[..., torch.Tensor]) -> None:
        n, here = len(self._members), self._here
        before, after = self._members[(here - 1) % n], self._members[(here + 1) % n]
        rounds = 2 * (n - 1)
        for part in mine[here]:
            self._post(after, part)
        for r in range(rounds):
            segment = (here - r - 1) % n
            for c, own in enumerate(mine[segment]):
                part = (await self._take(before)).tensors[0]
                if r < n - 1:
                    part = op(part, own)
                if r >= n - 2:  # complete: reduced here, or gathered
                    out[segment][c].copy_(part)
                if r < rounds - 1:
                    self._post(after, part)

    async def _direct(self, mine: list, out: list, op: Callable[..., torch.Tensor]) -> None:
        n, here = len(self._members), self._here
        others = [(here + k) % n for k in range(1, n)]
        for j in others:
            for part in mine[j]:
                self._post(self._members[j], part)
        total: list[torch.Tensor] = []
        for j in range(n):  # in one order, whoever comes first
            parts = mine[here] if j == here else [(await self._take(self._members[j])).tensors[0] for _ in mine[here]]
            total = [op(a, b) for a, b in zip(total, parts)] if j else list(parts)
        for c, part in enumerate(total):
            out[here][c].copy_(part)
            for j in others:
                self._post(self._members[j], part)
        for j in range(n):
            if j != here:
                for c in range(len(mine[j])):
                    out[j][c].copy_((await self._take(self._members[j])).tensors[0])

    def _post(self, to: str, part: torch.Tensor, **meta: Any) -> None:
        number = self._sent[to] = self._sent.get(to, 0) + 1
        self._outbox.post(to, self._tag, [part], n=number, **meta)

    async def _take(self, source: str) -> Message:
        message = await self._node.recv(source, self._tag)
        number = self._got[source] = self._got.get(source, 0) + 1
        if message.meta["n"] != number:
            raise Gap(source, self._tag, number)
        return message
