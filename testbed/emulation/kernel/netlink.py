"""The few rtnetlink messages that are needed by the thousand: a host's set-up, and counters of all queues.

Written out here because a library that decodes every attribute takes a hundred times as long (one dump of
256 homes' queues a second has to cost next to nothing), and because `ip -batch` can't enter another
namespace a line.

Sources: linux/rtnetlink.h, linux/if_link.h, linux/pkt_sched.h, linux/gen_stats.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

_REQUEST, _ACK, _ECHO, _DUMP = 0x1, 0x4, 0x8, 0x300
_CREATE, _REPLACE = 0x400, 0x100
_NEWLINK, _GETLINK, _NEWADDR, _NEWROUTE, _NEWNEIGH, _NEWQDISC, _GETQDISC = 16, 18, 20, 24, 28, 36, 38
_ERROR, _DONE = 2, 3
_IFF_UP = 1
_IFA_F_NOPREFIXROUTE = 0x200
_NUD_PERMANENT = 0x80
_IFLA_OPERSTATE, _OPERSTATE_UP = 16, 6
_IFLA_LINKINFO, _INFO_SLAVE_DATA, _BRPORT_STATE, _BRPORT_FORWARDING = 18, 5, 1, 3


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _message(kind: int, flags: int, body: bytes, seq: int) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | flags, seq, 0) + body


def attributes(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(kind, start of data, end of data) of each attribute in data[at:end]."""
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, at + 4, at + length
        at += (length + 3) & ~3


def _nested(data: bytes, at: int, end: int, *kinds: int) -> int | None:
    """First byte of the attribute that lies under attributes of these kinds."""
    for wanted in kinds:
        place = next(((a, e) for kind, a, e in attributes(data, at, end) if kind == wanted), None)
        if place is None:
            return None
        at, end = place
    return data[at]


class Route:
    """An rtnetlink socket; it belongs, for good, to the network namespace that the caller is in now."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, 32, 1 << 20)  # SO_SNDBUFFORCE: all entries at once
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE
        self._socket.settimeout(10)
        self._socket.bind((0, 0))
        self._seq = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Route:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def send(self, requests: Sequence[Request], more: bytes = b"") -> None:
        """Send requests, and `more` (from `encode`), in one system call; wait until the kernel has done all.

        Raises:
            OSError: the first request that failed, with the kernel's error number.
        """
        self._seq += 1
        *others, (kind, flags, body) = requests
        self._socket.send(encode(others) + more + _message(kind, flags | _ACK, body, self._seq))
        failure = None
        while True:
            data = self._socket.recv(1 << 17)
            at = 0
            while at + 16 <= len(data):
                length, kind, _, seq = struct.unpack_from("=IHHI", data, at)
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", data, at + 16)[0]
                    if code and failure is None:
                        asked = struct.unpack_from("=H", data, at + 24)[0]
                        failure = OSError(code, f"rtnetlink request of type {asked}: {os.strerror(code)}")
                    if seq == self._seq:
                        if failure:
                            raise failure
                        return
                at += (length + 3) & ~3

    def forwards(self, index: int) -> bool:
        """Is an interface up with carrier and, if it is a bridge's port, in state forwarding?"""
        data, length = self._answer(_GETLINK, 0, struct.pack("=BxHiII", 0, 0, index, 0, 0))
        found = {kind: (at, end) for kind, at, end in attributes(data, 32, length)}
        up = data[found[_IFLA_OPERSTATE][0]] == _OPERSTATE_UP
        state = _nested(data, *found.get(_IFLA_LINKINFO, (0, 0)), _INFO_SLAVE_DATA, _BRPORT_STATE)
        return up and state in (None, _BRPORT_FORWARDING)

    def qdisc(self, index: int, parent: int) -> tuple[bytes, int, int]:
        """The one qdisc below `parent` (major << 16 | minor) of an interface; see `dump_qdiscs`. Raises OSError."""
        data, length = self._answer(_GETQDISC, _ECHO, struct.pack("=BxHiIII", 0, 0, index, 0, parent, 0))
        return data, 16, length

    def _answer(self, kind: int, flags: int, body: bytes) -> tuple[bytes, int]:
        """(buffer, its message's length) of the one answer to a request. Raises OSError."""
        self._seq += 1
        self._socket.send(_message(kind, flags, body, self._seq))
        while True:
            data = self._socket.recv(1 << 17)
            length, answered, _, seq = struct.unpack_from("=IHHI", data)
            if seq != self._seq:
                continue
            if answered == _ERROR:
                code = -struct.unpack_from("=i", data, 16)[0]
                raise OSError(code, f"rtnetlink: {os.strerror(code)}")
            return data, length

    def dump_qdiscs(self) -> Iterator[tuple[bytes, int, int]]:
        """(buffer, start, end) of each qdisc's message from its struct tcmsg on, statistics included."""
        self._seq += 1
        self._socket.send(_message(_GETQDISC, _DUMP, bytes(20), self._seq))
        while True:
            data = self._socket.recv(1 << 17)
            at = 0
            while at + 16 <= len(data):
                length, kind, _, seq = struct.unpack_from("=IHHI", data, at)
                if seq == self._seq:
                    if kind == _DONE:
                        return
                    if kind == _ERROR:
                        code = -struct.unpack_from("=i", data, at + 16)[0]
                        raise OSError(code, f"rtnetlink dump: {os.strerror(code)}")
                    if kind == _NEWQDISC:
                        yield data, at + 16, at + length
                at += (length + 3) & ~3


