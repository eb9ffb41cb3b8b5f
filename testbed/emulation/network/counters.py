"""Counters of the bottleneck queues, read from the kernel in one dump."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.emulation.kernel import netlink

_BUFFER_HANDLE = 0x10 << 16  # 'handle 10:' of shaping.add_bottleneck
_BUFFER_PARENT = 1 << 16 | 1  # 'parent 1:1'
_TCA_STATS2, _STATS_BASIC, _STATS_QUEUE = 7, 1, 3


@dataclass(frozen=True)
class QueueCounters:
    """One bottleneck since its start: what has left it, what it dropped for want of room, what waits now.

    Bytes count Ethernet frames (IP packet + 14).
    """

    bytes: int = 0
    packets: int = 0
    drops: int = 0
    backlog_bytes: int = 0


class QueueReader:
    """Reads all bottlenecks' counters in the namespace of `route`; some milliseconds for 256 homes."""

    def __init__(self, route: netlink.Route, interfaces: Mapping[str, int]):
        """`interfaces`: index of each interface that has a bottleneck, by name."""
        self._route, self._names = route, {index: name for name, index in interfaces.items()}

    def read(self) -> dict[str, QueueCounters]:
        """By interface. Raises OSError: the namespace is gone."""
        found = {}
        for data, at, end in self._route.dump_qdiscs():
            index, handle = struct.unpack_from("=iI", data, at + 4)
            name = self._names.get(index)
            if handle != _BUFFER_HANDLE or name is None:
                continue
            found[name] = self._of(data, at, end)
        return found

    def read_one(self, index: int) -> QueueCounters:
        """Of the interface with this index; some 20 us. Raises OSError: it is gone."""
        return self._of(*self._route.qdisc(index, _BUFFER_PARENT))

    def _of(self, data: bytes, at: int, end: int) -> QueueCounters:
        for kind, start, stop in netlink.attributes(data, at + 20, end):
            if kind == _TCA_STATS2:
                return self._counters(data, start, stop)
        return QueueCounters()

    @staticmethod
    def _counters(data: bytes, at: int, end: int) -> QueueCounters:
        sent, packets, backlog, drops = 0, 0, 0, 0
        for kind, start, _ in netlink.attributes(data, at, end):
            if kind == _STATS_BASIC:
                sent, packets = struct.unpack_from("=QI", data, start)
            elif kind == _STATS_QUEUE:
                _, backlog, drops = struct.unpack_from("=III", data, start)
        return QueueCounters(sent, packets, drops, backlog)
