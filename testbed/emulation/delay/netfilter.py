"""The kernel's NFQUEUE, spoken to directly over netlink.

Written out here, rather than through a binding of libnetfilter_queue, because a delay line lives from what bindings
leave out: many packets read in one system call and many verdicts sent in one, no object a packet, the kernel's
receive time of each packet, no segmentation of large packets (NFQA_CFG_F_GSO), and one socket a namespace.

Sources: linux/netfilter/nfnetlink_queue.h, linux/netfilter/nf_tables.h, linux/netfilter/xt_NFQUEUE.h.
Messages are in the machine's byte order, attributes of netfilter in network order.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator

NETLINK_NETFILTER = 12
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5
CLONE_NEWNET = 0x40000000

# linux/netfilter/nfnetlink.h
_SUBSYS_QUEUE, _SUBSYS_NFTABLES = 3, 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_F_REQUEST, _F_ACK, _F_CREATE, _F_APPEND = 0x1, 0x4, 0x400, 0x800
_NLMSG_ERROR = 2
# linux/netfilter/nfnetlink_queue.h
PACKET, VERDICT, _CONFIG = 0, 1, 2
_CFG_CMD, _CFG_PARAMS, _CFG_MAXLEN, _CFG_MASK, _CFG_FLAGS = 1, 2, 3, 4, 5
_CMD_BIND, _COPY_META, _F_GSO = 1, 1, 1 << 2
A_PACKET_HDR, A_VERDICT_HDR, A_TIMESTAMP, A_HWADDR = 1, 2, 4, 9
DROP, ACCEPT = 0, 1

TABLE = b"testbed_delay"

_libc = ctypes.CDLL(None, use_errno=True)


def _attr(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _nest(kind: int, *parts: bytes) -> bytes:
    return _attr(kind | 0x8000, b"".join(parts))


def _message(kind: int, flags: int, body: bytes, *, family: int = 0, res_id: int = 0, seq: int = 0) -> bytes:
    """A netlink message with netfilter's header (family, version 0, res_id)."""
    return (
        struct.pack("=IHHII", 20 + len(body), kind, flags | _F_REQUEST, seq, 0)
        + struct.pack("=BB", family, 0) + struct.pack(">H", res_id) + body
    )


