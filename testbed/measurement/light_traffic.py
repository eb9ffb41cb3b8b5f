"""Light traffic for measurements: TCP flows and echo requests whose sockets live in the emulated hosts.

A socket belongs to the namespace in which it was opened, wherever its owner is. So one thread can drive flows between
many hosts, without a process in any of them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from testbed.emulation.namespaces import inside

_CHUNK = bytes(1 << 16)
_SO_MAX_PACING_RATE = 47
_PACING = 1.3  # x the set rate: fast enough to fill the bottleneck, without hundreds of losses at the start


@dataclass
class Flow:
    """One TCP transfer, as its receiver sees it: when how many bytes had arrived."""

    name: str
    rate_bps: float  # as set, goodput; paces the start
    sender: socket.socket
    receiver: socket.socket
    times_s: list[float] = field(default_factory=list)
    received: list[int] = field(default_factory=list)

    def goodput_bps(self, begin_s: float, end_s: float) -> float:
        """Bytes delivered between two moments (CLOCK_MONOTONIC), as a rate; 0 if nothing was."""
        marks = [(t, n) for t, n in zip(self.times_s, self.received) if begin_s <= t <= end_s]
        if len(marks) < 2 or marks[-1][0] == marks[0][0]:
            return 0.0
        return 8 * (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0])


@contextlib.contextmanager
def tcp_flows(pairs: Iterable[tuple[str, str, str, str, float]]) -> Iterator[list[Flow]]:
    """Connected TCP flows.

    Args:
        pairs: (name, sender's namespace path, receiver's namespace path, receiver's address, set rate [bit/s]).

    Raises:
        OSError: a connection could not be made.
    """
    with contextlib.ExitStack() as stack:
        flows, accepting = [], []
        for name, source, sink, address, rate_bps in pairs:
            with inside(sink):
                listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind((address, 0))
            listener.listen(1)
            with inside(source):
                sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sender.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, max(1, int(_PACING * rate_bps / 8)))
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sender.connect(listener.getsockname())
            accepting.append((name, rate_bps, sender, listener))
        for name, rate_bps, sender, listener in accepting:
            listener.settimeout(5 + 20 * 1448 * 8 / rate_bps)
            receiver = stack.enter_context(listener.accept()[0])
            receiver.setblocking(False)
            flows.append(Flow(name, rate_bps, sender, receiver))
        yield flows
        for flow in flows:  # what is still on its way is not waited for
            for sock in (flow.sender, flow.receiver):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def saturate(flows: list[Flow], seconds: float) -> None:
    """Send as fast as the connections take it, for that long (real)."""
    buffer = bytearray(1 << 18)
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            selector.register(flow.sender, selectors.EVENT_WRITE, flow)
            selector.register(flow.receiver, selectors.EVENT_READ, flow)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                flow: Flow = key.data
                try:
                    if key.fileobj is flow.sender:
                        flow.sender.send(_CHUNK)
                    else:
                        count = flow.receiver.recv_into(buffer)
                        flow.times_s.append(time.monotonic())
                        flow.received.append((flow.received[-1] if flow.received else 0) + count)
                except BlockingIOError:
                    continue


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def echo_rtts(targets: Iterable[tuple[str, str, str]], *, count: int, interval_s: float,
              wait_s: float) -> dict[str, list[float]]:
    """Round-trip times by ICMP echo, all targets at once.

    Args:
        targets: (name, namespace path of the asking host, address asked).
        count, interval_s: echo requests a target, and the real time between them.
        wait_s: for answers after the last request.

    Returns:
        name -> RTTs [real s]; lost requests are missing.
    """
    ident = os.getpid() & 0xFFFF
    rtts: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        sockets = []
        for name, netns, address in targets:
            with inside(netns):
                sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
            sock.setblocking(False)
            rtts[name] = []
            selector.register(sock, selectors.EVENT_READ, name)
            sockets.append((sock, address))
        begin = time.monotonic()
        sent = 0
        end = begin + (count - 1) * interval_s + wait_s
        while (now := time.monotonic()) < end:
            if sent < count and now >= begin + sent * interval_s:
                for sock, address in sockets:
                    body = struct.pack("!d", time.monotonic()) + bytes(48)
                    head = struct.pack("!BBHHH", 8, 0, 0, ident, sent)
                    sock.sendto(struct.pack("!BBHHH", 8, 0, _checksum(head + body), ident, sent) + body, (address, 0))
                sent += 1
                continue
            due = begin + sent * interval_s if sent < count else end
            for key, _ in selector.select(max(0.0, due - now)):
                with contextlib.suppress(BlockingIOError):
                    packet = key.fileobj.recv(256)
                    icmp = packet[(packet[0] & 15) * 4:]
                    if icmp[0] == 0 and struct.unpack_from("!H", icmp, 4)[0] == ident:
                        rtts[key.data].append(time.monotonic() - struct.unpack_from("!d", icmp, 8)[0])
    return rtts
