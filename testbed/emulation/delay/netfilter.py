"""The kernel's NFQUEUE, spoken to directly over netlink.

Written out here, rather than through a binding of libnetfilter_queue, because a delay line lives from what
bindings leave out: many packets read in one system call and many verdicts sent in one, no object a packet,
the kernel's receive time of each, no segmentation of large ones (NFQA_CFG_F_GSO), many queues a socket.

Sources: linux/netfilter/nfnetlink_queue.h, linux/netfilter/nf_tables.h, linux/netfilter/xt_NFQUEUE.h.
Messages are in the machine's byte order, attributes of netfilter in network order.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

NETLINK_NETFILTER = 12
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5

# linux/netfilter/nfnetlink.h
_SUBSYS_QUEUE, _SUBSYS_NFTABLES = 3, 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_F_REQUEST, _F_ACK, _F_CREATE, _F_APPEND = 0x1, 0x4, 0x400, 0x800
_NLMSG_ERROR = 2
# linux/netfilter/nfnetlink_queue.h
_PACKET, VERDICT, _CONFIG = 0, 1, 2
PACKET = _SUBSYS_QUEUE << 8 | _PACKET  # the type of messages that tell of a packet
_CFG_CMD, _CFG_PARAMS, _CFG_MAXLEN, _CFG_MASK, _CFG_FLAGS = 1, 2, 3, 4, 5
_CMD_BIND, _COPY_META, _F_GSO = 1, 1, 1 << 2
A_PACKET_HDR, A_VERDICT_HDR, A_TIMESTAMP, A_OUTDEV, A_PHYSOUTDEV, A_HWADDR = 1, 2, 4, 6, 8, 9
DROP, ACCEPT = 0, 1

TABLE = b"testbed_delay"


def _attr(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _nest(kind: int, *parts: bytes) -> bytes:
    return _attr(kind | 0x8000, b"".join(parts))


def _message(kind: int, flags: int, body: bytes, *, family: int = 0, res_id: int = 0, seq: int = 0) -> bytes:
    """A netlink message with netfilter's header (family, version 0, res_id)."""
    return (
        struct.pack("=IHHII", 20 + len(body), kind, flags | _F_REQUEST, seq, 0)
        + struct.pack("=BB", family, 0)
        + struct.pack(">H", res_id)
        + body
    )


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
            data = data[(length + 3) & ~3 :]


def set_buffer(sock: socket.socket, size: int) -> None:
    """How many bytes of messages may wait to be read. Beyond, the kernel drops packets and counts them."""
    sock.setsockopt(socket.SOL_SOCKET, 33, size)  # SO_RCVBUFFORCE
    sock.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)


def bind_queue(sock: socket.socket, number: int, max_packets: int) -> None:
    """Make `sock` a reader of queue `number`: packets' metadata only, big packets whole.

    Raises:
        OSError: EBUSY when another process reads this queue; EOPNOTSUPP or EINVAL without kernel support.
    """
    kind = _SUBSYS_QUEUE << 8 | _CONFIG
    parts = (
        _attr(_CFG_CMD, struct.pack(">BxH", _CMD_BIND, socket.AF_INET)),
        _attr(_CFG_PARAMS, struct.pack(">IB", 0, _COPY_META)),
        _attr(_CFG_MAXLEN, struct.pack(">I", max_packets)),
        _attr(_CFG_FLAGS, struct.pack(">I", _F_GSO)) + _attr(_CFG_MASK, struct.pack(">I", _F_GSO)),
    )
    for part in parts:
        _acknowledged(sock, _message(kind, _F_ACK, part, res_id=number), 1)


VERDICT_BYTES = 32
VERDICT_AT = 18  # where the fields below begin in a message
VERDICT_FIELDS = struct.Struct(">HIII")  # queue number, VERDICT_HEADER, verdict, packet id
VERDICT_HEADER = int.from_bytes(struct.pack("=HH", 12, A_VERDICT_HDR), "big")


def verdicts(count: int) -> bytearray:
    """Room for `count` verdict messages; write VERDICT_FIELDS at VERDICT_AT of each, VERDICT_BYTES apart."""
    one = struct.pack("=IHHIIBB14x", VERDICT_BYTES, _SUBSYS_QUEUE << 8 | VERDICT, _F_REQUEST, 0, 0, 0, 0)
    return bytearray(one * count)


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


_be32 = struct.Struct(">I").pack
_BRIDGE = 7  # NFPROTO_BRIDGE
_FORWARD = 2  # the hook's number in both families
_PRIORITY = -200  # before the filters that someone may have


def _expression(name: bytes, *attributes: bytes) -> bytes:
    return _nest(1, _attr(1, name + b"\0"), _nest(2, *attributes))


def _meta_equals(key: int, value: bytes) -> tuple[bytes, bytes]:
    """Register 1 <- a property of the packet; go on if it begins with `value`."""
    return (
        _expression(b"meta", _attr(1, _be32(1)), _attr(2, _be32(key))),
        _expression(b"cmp", _attr(1, _be32(1)), _attr(2, _be32(0)), _nest(3, _attr(1, value))),
    )


