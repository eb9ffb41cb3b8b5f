"""The delay line's inner loop: read packets' metadata, hold each until it is due, hand back verdicts in batches."""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import struct
import time
from collections.abc import Callable

from testbed.emulation.delay import netfilter, shared_stats
from testbed.emulation.delay.batch_reader import SLOT, BatchReader
from testbed.emulation.delay.lanes import LOST, Lane, Lanes

READ_BATCH = 64
VERDICT_BATCH = 32  # each verdict runs the receiver's TCP in the kernel, some 5 us: more would make others late
_PAIR = -1  # in place of a packet id: the heap entry stands for the head of a lane's queue

# How the kernel lays out a packet's metadata when it has input interface, sender's address, and time, and no more.
_USUAL = struct.Struct(f">24x I 12x I 4x 6s 2x I QQ {SLOT - 76}x".replace(" ", ""))
_HWADDR_HEADER = int.from_bytes(struct.pack("=HH", 16, netfilter.A_HWADDR), "big")
_TIMESTAMP_HEADER = int.from_bytes(struct.pack("=HH", 20, netfilter.A_TIMESTAMP), "big")


def _parse(slot: memoryview) -> tuple[int, bytes, int, int]:
    """Packet id, sender's MAC address, seconds and microseconds of arrival (0 where the kernel gives no time)."""
    found = netfilter.attributes(slot)
    (packet_id,) = struct.unpack_from(">I", slot, found[netfilter.A_PACKET_HDR])
    at = found.get(netfilter.A_HWADDR)
    mac = bytes(slot[at + 4:at + 10]) if at else b""
    seconds = micros = 0
    if netfilter.A_TIMESTAMP in found:
        seconds, micros = struct.unpack_from(">QQ", slot, found[netfilter.A_TIMESTAMP])
    return packet_id, mac, seconds, micros


class Queue:
    """One host's NFQUEUE and the verdicts that wait to be sent to it."""

    def __init__(self, host: str, sock: socket.socket, number: int):
        self.host = host
        self.sock = sock
        self.lanes: dict[bytes, Lane] = {}  # by the sender's MAC address
        self.dues: list[int] = []  # of the verdicts that are not yet sent
        self._verdicts = netfilter.verdicts(number, VERDICT_BATCH)
        self._views = [memoryview(self._verdicts)[:netfilter.VERDICT_BYTES * n] for n in range(VERDICT_BATCH + 1)]
        self._drop = netfilter.verdicts(number, 1)

    def accept(self, packet_id: int, due: int) -> bool:
        """Note a verdict; True when send() must follow."""
        count = len(self.dues)
        netfilter.VERDICT_FIELDS.pack_into(
            self._verdicts, netfilter.VERDICT_BYTES * count + netfilter.VERDICT_AT, netfilter.ACCEPT, packet_id)
        self.dues.append(due)
        return count + 1 == VERDICT_BATCH

    def send(self) -> None:
        self.sock.send(self._views[len(self.dues)])

    def drop(self, packet_id: int) -> None:
        netfilter.VERDICT_FIELDS.pack_into(self._drop, netfilter.VERDICT_AT, netfilter.DROP, packet_id)
        self.sock.send(self._drop)


