"""One direction of a pair of nodes: a TCP connection with its queue, as in `testbed.emulation.process.transport`."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from testbed.cluster.tcp import MAX_WINDOW, MIN_RTO_S, MSS, Window
from testbed.runtime.virtual_time import VirtualLoop
from testbed.simulation import tcp
from testbed.simulation.flow import Flow, Link
from testbed.simulation.fluid import FluidNetwork

QUEUE_MESSAGES = 8  # waiting for one peer; more makes `send` wait (the transport's)
_IDLE, _WAITING, _FLOWING, _CUT, _CLOSED = range(5)
_MAX_DRAWS = 4  # packets of a message whose jitter is drawn; the slowest holds up the rest


class Network(Protocol):
    """What a connection needs of the network that it belongs to."""

    loop: VirtualLoop
    fluid: FluidNetwork
    buffer_s: float
    random: random.Random

    def path(self, source: str, to: str) -> tuple[Link, ...]: ...
    def delay_s(self, source: str, to: str) -> float: ...
    def rtt_s(self, source: str, to: str) -> float: ...
    def sigma_s(self, source: str, to: str) -> float: ...
    def loss(self, source: str, to: str) -> float: ...
    def is_cut(self, source: str, to: str) -> bool: ...
    def begins(self, connection: Connection) -> None: ...
    def forget(self, connection: Connection) -> None: ...


class Connection:
    """Messages to one incarnation of one peer, in order.

    The pauses of slow start are added where a message ends, not while it flows, so that the flows of a thousand
    messages that are sent at once begin and end together; the connection's next message waits for them.

    Args:
        deliver: called with each message's item when its last byte has arrived.
    """

    __slots__ = ("network", "_loop", "source", "to", "flow", "deliver", "_queue", "_window", "_state", "_established",
                 "_epoch", "_last_arrival_s", "_in_flight", "_room", "_head_left", "_cut_s", "_had_data", "_free_s",
                 "_share", "delay_s", "rtt_s", "_sigma_s", "_loss")  # fmt: skip

    def __init__(self, network: Network, source: str, to: str, deliver: Callable[[Any], None]):
        self.network, self.source, self.to, self.deliver = network, source, to, deliver
        self._loop = network.loop
        self.flow = Flow(network.path(source, to), self._served)
        self._queue: deque[tuple[float, Any]] = deque()  # bytes on the wire, item
        self._window = Window()
        self._state = _IDLE
        self._established = False
        self._epoch = 0  # grows with each cut: timers of before are void
        self._last_arrival_s = 0.0
        self._in_flight: deque[Any] = deque()  # served, not yet arrived
        self._room: deque[asyncio.Future] = deque()
        self._head_left = 0.0  # of the first message, when it was cut off
        self._cut_s = 0.0
        self._had_data = False  # when it was cut
        self._free_s = 0.0  # when the pauses of the message before are over
        self._share = 0.0  # bytes/s that it counted on
        self.path_changed()
        if network.is_cut(source, to):
            self.cut()

    def path_changed(self) -> None:
        """Delay, jitter or loss of the path may be others than they were."""
        n, source, to = self.network, self.source, self.to
        self.delay_s, self.rtt_s = n.delay_s(source, to), n.rtt_s(source, to)
        self._sigma_s, self._loss = n.sigma_s(source, to), n.loss(source, to)
        limit = min(tcp.lossy_rate(self._loss, self.rtt_s), MAX_WINDOW / max(self.rtt_s, 1e-4))
        n.fluid.set_limit(self.flow, limit)

    @property
    def full(self) -> bool:
        return bool(self._room) or len(self._queue) > QUEUE_MESSAGES

    def send(self, nbytes: float, item: Any) -> None:
        """Queue a message. Call when not `full`, or after `room`."""
        self._queue.append((tcp.wire_bytes(nbytes), item))
        if self._state == _IDLE:
            self._state = _WAITING
            if self._free_s > self._loop.now:
                self._loop.at(self._free_s, self._freed, self._epoch)
            else:
                self.network.begins(self)

    async def room(self) -> bool:
        """Wait for one's turn to send; False when the connection was closed meanwhile."""
        future = asyncio.get_running_loop().create_future()
        self._room.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future in self._room:
                self._room.remove(future)
            elif self._state != _CLOSED:  # its turn had come: the next one's, then
                self._offer()
            raise

    # -- flowing -------------------------------------------------------------------------

    def begin(self, share: float) -> None:
        """The instant's end: the network knows what the connection can count on [bytes/s]."""
        if self._state != _WAITING or not self._queue:
            return
        self._share = share if share > 1.0 else 1.0  # of a dead link: begin anyway, the fluid network stalls it
        self._window.begin(self.rtt_s, self._loop.now)
        self._state = _FLOWING
        self.network.fluid.start(self.flow, self._queue[0][0])

    def _freed(self, epoch: int) -> None:
        if epoch == self._epoch and self._state == _WAITING:
            self.network.begins(self)

    def _served(self) -> float:
        """The first message's last byte has left the last bottleneck, pauses apart."""
        queue = self._queue
        wire, item = queue.popleft()
        pause = self._window.pause(wire, self._share, self.rtt_s)
        if not self._established:
            self._established = True
            pause += tcp.HANDSHAKE_RTTS * self.rtt_s
        self._free_s = free_s = self._loop.now + pause
        self._arrives(item, free_s, wire)
        if self._room:
            self._offer()
        if queue:
            if pause <= 0:
                return queue[0][0]
            self._state = _WAITING
            self._loop.at(free_s, self._freed, self._epoch)
        else:
            self._state = _IDLE
        self._window.end(self._share, self.rtt_s, self.network.buffer_s, free_s)
        return 0.0

    def _offer(self) -> None:
        while self._room and len(self._queue) <= QUEUE_MESSAGES:
            future = self._room.popleft()
            if not future.done():
                future.set_result(True)
                return

    def _arrives(self, item: Any, left_s: float, wire: float) -> None:
        """Its last byte leaves the last bottleneck at `left_s`."""
        at = left_s + self.delay_s
        if self._sigma_s > 0 or self._loss > 0:
            at = max(left_s, at + self._late_s(max(1, int(wire / MSS))))
        if at < self._last_arrival_s:
            at = self._last_arrival_s
        self._last_arrival_s = at
        self._in_flight.append(item)
        self._loop.at(at, self._arrived, self._epoch)

    def _late_s(self, packets: int) -> float:
        """Jitter and repairs of a message's last packets, of which no later ones show the loss.

        A lost tail is sent again after two round trips (RFC 8985, section 7.2), a lone packet after the
        receiver's delayed acknowledgement, too; a loss just before the tail costs one round trip.
        """
        draw = self.network.random
        late = 0.0
        if self._sigma_s > 0:
            late = max(draw.gauss(0.0, self._sigma_s) for _ in range(min(packets, _MAX_DRAWS)))
        if self._loss > 0:
            before = min(packets - 1, 9)
            if draw.random() < self._loss:
                late += 2 * self.rtt_s + (MIN_RTO_S if packets == 1 else 0.0)
            elif before and draw.random() < 1 - (1 - self._loss) ** before:
                late += self.rtt_s
        return late

    def _arrived(self, epoch: int) -> None:
        if epoch == self._epoch:
            self.deliver(self._in_flight.popleft())

    # -- outages -------------------------------------------------------------------------

    def cut(self) -> None:
        if self._state in (_CLOSED, _CUT):
            return
        self._had_data = self._state != _IDLE or bool(self._in_flight)
        if self._state == _FLOWING:
            self._head_left = self.network.fluid.stop(self.flow)
        self._state, self._cut_s = _CUT, self._loop.now
        self._epoch += 1

    def mend(self) -> None:
        """The link is back, at both ends if the other one was cut, too."""
        if self._state != _CUT or self.network.is_cut(self.source, self.to):
            return
        at = self._loop.now
        if self._had_data:
            at = tcp.outage_end_s(self._cut_s, at, self.rtt_s)
        self._loop.at(at, self._resume, self._epoch)

    def _resume(self, epoch: int) -> None:
        if epoch != self._epoch or self._state != _CUT:
            return
        now = self._loop.now
        held, self._in_flight = self._in_flight, deque()
        for item in held:
            self._arrives(item, now, 0.0)
        if self._head_left > 0 and self._queue:
            self._queue[0] = (self._head_left, self._queue[0][1])
        self._head_left = 0.0
        self._window = Window()
        self._free_s = now
        self._state = _IDLE
        if self._queue:
            self._state = _WAITING
            self.network.begins(self)

    def close(self) -> None:
        """What waits in it is gone; who waits for room learns it."""
        if self._state == _CLOSED:
            return
        if self._state == _FLOWING:
            self.network.fluid.stop(self.flow)
        self._state = _CLOSED
        self._epoch += 1
        self._queue.clear()
        self._in_flight.clear()
        self.network.forget(self)
        while self._room:
            future = self._room.popleft()
            if not future.done():
                future.set_result(False)
