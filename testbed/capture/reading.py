"""Reads pcap (both byte orders, micro- and nanoseconds) and pcapng (both byte orders) in constant memory.

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng (IETF). A file that ends within a packet is read up to
there; anything else that is not as the format says is an error with its place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from testbed.errors import InputError

BATCH = 1 << 16  # packets handed on together
_READ_BYTES = 1 << 22
_BLOCK_MAX = 1 << 24  # bytes; longer is damage (the format's own readers say the same)
_PCAP = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}  # magic number: ns of a time stamp's fraction
SECTION, INTERFACE, SIMPLE, NAMES, STATISTICS, PACKET = 0x0A0D0D0A, 1, 3, 4, 5, 6
_ORDER = 0x1A2B3C4D
_EXPECTED = "expected a capture in pcap or pcapng format (tcpdump, dumpcap, Wireshark)"


@dataclass(frozen=True)
class Batch:
    """Some packets of one link type, in the file's order.

    data: bytes of the file (uint8). start: where each packet begins in it. captured, length: bytes kept, and bytes
    that the packet had. time_ns: since 1970, int64. link: the link type's number (1: Ethernet).
    """

    data: np.ndarray
    start: np.ndarray
    captured: np.ndarray
    length: np.ndarray
    time_ns: np.ndarray
    link: int


@dataclass
class Capture:
    """A capture file. Iterate over `batches`; the rest is complete after that.

    names: host names by address, of name-resolution blocks. interfaces: their names. comments: of the file's head.
    remarks: for people, e.g. that the file is cut short. snaplen: the largest of the interfaces [bytes], 0: no limit.
    """

    path: Path
    names: dict[str, str] = field(default_factory=dict)
    interfaces: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    snaplen: int = 0

    def batches(self) -> Iterator[Batch]:
        """All packets, at most BATCH at once.

        Raises:
            InputError: the file can't be read, is no capture, or is damaged (with the place).
        """
        try:
            with self.path.open("rb") as file:
                source = _Bytes(file)
                magic = source.peek(4)
                if len(magic) < 4:
                    raise InputError(str(self.path), f"{len(magic)} bytes; {_EXPECTED}")
                for order in "<>":
                    number = struct.unpack(order + "I", magic)[0]
                    if number in _PCAP:
                        yield from self._pcap(source, order, _PCAP[number])
                        return
                if number != SECTION:
                    hint = "gunzip it first" if magic[:2] == b"\x1f\x8b" else None
                    raise InputError(str(self.path), f"begins with {magic.hex(' ')}; {_EXPECTED}", hint=hint)
                yield from self._pcapng(source)
        except OSError as error:
            raise InputError(str(self.path), f"can't be read: {error.strerror}") from None

    def _damaged(self, at: int, what: str) -> InputError:
        return InputError(f"{self.path}, byte {at}", f"{what}: the file is damaged")

    def _cut(self, at: int) -> None:
        self.remarks.append(f"{self.path.name} ends within a packet (byte {at}); read up to there")

    def _pcap(self, source: _Bytes, order: str, unit_ns: int) -> Iterator[Batch]:
        head = source.take(24)
        if head is None:
            raise InputError(str(self.path), "ends within its header")
        self.snaplen, network = struct.unpack(order + "IHHiIII", head)[5:]
        link = network & 0xFFFF
        record = struct.Struct(order + "IIII")
        packets = _Packets(link)
        while True:
            data, pos = source.data, source.pos
            end = len(data) - 16
            while pos <= end:
                seconds, fraction, captured, length = record.unpack_from(data, pos)
                if captured > _BLOCK_MAX:
                    if packets.start:
                        yield packets.batch(data)
                    raise self._damaged(source.base + pos, f"a packet of {captured} bytes")
                if pos + 16 + captured > len(data):
                    break
                packets.add(pos + 16, captured, length, seconds * 1_000_000_000 + fraction * unit_ns)
                pos += 16 + captured
                if len(packets.start) >= BATCH:
                    yield packets.batch(data)
            if packets.start:
                yield packets.batch(data)
            source.pos = pos
            if not source.more():
                if source.pos < len(source.data):
                    self._cut(source.base + source.pos)
                return

    def _pcapng(self, source: _Bytes) -> Iterator[Batch]:
        order, links = "<", []  # of each interface: (link type, multiplier, divisor to ns, offset ns, snaplen)
        packets = _Packets(-1)
        while True:
            data, pos = source.data, source.pos
            while pos + 12 <= len(data):
                kind, size = struct.unpack_from(order + "II", data, pos)
                if kind == SECTION:
                    mark = data[pos + 8 : pos + 12]
                    order = next((o for o in "<>" if struct.unpack(o + "I", mark)[0] == _ORDER), "")
                    if not order:
                        raise self._damaged(source.base + pos + 8, f"byte order mark {mark.hex(' ')}")
                    size = struct.unpack_from(order + "I", data, pos + 4)[0]
                if size < 12 or size % 4 or size > _BLOCK_MAX:
                    raise self._damaged(source.base + pos, f"a block of {size} bytes")
                if pos + size > len(data):
                    break
                if struct.unpack_from(order + "I", data, pos + size - 4)[0] != size:
                    raise self._damaged(source.base + pos, "a block's two lengths differ")
                if kind in (PACKET, SIMPLE):
                    self._packet(packets, data, pos, size, order, links, kind, source.base)
                    if packets.next_link is not None or len(packets.start) >= BATCH:
                        if packets.start:
                            yield packets.batch(data)
                        if packets.next_link is not None:
                            self._packet(packets, data, pos, size, order, links, kind, source.base)
                else:
                    try:
                        if kind == SECTION:
                            links.clear()
                            self.comments += _comments(data[pos + 24 : pos + size - 4], order)
                        elif kind == INTERFACE:
                            links.append(self._interface(data[pos + 8 : pos + size - 4], order))
                        elif kind == NAMES:
                            self._names(data[pos + 8 : pos + size - 4], order)
                    except (struct.error, ValueError) as error:
                        raise self._damaged(source.base + pos, f"a block of type {kind} ({error})") from None
                pos += size
            if packets.start:
                yield packets.batch(data)
            source.pos = pos
            if not source.more():
                if source.pos < len(source.data):
                    self._cut(source.base + source.pos)
                return

    def _packet(self, packets, data, pos, size, order, links, kind, base) -> None:
        if kind == PACKET:
            if size < 32:
                raise self._damaged(base + pos, f"a packet's block of {size} bytes")
            number, high, low, captured, length = struct.unpack_from(order + "IIIII", data, pos + 8)
            start = pos + 28
        else:
            if size < 16:
                raise self._damaged(base + pos, f"a packet's block of {size} bytes")
            number, high, low = 0, 0, 0
            length = struct.unpack_from(order + "I", data, pos + 8)[0]
            captured, start = min(length, size - 16), pos + 12
        if number >= len(links):
            raise self._damaged(base + pos, f"a packet of interface {number}, of which the file says nothing")
        if start + captured > pos + size - 4:
            raise self._damaged(base + pos, f"a packet of {captured} bytes in a block of {size}")
        link, times, divisor, offset = links[number]
        if packets.link != link and packets.start and packets.next_link is None:
            packets.next_link = link
            return
        packets.link, packets.next_link = link, None
        packets.add(start, captured, length, (high << 32 | low) * times // divisor + offset)

    def _interface(self, body: bytes, order: str) -> tuple[int, int, int, int]:
        link, _, snaplen = struct.unpack_from(order + "HHI", body)
        self.snaplen = max(self.snaplen, snaplen)
        divisor, offset, name = 10**6, 0, f"interface {len(self.interfaces)}"
        for code, value in _options(body[8:], order):
            if code == 2:
                name = value.decode(errors="replace")
            elif code == 9 and value:
                divisor = 2 ** min(value[0] & 0x7F, 63) if value[0] & 0x80 else 10 ** min(value[0], 18)
            elif code == 14 and len(value) == 8:
                offset = struct.unpack(order + "q", value)[0] * 10**9
        self.interfaces.append(name)
        return link, 10**9, divisor, offset

    def _names(self, body: bytes, order: str) -> None:
        import ipaddress

        pos = 0
        while pos + 4 <= len(body):
            kind, size = struct.unpack_from(order + "HH", body, pos)
            value = body[pos + 4 : pos + 4 + size]
            width = {1: 4, 2: 16}.get(kind)
            if kind == 0:
                self.comments += _comments(body[pos + 4 :], order)
                return
            if width and size > width:
                self.names[str(ipaddress.ip_address(value[:width]))] = (
                    value[width:].split(b"\0")[0].decode(errors="replace")
                )
            pos += 4 + size + -size % 4


class _Bytes:
    """A window of a file: what is not used yet, and where it is."""

    def __init__(self, file: BinaryIO):
        self._file, self.data, self.pos, self.base = file, file.read(_READ_BYTES), 0, 0

    def peek(self, count: int) -> bytes:
        return self.data[self.pos : self.pos + count]

    def take(self, count: int) -> bytes | None:
        found = self.peek(count)
        self.pos += len(found)
        return found if len(found) == count else None

    def more(self) -> bool:
        new = self._file.read(_READ_BYTES)
        self.data, self.base, self.pos = self.data[self.pos :] + new, self.base + self.pos, 0
        return bool(new)


class _Packets:
    def __init__(self, link: int):
        self.link, self.next_link = link, None
        self.start, self.captured, self.length, self.time = [], [], [], []

    def add(self, start: int, captured: int, length: int, time_ns: int) -> None:
        self.start.append(start)
        self.captured.append(captured)
        self.length.append(length)
        self.time.append(min(time_ns, 2**63 - 1))

    def batch(self, data: bytes) -> Batch:
        made = Batch(
            np.frombuffer(data, np.uint8),
            *(np.array(x, np.int64) for x in (self.start, self.captured, self.length, self.time)),
            self.link,
        )
        self.start, self.captured, self.length, self.time = [], [], [], []
        return made


def _options(body: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    pos = 0
    while pos + 4 <= len(body):
        code, size = struct.unpack_from(order + "HH", body, pos)
        if code == 0:
            return
        yield code, body[pos + 4 : pos + 4 + size]
        pos += 4 + size + -size % 4


def _comments(body: bytes, order: str) -> list[str]:
    return [value.decode(errors="replace") for code, value in _options(body, order) if code == 1]