def setns(fd: int) -> None:
    """Move this thread (other threads stay) into the network namespace of the open file `fd`."""
    if _libc.setns(fd, CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


@contextlib.contextmanager
def inside(netns: str) -> Iterator[None]:
    """This thread is in the network namespace at path `netns` while the context lasts. Raises OSError."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(netns, os.O_RDONLY)
        try:
            setns(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            setns(home)
    finally:
        os.close(home)


def open_socket() -> socket.socket:
    """A netfilter netlink socket of the namespace that the calling thread is in; it stays there for good."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    sock.bind((0, 0))
    return sock


def _acknowledged(sock: socket.socket, messages: bytes, acks: int) -> None:
    """Send and wait for `acks` acknowledgements; an error in one of them is raised."""
    sock.settimeout(2.0)
    sock.send(messages)
    while acks:
        data = sock.recv(1 << 16)
        while len(data) >= 20:
            length, kind = struct.unpack_from("=IH", data)
            if kind == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", data, 16)[0]
                if code:
                    raise OSError(code, f"netfilter: {os.strerror(code)}")
                acks -= 1
            data = data[(length + 3) & ~3:]


def bind_queue(sock: socket.socket, number: int, max_packets: int, buffer_bytes: int) -> None:
    """Make `sock` the reader of queue `number`: packets' metadata only, big packets whole.

    Raises:
        OSError: EBUSY when another process reads this queue; EOPNOTSUPP or EINVAL without kernel support.
    """
    kind = _SUBSYS_QUEUE << 8 | _CONFIG
    sock.setsockopt(socket.SOL_SOCKET, 33, buffer_bytes)  # SO_RCVBUFFORCE
    sock.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
    parts = (
        _attr(_CFG_CMD, struct.pack(">BxH", _CMD_BIND, socket.AF_INET)),
        _attr(_CFG_PARAMS, struct.pack(">IB", 0, _COPY_META)),
        _attr(_CFG_MAXLEN, struct.pack(">I", max_packets)),
        _attr(_CFG_FLAGS, struct.pack(">I", _F_GSO)) + _attr(_CFG_MASK, struct.pack(">I", _F_GSO)),
    )
    for part in parts:
        _acknowledged(sock, _message(kind, _F_ACK, part, res_id=number), 1)


VERDICT_BYTES = 32
_VERDICT = struct.Struct("=IHHII BBH HH 8x".replace(" ", ""))


def verdicts(number: int, count: int) -> bytearray:
    """Room for `count` verdict messages of queue `number`; write (verdict, packet id) at VERDICT_AT of each."""
    one = _VERDICT.pack(
        VERDICT_BYTES, _SUBSYS_QUEUE << 8 | VERDICT, _F_REQUEST, 0, 0, 0, 0, socket.htons(number), 12, A_VERDICT_HDR
    )
    return bytearray(one * count)


VERDICT_AT = 24
VERDICT_FIELDS = struct.Struct(">II")  # verdict, packet id


def attributes(message: bytes) -> dict[int, int]:
    """Attribute kind -> offset of its data, for one netfilter message."""
    found, at, end = {}, 20, struct.unpack_from("=I", message)[0]
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = at + 4
        at += (length + 3) & ~3
    return found


def _rule(interface: str, queue_expression: bytes) -> bytes:
    """nf_tables expressions: packets that came in by `interface` go to the queue."""
    name = interface.encode().ljust(16, b"\0")
    be = struct.Struct(">I").pack
    expressions = (
        (b"meta\0", _attr(1, be(1)) + _attr(2, be(6))),  # register 1 <- name of the input interface
        (b"cmp\0", _attr(1, be(1)) + _attr(2, be(0)) + _nest(3, _attr(1, name))),
    )
    elements = [_nest(1, _attr(1, kind), _nest(2, data)) for kind, data in expressions]
    return _nest(4, *elements, queue_expression)


def _queue_target(number: int) -> bytes:
    """xt_NFQUEUE, as iptables-nft uses it."""
    info = struct.pack("=H6x", number)
    return _nest(1, _attr(1, b"target\0"),
                 _nest(2, _attr(1, b"NFQUEUE\0"), _attr(2, struct.pack(">I", 0)), _attr(3, info)))


def _queue_native(number: int) -> bytes:
    """nf_tables' own queue expression, which some kernels lack (CONFIG_NFT_QUEUE)."""
    return _nest(1, _attr(1, b"queue\0"), _nest(2, _attr(1, struct.pack(">H", number))))


def _nft(sock: socket.socket, *requests: tuple[int, int, bytes]) -> None:
    """One transaction of nf_tables requests (kind, flags, attributes) in the IPv4 family."""
    begin = _message(_BATCH_BEGIN, 0, b"", res_id=_SUBSYS_NFTABLES)
    end = _message(_BATCH_END, 0, b"", res_id=_SUBSYS_NFTABLES)
    body = b"".join(
        _message(_SUBSYS_NFTABLES << 8 | kind, flags | _F_ACK, data, family=socket.AF_INET, seq=i + 1)
        for i, (kind, flags, data) in enumerate(requests)
    )
    _acknowledged(sock, begin + body + end, len(requests))


def add_rule(sock: socket.socket, interface: str, number: int) -> None:
    """Send what enters by `interface` to queue `number`: an own table, hook prerouting, priority mangle.

    Raises:
        OSError: this kernel knows neither nf_tables' queue nor NFQUEUE through it.
    """
    table = _attr(1, TABLE + b"\0")
    hook = _nest(4, _attr(1, struct.pack(">I", 0)), _attr(2, struct.pack(">i", -150)))
    for attempt, queue in enumerate((_queue_target, _queue_native)):
        try:
            return _nft(
                sock,
                (0, _F_CREATE, table),
                (3, _F_CREATE, _attr(1, TABLE + b"\0") + _attr(3, b"pre\0") + hook + _attr(7, b"filter\0")),
                (6, _F_CREATE | _F_APPEND,
                 _attr(1, TABLE + b"\0") + _attr(2, b"pre\0") + _rule(interface, queue(number))),
            )
        except OSError as error:
            if attempt or error.errno not in (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT):
                raise
    return None


def remove_rule(sock: socket.socket) -> None:
    """Take away what add_rule made; no error when it is gone already."""
    try:
        _nft(sock, (2, 0, _attr(1, TABLE + b"\0")))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