class DelayLine:
    """Holds packets of all queues until they are due.

    Args:
        macs: MAC address (6 bytes) -> host.
        memory: where to count, see shared_stats.
    """

    def __init__(self, lanes: Lanes, macs: dict[bytes, str], memory: memoryview):
        # The epoll comes first: select(), the one call of Python's that waits by the microsecond, takes only
        # descriptors below 1024.
        self._epoll = select.epoll()
        self._lanes = lanes
        self._macs = macs
        self._memory = memory
        self._handlers: dict[int, Callable[[], None] | Queue] = {}
        self._heap: list[tuple[int, int, Lane, int]] = []
        self._order = itertools.count()
        self._reader = BatchReader(READ_BATCH)
        self._clock_gap = 0
        self.packets = self.released = self.lost = 0

    def add_queue(self, queue: Queue) -> None:
        self._handlers[queue.sock.fileno()] = queue
        self._epoll.register(queue.sock.fileno(), select.EPOLLIN)

    def add_handler(self, fd: int, call: Callable[[], None]) -> None:
        """Have `call` run whenever `fd` can be read."""
        self._handlers[fd] = call
        self._epoll.register(fd, select.EPOLLIN)

    @property
    def queued(self) -> int:
        return self.packets - self.released - self.lost

    def turn(self, latest_ns: int) -> None:
        """Wait for packets, for the next due time or until `latest_ns` (monotonic), then do what is to do."""
        heap = self._heap
        now = time.monotonic_ns()
        until = min(heap[0][0], latest_ns) if heap else latest_ns
        # nothing due: sleep. Something due: only look, so that a busy line still reads.
        select.select((self._epoll,), (), (), max(0, until - now) * 1e-9)
        ready = self._epoll.poll(0)
        if ready:
            self._clock_gap = time.time_ns() - time.monotonic_ns()
            for fd, _ in ready:
                handler = self._handlers[fd]
                if isinstance(handler, Queue):
                    self._receive(handler)
                else:
                    handler()
        self._release()

    def _receive(self, queue: Queue) -> None:
        count = self._reader.read(queue.sock.fileno())
        if not count:
            return
        self.packets += count
        gap, now = self._clock_gap, time.monotonic_ns()
        oldest = now - 1_000_000_000
        lanes, heap = queue.lanes, self._heap
        slots = self._reader.slots[:count * SLOT]
        for index, (packet_id, hw_header, mac, time_header, seconds, micros) in enumerate(_USUAL.iter_unpack(slots)):
            if time_header != _TIMESTAMP_HEADER or hw_header != _HWADDR_HEADER:
                packet_id, mac, seconds, micros = _parse(slots[index * SLOT:(index + 1) * SLOT])
            arrived = seconds * 1_000_000_000 + micros * 1000 - gap
            if not oldest < arrived <= now:  # the clock was set meanwhile
                arrived = now
            lane = lanes.get(mac)
            if lane is None:
                lane = lanes[mac] = self._lanes.lane(self._macs.get(mac, ""), queue.host, queue)
            due = lane.due(arrived)
            if due == LOST:
                self.lost += 1
                queue.drop(packet_id)
                continue
            waiting = lane.waiting
            if not waiting:
                waiting.append((due, packet_id))
                heapq.heappush(heap, (due, next(self._order), lane, _PAIR))
            elif due >= waiting[-1][0]:
                waiting.append((due, packet_id))
            else:  # it overtakes
                heapq.heappush(heap, (due, next(self._order), lane, packet_id))

    def _release(self) -> None:
        heap = self._heap
        touched = set()
        while heap:
            now = time.monotonic_ns()
            if heap[0][0] > now:
                break
            due, _, lane, packet_id = heapq.heappop(heap)
            queue = lane.queue
            touched.add(queue)
            if packet_id != _PAIR:
                if queue.accept(packet_id, due):
                    self._flush(queue)
                continue
            waiting = lane.waiting
            while waiting and waiting[0][0] <= now:
                due, packet_id = waiting.popleft()
                if queue.accept(packet_id, due):
                    self._flush(queue)
            if waiting:
                heapq.heappush(heap, (waiting[0][0], next(self._order), lane, _PAIR))
        for queue in touched:
            if queue.dues:
                self._flush(queue)

    def _flush(self, queue: Queue) -> None:
        queue.send()
        now = time.monotonic_ns()  # the kernel has delivered them all by now: a lag is never understated
        memory, bucket, dues = self._memory, shared_stats.bucket, queue.dues
        for due in dues:
            memory[bucket(now - due)] += 1
        self.released += len(dues)
        dues.clear()
