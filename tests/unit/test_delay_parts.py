"""Parts of the NFQUEUE delay line that need no root: messages, counters, protocol, rules about ports."""

from __future__ import annotations

import os
import struct
import time
from types import SimpleNamespace

import pytest

from testbed.emulation.delay import netfilter, protocol, shared_stats
from testbed.emulation.delay.base import DelayBackend
from testbed.emulation.delay.batch_reader import SLOT
from testbed.emulation.delay.nfqueue import NfqueueBackend, common_prefix
from testbed.emulation.delay.packets import PACKET, Layout, parse
from testbed.scenario.link_model import PathDelay

# Read from a kernel: 6.18, x86-64, br_netfilter; queue 3 written into it.
MESSAGE = bytes.fromhex(
    "6c00000000030000000000000000000002000003"
    "0b00010000000001080002000800050000000002"
    "0800070000000008080006000000000208000800"
    "00000005100009000006000002000a0000010000"
    "14000400000000006b0d32a800000000000c463e"
    "08000e0000000004"
)


def test_a_message_is_read():
    fields = parse(MESSAGE)
    assert (fields.queue, fields.packet_id, fields.out) == (3, 1, 5)
    assert fields.mac == bytes.fromhex("02000a000001")
    assert (fields.seconds, fields.micros) == (0x6B0D32A8, 0xC463E)


def test_a_layout_reads_many_messages_as_parse_does():
    other = bytearray(MESSAGE)
    struct.pack_into(">I", other, 24, 77)
    slots = MESSAGE.ljust(SLOT, b"\0") + bytes(other).ljust(SLOT, b"\1")
    layout = Layout(slots)
    read = list(layout.struct.iter_unpack(slots))
    assert len(read) == 2
    for at, found in enumerate(read):
        kind, queue, packet_id, out_header, out, mac_header, mac, time_header, seconds, micros = found
        assert kind == PACKET
        assert (queue, packet_id, out, mac, seconds, micros) == parse(slots[at * SLOT :])
        assert (out_header, mac_header, time_header) == layout.headers
    assert read[1][2] == 77


def test_a_message_of_another_shape_is_noticed():
    without_physical = bytearray(MESSAGE[:56] + MESSAGE[64:])
    struct.pack_into("=I", without_physical, 0, len(without_physical))
    layout = Layout(MESSAGE)
    _, _, _, *rest = next(layout.struct.iter_unpack(bytes(without_physical).ljust(SLOT, b"\0")))
    assert (rest[0], rest[2], rest[4]) != layout.headers
    assert parse(bytes(without_physical)).out == 2  # the output interface, for want of the bridge's port


def test_without_a_time_no_message_fits_the_layout():
    short = bytearray(MESSAGE[:80])
    struct.pack_into("=I", short, 0, 80)
    layout = Layout(bytes(short).ljust(SLOT, b"\0"))
    assert len(next(layout.struct.iter_unpack(MESSAGE.ljust(SLOT, b"\0")))) == 10
    assert layout.headers == ()
    assert parse(bytes(short))[4:] == (0, 0)


def test_verdicts_are_netlink_messages():
    buffer = netfilter.verdicts(2)
    at = netfilter.VERDICT_BYTES + netfilter.VERDICT_AT
    netfilter.VERDICT_FIELDS.pack_into(buffer, at, 9, netfilter.VERDICT_HEADER, netfilter.ACCEPT, 1234)
    second = bytes(buffer[netfilter.VERDICT_BYTES :])
    length, kind, flags = struct.unpack_from("=IHH", second)
    assert (length, kind, flags) == (32, 3 << 8 | 1, 1)
    assert struct.unpack_from(">H", second, 18) == (9,)
    assert struct.unpack_from("=HH", second, 20) == (12, netfilter.A_VERDICT_HDR)
    assert struct.unpack_from(">II", second, 24) == (1, 1234)


def counters():
    fd = shared_stats.create()
    memory, reader = shared_stats.view(fd), shared_stats.Reader(fd)
    os.close(fd)
    return memory, reader


def test_lags_are_reported_once_and_to_20_us():
    memory, reader = counters()
    for lag_us in [*range(0, 1000, 10), 5000]:
        memory[shared_stats.bucket(lag_us * 1000)] += 1
    stats = reader.read()
    assert stats.lag_p50_s == pytest.approx(500e-6, abs=21e-6)
    assert stats.lag_p99_s == pytest.approx(1e-3, abs=21e-6)
    assert stats.lag_max_s == pytest.approx(5e-3, abs=21e-6)
    assert reader.read().lag_max_s == 0.0


@pytest.mark.parametrize("lag_s", [0.0, 1e-9, 0.0204, 0.0205, 0.3, 7.0, 1000.0])
def test_a_lag_is_never_understated_and_at_most_doubled(lag_s):
    memory, reader = counters()
    memory[shared_stats.bucket(int(lag_s * 1e9))] += 1
    shown = reader.read().lag_max_s
    assert lag_s <= shown <= max(2 * lag_s, lag_s + 20e-6) + 1e-12


def test_early_packets_count_as_punctual():
    assert shared_stats.bucket(-30_000) == shared_stats.HISTOGRAM


def test_the_age_of_counters_shows_a_dead_writer():
    memory, reader = counters()
    memory[shared_stats.HEARTBEAT] = time.monotonic_ns() - 3_000_000_000
    assert 3.0 <= reader.read().age_s < 4.0


def test_messages_survive_being_cut_anywhere():
    import socket

    start = protocol.Start(
        "/run/netns/x",
        "y",
        [protocol.Host("a", "02:00:00:00:00:01", "p1", "y1", "east")],
        {"a": PathDelay(0.01, 0.02, reorder=0.5)},
        {"east": 0.003},
        7,
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        protocol.send(ours, start)
        protocol.send(ours, protocol.Stop())
        data = theirs.recv(1 << 16)
    for cut in range(len(data) + 1):
        inbox = protocol.Inbox()
        assert inbox.feed(data[:cut]) + inbox.feed(data[cut:]) == [start, protocol.Stop()]


def port(name: str) -> SimpleNamespace:
    return SimpleNamespace(bridge_port=name)


def test_host_ports_are_told_from_shared_links_by_their_names():
    shared = [SimpleNamespace(up_interface="u1", down_interface="d1")]
    assert common_prefix([port("y1"), port("y12")], shared) == "y"
    assert common_prefix([port("y1")], shared) == "y"
    with pytest.raises(ValueError, match="prefix"):
        common_prefix([port("y1"), port("z2")], shared)
    with pytest.raises(ValueError, match="prefix"):
        common_prefix([port("u3"), port("u4")], shared)


def test_a_backend_that_never_started_stops_and_reports():
    backend = NfqueueBackend()
    assert isinstance(backend, DelayBackend)
    backend.stop()
    assert backend.stats().packets == 0
    with pytest.raises(RuntimeError):
        backend.set({})
