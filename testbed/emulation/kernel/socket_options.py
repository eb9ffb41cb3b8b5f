"""Socket options that Python's socket module has no name for (linux/socket.h, linux/in.h, linux/udp.h)."""

from __future__ import annotations

import socket
import struct

SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # as SO_SNDBUF and SO_RCVBUF, beyond the machine's limits
SO_TIMESTAMPNS = 35  # each packet comes with the time at which the kernel received it
SO_MAX_PACING_RATE = 47
IP_MTU = 14
UDP_SEGMENT = 103  # one system call's bytes become datagrams of this size


def stamp_packets(sock: socket.socket) -> None:
    """Have the kernel stamp what this socket receives."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def stamp(ancillary: list) -> float:
    """When the kernel received a packet [s, CLOCK_REALTIME], from what recvmsg gave beside it."""
    seconds, ns = struct.unpack("ll", ancillary[0][2])
    return seconds + ns * 1e-9
