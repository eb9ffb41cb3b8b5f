"""The delay line's loop, with a socket pair in place of the kernel: messages in, verdicts out."""

from __future__ import annotations

import os
import socket
import struct
import time

import pytest

from testbed.emulation.delay import netfilter, shared_stats
from testbed.emulation.delay.delay_line import EARLY_NS, DelayLine
from testbed.emulation.delay.lanes import Lanes
from testbed.scenario.link_model import PathDelay

MACS = {bytes.fromhex("02000a000001"): "a", bytes.fromhex("02000a000002"): "b"}
PORTS = {5: "server", 8: "a"}
NS = 1_000_000_000


def message(
    packet_id: int,
    mac: int = 1,
    out: int = 5,
    queue: int = 3,
    age_ns: int = 0,
    stamped: bool = True,
    mark: bool = False,
) -> bytes:
    """As the kernel tells of a packet that a bridge forwards."""

    def attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)

    seconds, rest = divmod(time.time_ns() - age_ns, NS)
    body = attribute(netfilter.A_PACKET_HDR, struct.pack(">IHB", packet_id, 0x0800, 2))
    body += attribute(3, struct.pack(">I", 1)) if mark else b""
    body += attribute(netfilter.A_OUTDEV, struct.pack(">I", 2))
    body += attribute(netfilter.A_PHYSOUTDEV, struct.pack(">I", out))
    address = bytes.fromhex(f"02000a0000{mac:02x}0000")
    body += attribute(netfilter.A_HWADDR, struct.pack(">HH", 6, 0) + address)
    body += attribute(netfilter.A_TIMESTAMP, struct.pack(">QQ", seconds, rest // 1000)) if stamped else b""
    head = struct.pack("=IHHII", 20 + len(body), 3 << 8, 0, 0, 0) + struct.pack(">BBH", 2, 0, queue)
    return head + body


class Kernel:
    """The other end: tells of packets, and collects what is decided about them."""

    def __init__(self, delays: dict[str, PathDelay]):
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.theirs = theirs
        self.sock.setblocking(False)
        self.lanes = Lanes(delays, {}, {}, seed=1)
        fd = shared_stats.create()
        self.reader = shared_stats.Reader(fd)
        self.line = DelayLine(theirs, self.lanes, MACS, PORTS, shared_stats.view(fd))
        os.close(fd)
        self.verdicts: list[tuple[int, int, int, float]] = []  # queue, verdict, packet id, when

    def tell(self, *told: bytes) -> None:
        for one in told:
            self.sock.send(one)
        self.line._receive()

    def first_due(self) -> int:
        """When the next packet is to be released [ns, monotonic]."""
        return self.line._heap[0][0]

    def run(self, count: int) -> list[int]:
        """Let time pass until so many verdicts are there; the ids of the packets accepted."""
        give_up = time.monotonic() + 10
        while len(self.verdicts) < count and time.monotonic() < give_up:
            self.line.turn(time.monotonic_ns() + 10_000_000)
            self._collect()
        assert len(self.verdicts) == count
        return [v[2] for v in self.verdicts if v[1] == netfilter.ACCEPT]

    def _collect(self) -> None:
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                return
            for at in range(0, len(data), netfilter.VERDICT_BYTES):
                fields = netfilter.VERDICT_FIELDS.unpack_from(data, at + netfilter.VERDICT_AT)
                queue, header, verdict, packet_id = fields
                assert header == netfilter.VERDICT_HEADER
                self.verdicts.append((queue, verdict, packet_id, time.monotonic()))

    def close(self) -> None:
        self.sock.close()
        self.theirs.close()


@pytest.fixture
def kernel():
    made = []

    def start(**delays: PathDelay) -> Kernel:
        made.append(Kernel(delays))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_packet_waits_its_time_and_is_accepted_in_its_queue(kernel):
    k = kernel(a=PathDelay(0.03))
    began = time.monotonic()
    k.tell(message(41))
    assert (k.line.packets, k.line.released, k.line.queued) == (1, 0, 1)
    assert k.run(1) == [41]
    queue, _, _, at = k.verdicts[0]
    assert queue == 3
    assert at - began >= 0.03 - EARLY_NS * 1e-9
    assert (k.line.packets, k.line.released, k.line.lost, k.line.queued) == (1, 1, 0, 0)
    assert k.reader.read().lag_max_s > 0


def test_time_that_a_packet_waited_to_be_read_counts(kernel):
    k = kernel(a=PathDelay(0.05))
    k.line._drained -= NS
    told, sent = message(1, age_ns=40_000_000), time.monotonic_ns()
    k.tell(told)
    assert k.first_due() <= sent + 10_000_000 + 1_000


def test_a_time_before_the_last_look_at_an_empty_queue_is_not_believed(kernel):
    """As if the kernel had stamped the packet before it waited in a bottleneck's buffer."""
    k = kernel(a=PathDelay(0.05))
    k.tell(message(1, mac=99))  # the read that finds no more
    empty = k.line._drained
    k.run(1)
    k.tell(message(2, age_ns=45_000_000))
    assert k.first_due() >= empty + 50_000_000


def test_a_time_in_the_future_is_not_believed(kernel):
    k = kernel(a=PathDelay(0.05))
    k.tell(message(1, age_ns=-3 * NS))
    assert k.first_due() <= time.monotonic_ns() + 50_000_000


@pytest.mark.parametrize("odd", [{"stamped": False}, {"mark": True}])
def test_messages_of_several_shapes_are_understood(kernel, odd):
    k = kernel(a=PathDelay(0.3), b=PathDelay(0.1))
    k.tell(message(1), message(2, mac=2, **odd), message(3, **odd), message(4))
    assert k.run(4) == [2, 1, 3, 4]


def test_without_times_the_moment_of_reading_counts(kernel):
    k = kernel(a=PathDelay(0.05))
    before = time.monotonic_ns()
    k.tell(message(1, stamped=False), message(2, stamped=False))
    assert before + 50_000_000 <= k.first_due() <= time.monotonic_ns() + 50_000_000
    assert k.run(2) == [1, 2]


def test_a_lost_packet_is_dropped_at_once(kernel):
    k = kernel(a=PathDelay(100, up_loss=1.0))
    k.tell(message(7))
    assert k.run(1) == []
    assert [(v[1], v[2]) for v in k.verdicts] == [(netfilter.DROP, 7)]
    assert (k.line.lost, k.line.queued) == (1, 0)


def test_unknown_senders_and_ports_pass_undelayed(kernel):
    k = kernel(a=PathDelay(100, 100))
    k.tell(message(1, mac=99), message(2, mac=99, out=77))
    assert k.run(2) == [1, 2]


def test_more_packets_than_a_batch_keep_order_in_their_queues(kernel):
    k = kernel(a=PathDelay(0.02), b=PathDelay(0.02))
    k.sock.setblocking(True)
    for start in range(0, 200, 8):
        k.tell(*[message(i, mac=1 + i % 2, queue=i % 2) for i in range(start, start + 8)])
    k.sock.setblocking(False)
    assert sorted(k.run(200)) == list(range(200))
    for queue in (0, 1):
        mine = [packet_id for q, _, packet_id, _ in k.verdicts if q == queue]
        assert mine == sorted(mine)