Request = tuple[int, int, bytes]  # message type, flags, body


def encode(requests: Iterable[Request]) -> bytes:
    """Requests as bytes, without acknowledgement (errors are answered all the same)."""
    return b"".join(_message(kind, flags, body, 0) for kind, flags, body in requests)


def link_up(index: int) -> Request:
    """ip link set dev … up"""
    return _NEWLINK, 0, struct.pack("=BxHiII", 0, 0, index, _IFF_UP, _IFF_UP)


def address(index: int, ip: str, prefix: int) -> Request:
    """ip addr add … noprefixroute: the route is added apart, with its congestion control."""
    packed = socket.inet_aton(ip)
    body = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, index)
    body += attribute(1, packed) + attribute(2, packed)
    body += attribute(8, struct.pack("=I", _IFA_F_NOPREFIXROUTE))
    return _NEWADDR, _CREATE | _REPLACE, body


_MAIN, _BY_KERNEL, _BY_BOOT, _TO_LINK, _TO_ALL, _UNICAST = 254, 2, 3, 253, 0, 1


def default_route(index: int, ip: str, gateway: str | None) -> Request:
    """ip route replace default [via GATEWAY] dev … src IP"""
    scope = _TO_ALL if gateway else _TO_LINK
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, _MAIN, _BY_BOOT, scope, _UNICAST, 0)
    body += attribute(4, struct.pack("=i", index)) + attribute(7, socket.inet_aton(ip))
    if gateway:
        body += attribute(5, socket.inet_aton(gateway))
    return _NEWROUTE, _CREATE | _REPLACE, body


def subnet_route(index: int, ip: str, prefix: int, congestion_control: str, rto_min_s: float) -> Request:
    """ip route replace SUBNET dev … src IP congctl NAME rto_min MS"""
    number = struct.unpack(">I", socket.inet_aton(ip))[0] & (0xFFFFFFFF << (32 - prefix))
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, prefix, 0, 0, _MAIN, _BY_KERNEL, _TO_LINK, _UNICAST, 0)
    body += attribute(1, struct.pack(">I", number)) + attribute(4, struct.pack("=i", index))
    body += attribute(7, socket.inet_aton(ip))
    locked = attribute(1, struct.pack("=I", 1 << 13))  # or the kernel takes it for a hint
    rto_min = locked + attribute(13, struct.pack("=I", round(1e3 * rto_min_s)))
    body += attribute(8, attribute(16, congestion_control.encode() + b"\0") + rto_min)
    return _NEWROUTE, _CREATE | _REPLACE, body


def neighbour(index: int, ip: str, mac: str) -> Request:
    """ip neigh replace IP lladdr MAC dev … nud permanent"""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _NUD_PERMANENT, 0, 0)
    body += attribute(1, socket.inet_aton(ip)) + attribute(2, bytes.fromhex(mac.replace(":", "")))
    return _NEWNEIGH, _CREATE | _REPLACE, body
