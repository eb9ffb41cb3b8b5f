"""Round-trip times by ICMP echo, asked from sockets that live in the emulated hosts."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable

from testbed.emulation.kernel.namespaces import inside
from testbed.emulation.kernel.socket_options import stamp, stamp_packets


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def echo_rtts(
    targets: Iterable[tuple[str, str, str]], *, count: int, interval_s: float, wait_s: float
) -> dict[str, list[float]]:
    """Round-trip times by ICMP echo, all targets at once.

    Args:
        targets: (name, namespace path of the asking host, address asked).
        count, interval_s: echo requests a target, and the real time between them.
        wait_s: for answers after the last request.

    Returns:
        name -> RTTs [real s], taken from the kernel's receive times; lost requests are missing.
    """
    ident = os.getpid() & 0xFFFF
    rtts: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        sockets = []
        for name, netns, address in targets:
            with inside(netns):
                sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            stack.enter_context(sock)
            stamp_packets(sock)
            sock.setblocking(False)
            rtts[name] = []
            selector.register(sock, selectors.EVENT_READ, name)
            sockets.append((sock, address))
        begin = time.monotonic()
        sent = 0
        end = begin + (count - 1) * interval_s + wait_s
        while (now := time.monotonic()) < end and any(len(found) < count for found in rtts.values()):
            if sent < count and now >= begin + sent * interval_s:
                for sock, address in sockets:
                    with contextlib.suppress(OSError):  # a link that is down: its answers will be missing
                        sock.sendto(_echo_request(ident, sent), (address, 0))
                sent += 1
                continue
            due = begin + sent * interval_s if sent < count else end
            for key, _ in selector.select(max(0.0, due - now)):
                with contextlib.suppress(BlockingIOError):
                    rtt = _answered(key.fileobj, ident)
                    if rtt is not None:
                        rtts[key.data].append(rtt)
    return rtts


def _echo_request(ident: int, number: int) -> bytes:
    body = struct.pack("!d", time.time()) + bytes(48)
    head = struct.pack("!BBHHH", 8, 0, 0, ident, number)
    return struct.pack("!BBHHH", 8, 0, _checksum(head + body), ident, number) + body


def _answered(sock: socket.socket, ident: int) -> float | None:
    """The round-trip time of an answer to one of our requests [s]; None for any other packet."""
    packet, extra, _, _ = sock.recvmsg(256, 64)
    icmp = packet[(packet[0] & 15) * 4 :]
    if icmp[0] != 0 or struct.unpack_from("!H", icmp, 4)[0] != ident:
        return None
    (sent_s,) = struct.unpack_from("!d", icmp, 8)
    return stamp(extra) - sent_s
