"""Which fields of NFQUEUE's messages matter here, and how to read many messages at once."""

from __future__ import annotations

import struct
from typing import NamedTuple

from testbed.emulation.delay import netfilter
from testbed.emulation.delay.batch_reader import SLOT

#: The type of messages that tell of a packet, as `Layout` reads it. Others are errors: of a verdict whose packet the
#: kernel has given up meanwhile, since its interface went down.
PACKET = int.from_bytes(struct.pack("=H", netfilter.PACKET), "big")


class Fields(NamedTuple):
    """Of one packet: queue number, id in it, index of the output interface, sender's MAC, time of arrival.

    The time is CLOCK_REALTIME, seconds and microseconds; 0 where the kernel gives none.
    """

    queue: int
    packet_id: int
    out: int
    mac: bytes
    seconds: int
    micros: int


def parse(slot: bytes | memoryview) -> Fields:
    """Read one message, whatever attributes it has."""
    at = netfilter.attributes(slot)
    (queue,) = struct.unpack_from(">H", slot, 18)
    (packet_id,) = struct.unpack_from(">I", slot, at[netfilter.A_PACKET_HDR])
    out = at.get(netfilter.A_PHYSOUTDEV, at.get(netfilter.A_OUTDEV))
    mac = at.get(netfilter.A_HWADDR)
    time = at.get(netfilter.A_TIMESTAMP)
    return Fields(
        queue,
        packet_id,
        struct.unpack_from(">I", slot, out)[0] if out else 0,
        bytes(slot[mac + 4 : mac + 10]) if mac else b"",
        *(struct.unpack_from(">QQ", slot, time) if time else (0, 0)),
    )


def _header(kind: int, length: int) -> int:
    return int.from_bytes(struct.pack("=HH", 4 + length, kind), "big")


class Layout:
    """Where the fields are in messages like `sample`, which nearly all of a run's packets share.

    `struct` reads a whole slot: type of the message (see PACKET), queue, packet id, header of the output interface,
    interface, header of the address, address, header of the time, seconds, microseconds. A message is of this layout
    if the three headers equal `headers`; if the sample lacks one of the fields, none is, and each needs `parse`.
    """

    def __init__(self, sample: bytes | memoryview):
        at = netfilter.attributes(sample)
        out = netfilter.A_PHYSOUTDEV if netfilter.A_PHYSOUTDEV in at else netfilter.A_OUTDEV
        fields = ((out, 4, "I"), (netfilter.A_HWADDR, 12, "4x6s2x"), (netfilter.A_TIMESTAMP, 16, "QQ"))
        self.headers: tuple[int, ...] = tuple(_header(kind, length) for kind, length, _ in fields)
        text, end = ">4xH12xH4xI", 28
        for kind, length, form in fields:
            gap = at.get(kind, 0) - 4 - end
            if gap < 0:  # it is missing, or not where it should be
                self.headers, gap = (), 0
            text += f"{gap}xI{form}"
            end += gap + 4 + length
        self.struct = struct.Struct(f"{text}{SLOT - end}x")
