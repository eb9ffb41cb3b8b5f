"""The kernel's notices of changed links and queues, and dumps of the same, as small records.

Sources: linux/rtnetlink.h (multicast groups, tcmsg), linux/pkt_sched.h (tc_htb_opt, tc_fifo_qopt,
tc_ratespec), linux/if_link.h.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from testbed.emulation.kernel.netlink import attributes

_GROUPS = 1 << 0 | 1 << 3  # RTMGRP_LINK, RTMGRP_TC
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_NEWQDISC, _DELQDISC = 36, 37
_NEWTCLASS, _DELTCLASS, _GETTCLASS = 40, 41, 42
_NEWTFILTER, _DELTFILTER = 44, 45
_REQUEST, _DUMP, _ERROR, _DONE = 0x1, 0x300, 2, 3
_IFF_UP, _IFF_LOWER_UP = 0x1, 0x10000
_TCA_KIND, _TCA_OPTIONS = 1, 2
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
BOTTLENECK_CLASS, ROOT_HANDLE, BUFFER_HANDLE = 0x10001, 0x10000, 0x100000  # 1:1, 1:, 10: of shaping.py


@dataclass(frozen=True)
class LinkNotice:
    """An interface as it is now. up: administratively; carrier: and its other end is up too."""

    index: int
    name: str
    up: bool
    carrier: bool
    gone: bool = False


@dataclass(frozen=True)
class ClassNotice:
    """An HTB class as it is now: rates [bit/s]. gone: it was deleted."""

    index: int
    handle: int
    rate_bps: float
    ceil_bps: float
    gone: bool = False


@dataclass(frozen=True)
class QueueNotice:
    """A queueing discipline as it is now. limit_bytes: of a bfifo, else None."""

    index: int
    handle: int
    kind: str
    limit_bytes: int | None = None
    gone: bool = False


@dataclass(frozen=True)
class FilterNotice:
    """Filters of an interface changed."""

    index: int
    gone: bool


Notice = LinkNotice | ClassNotice | QueueNotice | FilterNotice


def parse(data: bytes) -> Iterator[Notice]:
    """The records in what was read from the socket; kinds of message that don't matter are left out."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if length < 16:
            return
        end = at + length
        if kind in (_NEWLINK, _DELLINK):
            yield _link(data, at + 16, end, kind == _DELLINK)
        elif kind in (_NEWTCLASS, _DELTCLASS):
            yield _class(data, at + 16, end, kind == _DELTCLASS)
        elif kind in (_NEWQDISC, _DELQDISC):
            yield _queue(data, at + 16, end, kind == _DELQDISC)
        elif kind in (_NEWTFILTER, _DELTFILTER):
            yield FilterNotice(struct.unpack_from("=i", data, at + 20)[0], kind == _DELTFILTER)
        at += (length + 3) & ~3


def _link(data: bytes, at: int, end: int, gone: bool) -> LinkNotice:
    index, flags = struct.unpack_from("=iI", data, at + 4)
    name = ""
    for kind, start, stop in attributes(data, at + 16, end):
        if kind == 3:  # IFLA_IFNAME
            name = data[start:stop].rstrip(b"\0").decode(errors="replace")
    return LinkNotice(index, name, bool(flags & _IFF_UP), bool(flags & _IFF_LOWER_UP), gone)


def _class(data: bytes, at: int, end: int, gone: bool) -> ClassNotice:
    index, handle = struct.unpack_from("=iI", data, at + 4)
    rate = ceil = 0
    for kind, start, stop in attributes(data, at + 20, end):
        if kind != _TCA_OPTIONS:
            continue
        for inner, first, _ in attributes(data, start, stop):
            if inner == _HTB_PARMS:
                rate, ceil = (struct.unpack_from("=I", data, first + offset)[0] for offset in (8, 20))
            elif inner == _HTB_RATE64:  # beyond 32 bits; comes after the parameters
                (rate,) = struct.unpack_from("=Q", data, first)
            elif inner == _HTB_CEIL64:
                (ceil,) = struct.unpack_from("=Q", data, first)
    return ClassNotice(index, handle, 8.0 * rate, 8.0 * ceil, gone)


def _queue(data: bytes, at: int, end: int, gone: bool) -> QueueNotice:
    index, handle = struct.unpack_from("=iI", data, at + 4)
    name, limit = "", None
    for kind, start, stop in attributes(data, at + 20, end):
        if kind == _TCA_KIND:
            name = data[start:stop].rstrip(b"\0").decode(errors="replace")
        elif kind == _TCA_OPTIONS and name == "bfifo" and stop - start >= 4:
            (limit,) = struct.unpack_from("=I", data, start)
    return QueueNotice(index, handle, name, limit, gone)


class NoticeSocket:
    """An rtnetlink socket of the namespace that the calling thread is in; it stays there for good."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE: a thousand homes at once
        self._socket.setblocking(False)
        self._socket.bind((0, _GROUPS))
        self.missed = 0  # times that the kernel had no room for a notice

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> Iterator[Notice]:
        """What has come, without waiting."""
        while True:
            try:
                data = self._socket.recv(1 << 17)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.missed += 1
                continue
            yield from parse(data)


def dump(indexes: Iterable[int]) -> Iterator[Notice]:
    """All links of the calling thread's namespace, then the classes of these interfaces, as they are now."""
    with contextlib.closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)
        sock.settimeout(5.0)
        sock.bind((0, 0))
        yield from _dump(sock, _GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0))
        for index in indexes:
            yield from _dump(sock, _GETTCLASS, struct.pack("=BxxxiIII", 0, index, 0, 0, 0))


def _dump(sock: socket.socket, kind: int, body: bytes) -> Iterator[Notice]:
    sock.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | _DUMP, 1, 0) + body)
    while True:
        data = sock.recv(1 << 17)
        yield from parse(data)
        at = 0
        while at + 16 <= len(data):
            length, found = struct.unpack_from("=IH", data, at)
            if found == _DONE:
                return
            if found == _ERROR:
                code = -struct.unpack_from("=i", data, at + 16)[0]
                if code == errno.ENODEV:  # it went meanwhile
                    return
                raise OSError(code, f"rtnetlink dump: {os.strerror(code)}")
            at += (length + 3) & ~3
