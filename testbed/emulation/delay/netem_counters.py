"""What all netems of a run have delayed and lost, read from the kernel in one dump."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from testbed.emulation.delay.base import DelayStats
from testbed.emulation.kernel import netlink
from testbed.emulation.kernel.namespaces import in_thread, inside

HANDLE = 0xDE  # major number of every netem of the delay line
_TCA_STATS2, _STATS_BASIC, _STATS_QUEUE = 7, 1, 3


class NetemCounters:
    """Counters of the netems on some interfaces of a namespace."""

    def __init__(self, netns: str, interfaces: Iterable[str]):
        def open_there() -> tuple[netlink.Route, set[int]]:
            with inside(netns):
                return netlink.Route(), {socket.if_nametoindex(name) for name in interfaces}

        self._route, self._indexes = in_thread(open_there)

    def read(self) -> DelayStats:
        """Sums over all netems: a packet passes two or more. Raises OSError: the namespace is gone."""
        packets = queued = drops = 0
        for data, at, end in self._route.dump_qdiscs():
            index, handle = struct.unpack_from("=iI", data, at + 4)
            if handle != HANDLE << 16 or index not in self._indexes:
                continue
            for kind, start, stop in netlink.attributes(data, at + 20, end):
                if kind != _TCA_STATS2:
                    continue
                for what, where, _ in netlink.attributes(data, start, stop):
                    if what == _STATS_BASIC:
                        packets += struct.unpack_from("=QI", data, where)[1]
                    elif what == _STATS_QUEUE:
                        waiting, _, dropped = struct.unpack_from("=III", data, where)
                        queued, drops = queued + waiting, drops + dropped
        total = packets + queued + drops
        return DelayStats(packets=total, released=packets, lost_by_setting=drops, queued=queued)

    def close(self) -> None:
        self._route.close()
