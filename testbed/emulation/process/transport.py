"""Messages between nodes: TCP over the emulated addresses by ZeroMQ, one connection for each direction of a
pair.

Every node listens with a ROUTER; to send, it connects a DEALER to the peer's. Tensors travel as frames of
their own that are not copied on their way into or out of ZeroMQ. The sockets are driven from the asyncio loop
by their edge-triggered descriptors, which costs a third of what `zmq.asyncio` does per message.

A connection belongs to one incarnation of the peer. When the failure detector gives the peer up, it is closed
without lingering and whatever waits in it is gone; the next incarnation gets a new one, with fresh TCP
timers. A link that is back before anyone was given up resumes within TCP's retransmission timeout, which is
capped at one emulated second where the kernel can (`net.ipv4.tcp_rto_max_ms`, Linux 6.15).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from testbed.runtime import PeerLost

QUEUE_MESSAGES = 8  # waiting for one peer; more makes `send` wait
_RECONNECT_MS = 100
_CONNECT_TIMEOUT_MS = 1000  # then a new SYN, rather than TCP's 1, 2, 4, … s
_BATCH = 64  # messages taken off the socket before others in the loop get their turn


@dataclass
class Counters:
    """Bytes at the message layer (headers and tensors) and messages, by peer."""

    sent_bytes: Counter[str] = field(default_factory=Counter)
    sent_messages: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)
    received_messages: Counter[str] = field(default_factory=Counter)


class _Connection:
    """To one incarnation of one peer."""

    def __init__(self, socket: zmq.Socket, loop: asyncio.AbstractEventLoop, peer: str):
        self.socket = socket
        self.peer = peer
        self.sequence = 0
        self.lost = False
        self._loop = loop
        self._turn = asyncio.Lock()  # keeps the order of senders
        self._room: asyncio.Future | None = None
        self._fd = socket.getsockopt(zmq.FD)
        loop.add_reader(self._fd, self._signalled)

    def _signalled(self) -> None:
        if self.lost:
            return
        events = self.socket.getsockopt(zmq.EVENTS)  # also what makes the descriptor quiet again
        if self._room is not None and events & zmq.POLLOUT:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)

    async def send(self, frames: Callable[[int], Sequence[Any]]) -> None:
        """Queue what `frames(sequence number)` gives. Raises PeerLost when it was closed meanwhile."""
        async with self._turn:
            while not self.lost:
                try:
                    self.socket.send_multipart(frames(self.sequence), flags=zmq.NOBLOCK, copy=False)
                    self.sequence += 1
                    return
                except zmq.Again:
                    if self.socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT:
                        continue
                    self._room = self._loop.create_future()
                    await self._room
            raise PeerLost(self.peer)

    def close(self) -> None:
        self.lost = True
        self._loop.remove_reader(self._fd)
        self.socket.close(linger=0)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None


class Transport:
    """A node's messages in and out. Use it from the loop that made it.

    Args:
        address: (ip, port) to listen on.
        peers: (ip, port) of every other node.
        on_message: called in the loop with the frames of each message, the first one being its header.
        tdf: connection timeouts are stretched by it.
    """

    def __init__(
        self, address: tuple[str, int], peers: dict[str, tuple[str, int]],
        on_message: Callable[[list[zmq.Frame]], None], *, tdf: float = 1.0,
    ):  # fmt: skip
        self.counters = Counters()
        self._peers = peers
        self._on_message = on_message
        self._tdf = max(1.0, tdf)
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context(io_threads=1)
        self._connections: dict[tuple[str, int], _Connection] = {}
        self._closed = False
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.TCP_KEEPALIVE, 1)  # ends connections whose other side died without a word
        self._router.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
        self._router.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
        self._router.bind("tcp://{}:{}".format(*address))
        self._loop.add_reader(self._router.getsockopt(zmq.FD), self._readable)
        self._loop.call_soon(self._readable)

    async def send(self, peer: str, generation: int, frames: Callable[[int], Sequence[Any]]) -> None:
        """Queue a message for that incarnation of a peer; waits while its queue is full.

        Args:
            frames: gives the frames for the message's sequence number on this connection. Called again after
                a wait.

        Raises:
            PeerLost: `lose` was called for it while the message waited.
        """
        connection = self._connections.get((peer, generation))
        if connection is None:
            connection = self._connections[peer, generation] = self._connect(peer)
        await connection.send(frames)

    def sent(self, peer: str, nbytes: int) -> None:
        self.counters.sent_bytes[peer] += nbytes
        self.counters.sent_messages[peer] += 1

    def received(self, peer: str, nbytes: int) -> None:
        self.counters.received_bytes[peer] += nbytes
        self.counters.received_messages[peer] += 1

    def lose(self, peer: str) -> None:
        """Close the connections to a peer, with everything that waits in them."""
        for key in [k for k in self._connections if k[0] == peer]:
            self._connections.pop(key).close()

    def lose_all(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def close(self) -> None:
        """A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.lose_all()
        self._loop.remove_reader(self._router.getsockopt(zmq.FD))
        self._router.close(linger=0)
        self._context.term()

    def _connect(self, peer: str) -> _Connection:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, round(_CONNECT_TIMEOUT_MS * self._tdf))
        socket.setsockopt(zmq.HANDSHAKE_IVL, round(30_000 * self._tdf))
        socket.connect("tcp://{}:{}".format(*self._peers[peer]))
        return _Connection(socket, self._loop, peer)

    def _readable(self) -> None:
        """Takes until nothing is left: the descriptor signals changes only, and not what is still there."""
        for _ in range(_BATCH):
            if self._closed:
                return
            try:
                frames = self._router.recv_multipart(flags=zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._on_message(frames[1:])
        self._loop.call_soon(self._readable)
