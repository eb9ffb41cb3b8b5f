"""The delay line's inner loop: read packets' metadata, hold each until due, give verdicts in batches."""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import time
from collections.abc import Callable, Mapping

from testbed.emulation.delay import netfilter, shared_stats
from testbed.emulation.delay.batch_reader import SLOT, BatchReader
from testbed.emulation.delay.lanes import LOST, Lane, Lanes
from testbed.emulation.delay.packets import PACKET, Layout, parse

READ_BATCH = 64
VERDICT_BATCH = 32  # each verdict sends a packet on within the call, some 5 us: more would make others late
EARLY_NS = 10_000  # release what is due this soon along with what is due now
BUSY_PER_S = 15_000  # packets; beyond, wake-ups are made as rare as interrupts of network cards at bulk rates:
BUSY_EARLY_NS = 200_000  # release what is due this soon
LOAD_NS = 10_000_000  # how often the load is looked at
REST_NS = 500_000  # while packets come read no more often than this, since the kernel tells when they came;
UNSTAMPED_REST_NS = 200_000  # where it doesn't, behind uplinks: then what was read last is taken for it
_HEAD = -1  # in place of a packet id: the heap entry stands for the head of a lane's queue
_MIX = 8  # bits of queue number beside a packet's id, which counts up in each queue


def pace(shortest_ns: int, stamped: bool) -> tuple[int, int]:
    """How long reading may rest while packets come, and how early a busy line releases [ns].

    Args:
        shortest_ns: the shortest delay of all lanes, see `Lanes`.
        stamped: whether packets' times are right behind uplinks, too; see stamps.py.
    """
    quarter = shortest_ns // 4
    return min(REST_NS if stamped else UNSTAMPED_REST_NS, quarter), max(EARLY_NS, min(BUSY_EARLY_NS, quarter))


