"""One direction of a pair of nodes: a TCP connection with its queue, as `testbed.emulation.transport` has it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from testbed.simulation import tcp
from testbed.simulation.fluid import Flow

if TYPE_CHECKING:
    from testbed.simulation.network import Network

QUEUE_MESSAGES = 8  # waiting for one peer; more makes `send` wait (the transport's)
_IDLE, _PAUSING, _FLOWING, _CUT, _CLOSED = range(5)
_MAX_DRAWS = 4  # packets of a message whose jitter is drawn; the slowest holds up the rest


class Connection:
    """Messages to one incarnation of one peer, in order.

    Args:
        deliver: called with each message's item when its last byte has arrived.
    """

    __slots__ = ("network", "source", "to", "flow", "deliver", "_queue", "_window", "_state", "_established", "_epoch",
                 "_last_arrival_s", "_in_flight", "_room", "_head_left", "_cut_s", "_had_data")  # fmt: skip

    def __init__(self, network: Network, source: str, to: str, deliver: Callable[[Any], None]):
        self.network, self.source, self.to, self.deliver = network, source, to, deliver
        self.flow = Flow(network.path(source, to), self._served)
        self._queue: deque[tuple[float, float, Any]] = deque()  # bytes on the wire, pause before them, item
        self._window = tcp.Window()
        self._state = _IDLE
        self._established = False
        self._epoch = 0  # grows with each cut: timers of before are void
        self._last_arrival_s = 0.0
        self._in_flight: deque[Any] = deque()  # served, not yet arrived
        self._room: deque[asyncio.Future] = deque()
        self._head_left = 0.0  # of the first message, when it was cut off
        self._cut_s = 0.0
        self._had_data = False  # when it was cut
        self.path_changed()
        if network.is_cut(source, to):
            self.cut()

    @property
    def full(self) -> bool:
        return len(self._queue) > QUEUE_MESSAGES or bool(self._room)

    def send(self, nbytes: float, item: Any) -> None:
        """Queue a message. Call when not `full`, or after `room`."""
        wire = tcp.wire_bytes(nbytes)
        if self._state == _FLOWING:
            rtt = self.network.rtt_s(self.source, self.to)
            self._queue.append((wire, self._window.extend(wire, self.network.share(self), rtt), item))
            return
        self._queue.append((wire, 0.0, item))
        if self._state == _IDLE:
            self._state = _PAUSING
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

    def begin(self, share: float) -> None:
        """The network knows what the connection can count on [bytes/s]."""
        if self._state != _PAUSING or not self._queue:
            return
        loop = self.network.loop
        rtt = self.network.rtt_s(self.source, self.to)
        nbytes = sum(wire for wire, _, _ in self._queue)
        if share <= 0:  # a dead link: begin anyway, the fluid network stalls it
            share = 1.0
        pause = self._window.begin(nbytes, share, rtt, loop.now)
        if not self._established:
            self._established = True
            pause += tcp.HANDSHAKE_RTTS * rtt
        if pause > 0:
            loop.at(loop.now + pause, self._begin_flow, self._epoch)
        else:
            self._begin_flow(self._epoch)

    def path_changed(self) -> None:
        """Loss or delay are other than they were."""
        rtt = self.network.rtt_s(self.source, self.to)
        limit = min(tcp.lossy_rate(self.network.loss(self.source, self.to), rtt), tcp.MAX_WINDOW / max(rtt, 1e-4))
        self.network.fluid.set_limit(self.flow, limit)

    # -- outages -------------------------------------------------------------------------

    def cut(self) -> None:
        if self._state in (_CLOSED, _CUT):
            return
        self._had_data = self._state != _IDLE or bool(self._in_flight)
        if self._state == _FLOWING:
            self._head_left = self.network.fluid.stop(self.flow)
        self._state, self._cut_s = _CUT, self.network.loop.now
        self._epoch += 1

    def mend(self) -> None:
        """The link is back, at both ends if the other one was cut, too."""
        if self._state != _CUT or self.network.is_cut(self.source, self.to):
            return
        loop = self.network.loop
        at = loop.now
        if self._had_data:
            at = tcp.outage_end_s(self._cut_s, loop.now, self.network.rtt_s(self.source, self.to))
        loop.at(at, self._resume, self._epoch)

    def _resume(self, epoch: int) -> None:
        if epoch != self._epoch or self._state != _CUT:
            return
        now = self.network.loop.now
        held, self._in_flight = self._in_flight, deque()
        for item in held:
            self._arrives(item, 0.0)
        if self._head_left > 0 and self._queue:
            self._queue[0] = (self._head_left, 0.0, self._queue[0][2])
        self._head_left = 0.0
        self._window = tcp.Window()
        self._window.idle_since_s = now
        self._state = _IDLE
        if self._queue:
            self._state = _PAUSING
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

    # -- flowing -------------------------------------------------------------------------

    def _begin_flow(self, epoch: int) -> None:
        if epoch != self._epoch or self._state != _PAUSING or not self._queue:
            return
        self._state = _FLOWING
        self.network.fluid.start(self.flow, self._queue[0][0])

    def _served(self) -> float:
        """The first message's last byte has left the last bottleneck."""
        wire, _, item = self._queue.popleft()
        self._arrives(item, wire)
        if self._room:
            self._offer()
        if self._queue:
            wire, pause, _ = self._queue[0]
            if pause <= 0:
                return wire
            self._state = _PAUSING
            loop = self.network.loop
            loop.at(loop.now + pause, self._begin_flow, self._epoch)
            return 0.0
        network = self.network
        self._window.end(network.share(self), network.rtt_s(self.source, self.to), network.buffer_s, network.loop.now)
        self._state = _IDLE
        return 0.0

    def _offer(self) -> None:
        while self._room and len(self._queue) <= QUEUE_MESSAGES:
            future = self._room.popleft()
            if not future.done():
                future.set_result(True)
                return

    def _arrives(self, item: Any, wire: float) -> None:
        network, loop = self.network, self.network.loop
        delay = network.delay_s(self.source, self.to)
        sigma = network.sigma_s(self.source, self.to)
        packets = max(1, int(wire / tcp.MSS))
        if sigma > 0:
            draws = [network.random.gauss(0.0, sigma) for _ in range(min(packets, _MAX_DRAWS))]
            delay = max(0.0, delay + max(draws))
        loss = network.loss(self.source, self.to)
        if loss > 0 and wire > 0:
            delay += self._repair_s(loss, packets)
        self._last_arrival_s = at = max(loop.now + delay, self._last_arrival_s)
        self._in_flight.append(item)
        loop.at(at, self._arrived, self._epoch)

    def _repair_s(self, loss: float, packets: int) -> float:
        """What losses among a message's last packets delay its end: no later ones follow that would show them.

        A lost tail is sent again after two round trips (RFC 8985, section 7.2), a lone packet after the
        receiver's delayed acknowledgement, too; a loss just before the tail costs one round trip.
        """
        network = self.network
        rtt = network.rtt_s(self.source, self.to)
        if network.random.random() < loss:
            return 2 * rtt + (tcp.MIN_RTO_S if packets == 1 else 0.0)
        before = min(packets - 1, 9)
        return rtt if before and network.random.random() < 1 - (1 - loss) ** before else 0.0

    def _arrived(self, epoch: int) -> None:
        if epoch == self._epoch:
            self.deliver(self._in_flight.popleft())