def _physdev_out(prefix: bytes) -> bytes:
    """iptables' `-m physdev --physdev-out PREFIX+`."""
    out = prefix.ljust(16, b"\0") + (b"\xff" * len(prefix)).ljust(16, b"\0")
    return _expression(
        b"match", _attr(1, b"physdev\0"), _attr(2, _be32(0)), _attr(3, bytes(32) + out + struct.pack("=BB6x", 0, 0x02))
    )


def _native_queue(queues: int) -> bytes:
    return _expression(b"queue", _attr(1, struct.pack(">H", 0)), _attr(2, struct.pack(">H", queues)))


def _xt_queue(queues: int) -> bytes:
    """iptables' `-j NFQUEUE --queue-balance 0:N`."""
    return _expression(b"target", _attr(1, b"NFQUEUE\0"), _attr(2, _be32(1)), _attr(3, struct.pack("=HH4x", 0, queues)))


def _nft(sock: socket.socket, family: int, *requests: tuple[int, int, bytes]) -> None:
    """One transaction of nf_tables requests (kind, flags, attributes)."""
    begin = _message(_BATCH_BEGIN, 0, b"", res_id=_SUBSYS_NFTABLES)
    end = _message(_BATCH_END, 0, b"", res_id=_SUBSYS_NFTABLES)
    body = b"".join(
        _message(_SUBSYS_NFTABLES << 8 | kind, flags | _F_ACK, data, family=family, seq=i + 1)
        for i, (kind, flags, data) in enumerate(requests)
    )
    _acknowledged(sock, begin + body + end, len(requests))


def _iptables_see_bridged() -> None:
    """IPv4 hooks for bridged packets, in the calling thread's namespace.

    Raises OSError without br_netfilter.
    """
    with open("/proc/sys/net/bridge/bridge-nf-call-iptables", "r+") as switch:
        if switch.read().strip() != "1":
            switch.seek(0)
            switch.write("1")


def add_rule(sock: socket.socket, prefix: str, queues: int) -> str:
    """Send the IPv4 packets that a bridge forwards to ports named PREFIX* to queues 0 … queues - 1.

    A pair of hosts always uses the same queue. The rule has a table of its own. The calling thread must be in
    the socket's namespace. Which way works depends on the kernel, so they are tried in turn: nf_tables' own
    `queue` on bridged packets; iptables' NFQUEUE target there (it lost the bridge family in Linux 6.12); that
    target on IPv4's hooks, which br_netfilter has bridged packets pass.

    Returns:
        The rule in words.

    Raises:
        OSError: none of them works; the last one's error.
    """
    ports, ip = prefix.encode(), _meta_equals(1, struct.pack(">H", 0x0800))
    out = _meta_equals(7, ports)
    ways = (
        ("bridge", f"meta protocol ip oifname {prefix}*", "queue", (*ip, *out), _native_queue(queues)),
        ("bridge", f"meta protocol ip oifname {prefix}*", "NFQUEUE", (*ip, *out), _xt_queue(queues)),
        ("ip", f"physdev out {prefix}*", "queue", (_physdev_out(ports),), _native_queue(queues)),
        ("ip", f"physdev out {prefix}*", "NFQUEUE", (_physdev_out(ports),), _xt_queue(queues)),
    )
    hook = _nest(4, _attr(1, _be32(_FORWARD)), _attr(2, struct.pack(">i", _PRIORITY)))
    table = TABLE + b"\0"
    failed = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for family, match, action, matches, queue in ways:
        try:
            if family == "ip":
                _iptables_see_bridged()
            _nft(
                sock,
                _BRIDGE if family == "bridge" else socket.AF_INET,
                (0, _F_CREATE, _attr(1, table)),
                (3, _F_CREATE, _attr(1, table) + _attr(3, b"forward\0") + hook + _attr(7, b"filter\0")),
                (6, _F_CREATE | _F_APPEND, _attr(1, table) + _attr(2, b"forward\0") + _nest(4, *matches, queue)),
            )
            return f"table {family} {TABLE.decode()}, hook forward: {match} {action} 0-{queues - 1}"
        except OSError as error:
            failed = error
    raise failed


def remove_rule(sock: socket.socket) -> None:
    """Take away what add_rule made; no error when it is gone already."""
    for family in (_BRIDGE, socket.AF_INET):
        try:
            _nft(sock, family, (2, 0, _attr(1, TABLE + b"\0")))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                raise


def has_rule(sock: socket.socket) -> bool:
    """Whether what add_rule makes is in the socket's namespace."""
    for family in (_BRIDGE, socket.AF_INET):
        request = _message(_SUBSYS_NFTABLES << 8 | 1, _F_ACK, _attr(1, TABLE + b"\0"), family=family)
        try:
            _acknowledged(sock, request, 1)
            return True
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                raise
    return False