class DelayLine:
    """Holds the packets of all queues until they are due. compiled_line.py has the same in C.

    Args:
        sock: reader of the queues.
        macs: MAC address (6 bytes) -> host.
        ports: index of the bridge's port -> the host behind it.
        memory: where lags are counted, see shared_stats.

    stamped: to be set before the first packet; see `pace`.
    """

    loop = "python"

    def __init__(
        self, sock: socket.socket, lanes: Lanes, macs: Mapping[bytes, str], ports: Mapping[int, str], memory: memoryview
    ):
        # The epoll comes first: select(), the one call of Python's that waits by the microsecond, takes only
        # descriptors below 1024.
        self._epoll = select.epoll()
        self._sock = sock
        self._fd = sock.fileno()
        self._lanes = lanes
        self._macs = macs
        self._ports = ports
        self._memory = memory
        self._handlers: dict[int, Callable[[], None]] = {self._fd: self._receive}
        self._epoll.register(self._fd, select.EPOLLIN)
        self._by_port: dict[int, dict[bytes, Lane]] = {port: {} for port in ports}
        self._heap: list[tuple[int, int, Lane, int]] = []
        self._order = itertools.count()
        self._reader = BatchReader(READ_BATCH)
        self._layout: Layout | None = None
        self._drained = time.monotonic_ns()  # when the socket was last seen empty
        self._buffer = netfilter.verdicts(VERDICT_BATCH)
        every = memoryview(self._buffer)
        self._views = [every[: netfilter.VERDICT_BYTES * n] for n in range(VERDICT_BATCH + 1)]
        self._count = 0  # verdicts in the buffer
        self._dues: list[int] = []  # of the packets accepted among them
        self.stamped = False
        self._last_read = self._read_at = 0
        self._set_pace()
        lanes.on_change = self._set_pace
        self._early, self._load_since, self._load_packets = EARLY_NS, self._drained, 0
        self.packets = self.released = self.lost = 0

    def add_handler(self, fd: int, call: Callable[[], None]) -> None:
        """Have `call` run whenever `fd` can be read."""
        self._handlers[fd] = call
        self._epoll.register(fd, select.EPOLLIN)

    @property
    def queued(self) -> int:
        return self.packets - self.released - self.lost

    def turn(self, latest_ns: int) -> None:
        """Wait for packets, for the next due time or until `latest_ns` (monotonic), then do what is to do."""
        heap, before = self._heap, self.packets
        until = min(heap[0][0], latest_ns) if heap else latest_ns
        now = time.monotonic_ns()
        wait, rest = max(0, until - now), self._read_at - now
        if rest > 0:
            # Packets keep coming: being woken by each would cost more than delaying it.
            time.sleep(min(wait, rest) * 1e-9)
        else:
            select.select((self._epoll,), (), (), wait * 1e-9)
        if wait >= rest:
            for fd, _ in self._epoll.poll(0):
                self._handlers[fd]()
            if self.packets > before:
                began = time.monotonic_ns()
                self._read_at = began + self._rest if began - self._last_read < 2 * self._rest else 0
                self._last_read = began
        self._release()

    def _set_pace(self, _: object = None) -> None:
        self._rest, self._busy_early = pace(self._lanes.shortest, self.stamped)

    def _receive(self) -> None:
        now = time.monotonic_ns()
        count = self._reader.read(self._fd)
        if not count:
            return
        if (span := now - self._load_since) >= LOAD_NS:
            busy = (self.packets - self._load_packets) * 1_000_000_000 > BUSY_PER_S * span
            self._early = self._busy_early if busy else EARLY_NS
            self._load_since, self._load_packets = now, self.packets
        self.packets += count
        slots = self._reader.slots[: count * SLOT]
        if self._layout is None:
            self._layout = Layout(slots)
        layout, headers = self._layout.struct, self._layout.headers
        gap, drained = time.time_ns() - time.monotonic_ns(), self._drained
        by_port, heap = self._by_port, self._heap
        for index, fields in enumerate(layout.iter_unpack(slots)):
            kind, queue, packet_id, out_header, out, mac_header, mac, time_header, seconds, micros = fields
            if kind != PACKET:
                self.packets -= 1
                continue
            if (out_header, mac_header, time_header) != headers:
                queue, packet_id, out, mac, seconds, micros = parse(slots[index * SLOT : (index + 1) * SLOT])
            arrived = seconds * 1_000_000_000 + micros * 1000 - gap if seconds else now
            if not drained <= arrived <= now:  # the clock was set; or the time is not of this queue's arrival
                arrived = drained if arrived < drained else now
            lanes = by_port.get(out)
            lane = lanes.get(mac) if lanes else None
            if lane is None:
                lane = self._new_lane(out, mac)
            due = lane.due(arrived)
            if due == LOST:
                self._verdict(queue, netfilter.DROP, packet_id)
                continue
            waiting = lane.waiting
            key = packet_id << _MIX | queue
            if not waiting:
                waiting.append((due, key))
                heapq.heappush(heap, (due, next(self._order), lane, _HEAD))
            elif due >= waiting[-1][0]:
                waiting.append((due, key))
            else:  # it overtakes
                heapq.heappush(heap, (due, next(self._order), lane, key))
        if count < READ_BATCH:
            self._drained = now

    def _new_lane(self, out: int, mac: bytes) -> Lane:
        lane = self._lanes.lane(self._macs.get(mac, ""), self._ports.get(out, ""))
        self._by_port.setdefault(out, {})[mac] = lane
        self._set_pace()
        return lane

    def _release(self) -> None:
        heap, now = self._heap, time.monotonic_ns() + self._early
        while heap and heap[0][0] <= now:
            due, _, lane, key = heapq.heappop(heap)
            if key != _HEAD:
                self._accept(due, key)
            else:
                waiting = lane.waiting
                while waiting and waiting[0][0] <= now:
                    self._accept(*waiting.popleft())
                if waiting:
                    heapq.heappush(heap, (waiting[0][0], next(self._order), lane, _HEAD))
            now = time.monotonic_ns() + self._early
        if self._count:
            self._flush()

    def _accept(self, due: int, key: int) -> None:
        self._dues.append(due)
        self._verdict(key & (1 << _MIX) - 1, netfilter.ACCEPT, key >> _MIX)

    def _verdict(self, queue: int, verdict: int, packet_id: int) -> None:
        netfilter.VERDICT_FIELDS.pack_into(
            self._buffer,
            self._count * netfilter.VERDICT_BYTES + netfilter.VERDICT_AT,
            queue,
            netfilter.VERDICT_HEADER,
            verdict,
            packet_id,
        )
        self._count += 1
        if self._count == VERDICT_BATCH:
            self._flush()

    def _flush(self) -> None:
        self._sock.send(self._views[self._count])
        now = time.monotonic_ns()  # the kernel has sent them all on by now: a lag is never understated
        memory, bucket, dues = self._memory, shared_stats.bucket, self._dues
        for due in dues:
            memory[bucket(now - due)] += 1
        self.released += len(dues)
        self.lost += self._count - len(dues)
        self._count = 0
        dues.clear()
