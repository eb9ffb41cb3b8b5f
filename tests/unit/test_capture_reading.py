"""Reading captures: every format and byte order, files that are cut or damaged, and what was written read again."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.capture.flows import read_flows
from testbed.capture.reading import Capture
from testbed.capture.writing import complete
from testbed.errors import InputError

A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
T0 = 1_700_000_000 * 10**9


def frame(payload=1000, *, seq=0, back=False, stamp=1, echo=0, ident=1, flags=16, link=1):
    """(bytes as captured without payload, length on the wire)"""
    ports = (80, 1000) if back else (1000, 80)
    tcp = struct.pack("!HHIIBBHHH", *ports, seq % 2**32, 0, 8 << 4, flags, 1000, 0, 0) + b"\1\1\x08\x0a"
    tcp += struct.pack("!II", stamp, echo)
    ends = (B, A) if back else (A, B)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 52 + payload, ident, 0, 64, 6, 0, *ends)
    head = {1: bytes(12) + b"\x08\0", 113: bytes(14) + b"\x08\0", 276: b"\x08\0" + bytes(18), 101: b"", 0: b"\2\0\0\0"}[
        link
    ]
    return head + ip + tcp, len(head) + 52 + payload


def pcap(packets, order="<", nano=False, link=1):
    """packets: (time_ns, (bytes, length))."""
    unit = 1 if nano else 1000
    out = struct.pack(order + "IHHiIII", 0xA1B23C4D if nano else 0xA1B2C3D4, 2, 4, 0, 0, 96, link)
    for t, (data, length) in packets:
        out += struct.pack(order + "IIII", t // 10**9, t % 10**9 // unit, len(data), length) + data
    return out


def block(order, kind, body):
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, 12 + len(body)) + body + struct.pack(order + "I", 12 + len(body))


def pcapng(packets, order="<"):
    out = block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    out += block(order, 1, struct.pack(order + "HHI", 1, 0, 96))
    for t, (data, length) in packets:
        us = t // 1000
        out += block(order, 6, struct.pack(order + "IIIII", 0, us >> 32, us & 0xFFFFFFFF, len(data), length) + data)
    return out


PACKETS = [(T0 + i * 1_000_000, frame(seq=1000 * i, stamp=i + 1, ident=i + 1)) for i in range(10)]


def flows(tmp_path, content, **how):
    path = tmp_path / "x.pcap"
    path.write_bytes(content)
    return read_flows(path, **how)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("make", [pcap, lambda p, o: pcap(p, o, nano=True), pcapng], ids=["us", "ns", "pcapng"])
def test_formats_and_byte_orders(tmp_path, order, make):
    found = flows(tmp_path, make(PACKETS, order))
    row = found.table.iloc[0]
    assert (row.source, row.destination, row.source_port, row.packets) == ("10.0.0.1", "10.0.0.2", 1000, 10)
    assert row.bytes == 10 * 1066
    assert row.payload_bytes == 10_000
    assert row.end_s == pytest.approx(0.009)
    assert row.largest_gap_s == pytest.approx(0.001)
    assert found.zero_ns == T0


@pytest.mark.parametrize("link", [1, 113, 276, 101, 0])
def test_link_types(tmp_path, link):
    found = flows(tmp_path, pcap([(T0, frame(link=link))], link=link))
    assert found.table.iloc[0].payload_bytes == 1000
    assert not found.other_packets


def test_an_unknown_link_type_is_named(tmp_path):
    with pytest.raises(InputError, match="link type 127"):
        flows(tmp_path, pcap(PACKETS, link=127))


@pytest.mark.parametrize("content", [b"", b"abc", b"\x1f\x8b\x08\x00" * 9, b"time,rate\n1,2\n", bytes(100)])
def test_what_is_no_capture_is_refused(tmp_path, content):
    with pytest.raises(InputError, match="expected a capture"):
        flows(tmp_path, content)


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_a_cut_file_is_read_up_to_there(tmp_path, make):
    found = flows(tmp_path, make(PACKETS)[:-9])
    assert found.packets == 9
    assert "ends within a packet" in found.remarks[0]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([pcap, pcapng]), st.sampled_from("<>"), st.data())
def test_damage_is_read_or_refused(tmp_path_factory, make, order, data):
    content = bytearray(make(PACKETS, order))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("d") / "x"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read_flows(path)
    except InputError:
        pass


def test_what_was_completed_says_the_same(tmp_path):
    source, target = tmp_path / "h1.pcap", tmp_path / "h1.pcapng"
    source.write_bytes(pcap(PACKETS, nano=True)[:-5])
    before = read_flows(source).table
    count = complete(source, target, host="h1", interface="eth0", names={"10.0.0.1": "h1", "10.0.0.2": "server"},
                     comments=["experiment x", "seed 7"], snaplen=96, dropped=3)  # fmt: skip
    assert count == 9
    assert not source.exists()
    capture = Capture(target)
    list(capture.batches())
    assert capture.names == {"10.0.0.1": "h1", "10.0.0.2": "server"}
    assert capture.interfaces == ["eth0"]
    assert capture.comments == ["experiment x", "seed 7"]
    assert capture.snaplen == 96
    after = read_flows(target).table
    assert list(after.source) == ["h1"]
    columns = ["start_s", "end_s", "bytes", "packets", "goodput_bps"]
    assert before[columns].equals(after[columns])


def test_retransmission_and_reordering_are_told_apart(tmp_path):
    sent = [(0, 1, 1), (1000, 1, 2), (3000, 2, 4), (2000, 2, 3), (4000, 3, 5), (1000, 50, 6)]
    packets = [(T0 + i * 10**6, frame(seq=s, stamp=t, ident=n)) for i, (s, t, n) in enumerate(sent)]
    row = flows(tmp_path, pcap(packets)).table.iloc[0]
    assert (row.retransmissions, row.reordered, row.payload_bytes) == (1, 1, 5000)


def test_sequence_numbers_wrap(tmp_path):
    packets = [(T0 + i * 10**6, frame(60_000, seq=2**32 - 120_000 + 60_000 * i, ident=i + 1)) for i in range(6)]
    row = flows(tmp_path, pcap(packets)).table.iloc[0]
    assert (row.retransmissions, row.payload_bytes) == (0, 360_000)


def test_the_round_trip_is_the_far_hosts(tmp_path):
    packets = []
    for i in range(50):
        t = T0 + i * 100_000_000
        packets.append((t, frame(seq=1000 * i, stamp=100 * i + 1, echo=100 * i, ident=i + 1)))
        packets.append((t + 30_000_000, frame(0, back=True, stamp=7 * i + 1, echo=100 * i + 1, ident=i + 1)))
    table = flows(tmp_path, pcap(packets), tdf=2.0).table
    assert np.allclose(table.rtt_p50_s, 0.015, rtol=0.002)
    assert np.allclose(table.rtt_p95_s, 0.015, rtol=0.002)


def test_a_hole_in_a_capture_costs_what_follows_it(tmp_path):
    source, target = tmp_path / "h1.pcap", tmp_path / "h1.pcapng"
    whole = pcap(PACKETS)
    size = (len(whole) - 24) // 10
    source.write_bytes(whole[: 24 + 6 * size] + b"\xff" * 40 + whole[24 + 7 * size :])
    count = complete(source, target, host="h1", interface="e", names={}, comments=[], snaplen=96)
    assert count == read_flows(target).packets == 6


def test_a_file_becomes_a_table_a_figure_and_parquet(tmp_path):
    from testbed.report import flows as report

    path = tmp_path / "other.pcap"
    path.write_bytes(pcap(PACKETS))
    found = report.read(path)
    assert "10.0.0.1:1000 > 10.0.0.2:80 tcp" in report.text(found)
    report.write(found, tmp_path / "x.parquet", tmp_path / "x.html")
    assert (tmp_path / "x.parquet").stat().st_size
    assert b"10.0.0.1:1000" in (tmp_path / "x.html").read_bytes()
    with pytest.raises(InputError, match="expected one of .html"):
        report.write(found, None, tmp_path / "x.txt")


@pytest.mark.parametrize(("tag", "kind"), [("grad/3/1", "grad"), ("activation", "activation"), ("7", "other")])
def test_kinds_of_messages(tag, kind):
    from testbed.report.flows import kind_of

    assert kind_of(tag) == kind
