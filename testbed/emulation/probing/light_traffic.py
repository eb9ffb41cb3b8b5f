"""Light traffic for measurements: flows whose sockets live in the emulated hosts.

A socket belongs to the namespace in which it was opened, wherever its owner is. So one thread drives flows
between many hosts, and no process has to run in any of them.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import math
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from testbed.emulation.kernel.namespaces import inside
from testbed.emulation.kernel.socket_options import (
    IP_MTU,
    SO_MAX_PACING_RATE,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    UDP_SEGMENT,
    stamp,
    stamp_packets,
)
from testbed.emulation.network.shaping import BURST_S, UML_BURST_S
from testbed.emulation.probing.queue_watch import QueueWatch
from testbed.scenario.link_model import GOODPUT_BYTES, MTU

_CHUNK = bytes(1 << 16)
_DATA_SEGMENTS_AT = 152  # tcpi_data_segs_in in struct tcp_info
_UDP_HEADERS = 28  # IPv4 and UDP
_OVERDRIVE = 1.25  # x the set rate: keeps the bottleneck's buffer filled, whenever a sender is late
_CATCH_UP = 64  # packets
_SEGMENTS_MAX = 40  # datagrams of one system call; the kernel makes single frames of them at once
_READS_MAX = 64  # of one flow, before the others' turn
_DRAIN_MAX_S = 10.0
_BUFFER_BYTES = 8 << 20  # so that the receiver's window never holds a flow back
_SLICE_S = 0.15  # a flow has settled once it ran this long at
_SETTLED = 0.98  # x the set rate


@dataclass(frozen=True)
class FlowSpec:
    """source, sink: paths of namespaces; address: the sink's. rate_bps: expected, TCP goodput.

    datagrams: send UDP somewhat faster than that, instead of TCP. For links with random losses, which make
    TCP slower than the link. paced: hold TCP to a rate somewhat above the expected one, so that its start
    doesn't overflow the buffer a hundred times.
    """

    name: str
    source: str
    sink: str
    address: str
    rate_bps: float
    datagrams: bool = False
    paced: bool = True


@dataclass
class Flow:
    """A transfer, as its receiver sees it: when how many packets had arrived.

    Packets rather than bytes: those behind a loss count when they arrive, not once TCP has filled the gap.
    payload: bytes of TCP payload in a full packet.
    """

    spec: FlowSpec
    sender: socket.socket
    receiver: socket.socket
    payload: int
    times_s: list[float] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    sent: int = 0  # datagrams, and those for which it was too late
    skipped: int = 0  # of these
    settled_s: float | None = None
    measured_from_s: float = 0.0

    @property
    def datagram_bytes(self) -> int:
        """Payload of a datagram that fills a packet."""
        return self.payload + (MTU - GOODPUT_BYTES) - _UDP_HEADERS

    def take(self, buffer: bytearray) -> None:
        """Read what has arrived. Raises BlockingIOError: nothing (more) has."""
        if self.spec.datagrams:
            for _ in range(_READS_MAX):
                _, extra, _, _ = self.receiver.recvmsg_into([buffer], 64)
                self._took(stamp(extra) - time.time() + time.monotonic(), len(self.received) + 1)
        else:
            self.receiver.recv_into(buffer)
            info = self.receiver.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGMENTS_AT + 4)
            (packets,) = struct.unpack_from("=I", info, _DATA_SEGMENTS_AT)
            self._took(time.monotonic(), packets)

    def _took(self, at: float, packets: int) -> None:
        self.times_s.append(at)
        self.received.append(packets)
        if self.settled_s is None and self._has_settled(at):
            self.settled_s = at

    def _has_settled(self, now: float) -> bool:
        if self.times_s[0] > now - _SLICE_S:  # its first packets came in one burst
            return False
        return self.goodput_bps(now - _SLICE_S, now) >= _SETTLED * self.spec.rate_bps

    def goodput_bps(self, begin_s: float, end_s: float) -> float:
        """Payload that arrived between two moments (CLOCK_MONOTONIC), as a rate; 0 if none did."""
        first, last = bisect.bisect_left(self.times_s, begin_s), bisect.bisect_right(self.times_s, end_s) - 1
        if last <= first or self.times_s[last] == self.times_s[first]:
            return 0.0
        packets = self.received[last] - self.received[first]
        return 8 * self.payload * packets / (self.times_s[last] - self.times_s[first])


@contextlib.contextmanager
def open_flows(specs: Iterable[FlowSpec], timeout_s: float = 5.0) -> Iterator[list[Flow]]:
    """Connected flows, which end with the context; hosts that don't reach each other in time get none."""
    with contextlib.ExitStack() as stack:
        flows, waiting = [], []
        for spec in specs:
            kind = socket.SOCK_DGRAM if spec.datagrams else socket.SOCK_STREAM
            with inside(spec.sink):
                sink = stack.enter_context(socket.socket(socket.AF_INET, kind))
            with inside(spec.source):
                sender = stack.enter_context(socket.socket(socket.AF_INET, kind))
            sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER_BYTES)
            sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, _BUFFER_BYTES)
            sink.bind((spec.address, 0))
            sender.setblocking(False)
            sink.setblocking(False)
            if spec.datagrams:
                stamp_packets(sink)
                sender.connect(sink.getsockname())
                mtu = sender.getsockopt(socket.IPPROTO_IP, IP_MTU)
                flow = Flow(spec, sender, sink, mtu - (MTU - GOODPUT_BYTES))
                sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, flow.datagram_bytes)
                flows.append(flow)
                continue
            sink.listen(1)
            if spec.paced:
                pacing = max(1, int(_OVERDRIVE * spec.rate_bps / 8))
                sender.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pacing)
            with contextlib.suppress(BlockingIOError):
                sender.connect(sink.getsockname())
            waiting.append((spec, sender, sink))
        until = time.monotonic() + timeout_s
        for spec, sender, listener in waiting:
            listener.settimeout(max(0.001, until - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                receiver = stack.enter_context(listener.accept()[0])
                receiver.setblocking(False)
                payload = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                flows.append(Flow(spec, sender, receiver, payload))
        try:
            yield flows
        finally:
            for flow in flows:
                if not flow.spec.datagrams:  # what is still on its way is not waited for
                    for sock in (flow.sender, flow.receiver):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def saturate(
    flows: list[Flow], seconds: dict[str, float], settle_s: float, watch: QueueWatch | None = None
) -> dict[str, float]:
    """Send as fast as each link takes it, until every flow has been measured in its steady state.

    Args:
        seconds: flow's name -> how long to measure it, once it has settled.
        settle_s: how long to wait for that at most; a flow that never settles is measured all the same.
        watch: looks at the links' queues meanwhile.

    Returns:
        Flow's name -> goodput over its own `seconds` [bit/s].
    """
    buffer = bytearray(1 << 18)
    begin = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            if not flow.spec.datagrams:
                selector.register(flow.sender, selectors.EVENT_WRITE, flow)
            selector.register(flow.receiver, selectors.EVENT_READ, flow)
        timed = [flow for flow in flows if flow.spec.datagrams]
        now = begin
        while now < max((_start(f, begin, settle_s) + seconds[f.spec.name] for f in flows), default=begin):
            for flow in timed:
                _send_due(flow, now - begin)
            if watch is not None:
                watch.look(now)
            for key, _ in selector.select(0.002 if timed else 0.05):
                with contextlib.suppress(BlockingIOError):
                    if key.fileobj is key.data.sender:
                        key.data.sender.send(_CHUNK)
                    else:
                        key.data.take(buffer)
            now = time.monotonic()
    if timed:
        _drain(timed, buffer)
    rates = {}
    for flow in flows:
        start = flow.measured_from_s = _start(flow, begin, settle_s)
        rates[flow.spec.name] = flow.goodput_bps(start, start + seconds[flow.spec.name])
    return rates


def _drain(flows: list[Flow], buffer: bytearray) -> None:
    """Wait until the queues that datagrams have filled are empty, since they would come between the next ones."""
    quiet_s = 0.05 + 2 * max(8 * f.payload / f.spec.rate_bps for f in flows)
    end = time.monotonic() + _DRAIN_MAX_S
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            selector.register(flow.receiver, selectors.EVENT_READ, flow)
        while time.monotonic() < end and (ready := selector.select(quiet_s)):
            for key, _ in ready:
                with contextlib.suppress(BlockingIOError):
                    key.data.receiver.recv_into(buffer)


def _start(flow: Flow, begin: float, settle_s: float) -> float:
    """When the measurement of a flow begins, as far as is known."""
    return begin + settle_s if flow.settled_s is None else flow.settled_s


def _send_due(flow: Flow, elapsed_s: float) -> None:
    """Datagrams at a steady rate; after a pause only so many as the bottleneck can use to catch up.

    The first come together, more than the shaper lets through at once: what follows goes at its rate.
    """
    packets_per_s = flow.spec.rate_bps / (8 * flow.payload)
    first = min(_CATCH_UP, 6 + math.ceil(packets_per_s * max(BURST_S, UML_BURST_S)))
    due = int(elapsed_s * _OVERDRIVE * packets_per_s) + first
    late = max(0, due - _CATCH_UP - flow.sent)
    flow.sent, flow.skipped = flow.sent + late, flow.skipped + late
    with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
        while flow.sent < due:
            packets = min(due - flow.sent, _SEGMENTS_MAX)
            flow.sender.send(_zeros(packets * flow.datagram_bytes))
            flow.sent += packets


@functools.lru_cache(8)
def _zeros(size: int) -> bytes:
    return bytes(size)
