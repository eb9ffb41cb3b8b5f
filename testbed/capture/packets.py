"""Headers of many packets at once: Ethernet (VLAN), Linux-cooked, loopback or raw IP; IPv4 or IPv6; TCP or UDP.

A packet that is cut (snaplen) or damaged before its ports is left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.capture.reading import Batch

TCP, UDP = 6, 17
FIN, SYN, RST, ACK = 1, 2, 4, 16
_LINK_HEADER = {1: (14, 12), 113: (16, 14), 276: (20, 0), 0: (4, None), 108: (4, None), 101: (0, None), 228: (0, None),
                229: (0, None)}  # fmt: skip
_HEAD = 160  # bytes of a packet that are looked at


@dataclass(frozen=True)
class Packets:
    """TCP and UDP packets, a value each. All arrays have one length.

    time_ns: since 1970. length: bytes of the frame. header, payload: bytes before and of the payload, by the IP
    header's own length. source, destination: addresses as (n, 2) of uint64 (IPv4: the upper is 0). seq: uint32.
    stamp, echo: TCP time stamps (TSval, TSecr), -1 without. ip_id: IPv4's identification, -1 for IPv6. mss: of a SYN's
    option, else 0.
    """

    time_ns: np.ndarray
    length: np.ndarray
    header: np.ndarray
    payload: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    protocol: np.ndarray
    ports: np.ndarray
    seq: np.ndarray
    flags: np.ndarray
    stamp: np.ndarray
    echo: np.ndarray
    ip_id: np.ndarray
    mss: np.ndarray
    v6: np.ndarray


def known_link(number: int) -> bool:
    return number in _LINK_HEADER


def decode(batch: Batch) -> tuple[Packets, int]:
    """The batch's TCP and UDP packets, and how many others there were."""
    n = len(batch.start)
    size = np.minimum(batch.captured, _HEAD)
    padded = np.concatenate([batch.data, np.zeros(_HEAD, np.uint8)]) if n else np.zeros(_HEAD, np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(padded, _HEAD)
    head = windows[batch.start]  # (n, _HEAD), a copy
    head[np.arange(_HEAD)[None, :] >= size[:, None]] = 0
    rows = np.arange(n)

    def byte(at: np.ndarray) -> np.ndarray:
        return head[rows, np.minimum(at, _HEAD - 1)].astype(np.int64)

    def number(at: np.ndarray, width: int) -> np.ndarray:
        value = np.zeros(n, np.int64)
        for i in range(width):
            value = value << 8 | byte(at + i)
        return value

    before, type_at = _LINK_HEADER[batch.link]
    ip = np.full(n, before, np.int64)
    if batch.link == 1:
        for _ in range(2):  # VLAN tags
            ip += np.where(np.isin(number(ip - 2, 2), (0x8100, 0x88A8)), 4, 0)
    if type_at is None:
        is4, is6 = byte(ip) >> 4 == 4, byte(ip) >> 4 == 6
    else:
        ether = number(ip - 2, 2) if batch.link == 1 else number(np.full(n, type_at), 2)
        is4, is6 = ether == 0x0800, ether == 0x86DD
    protocol = np.where(is4, byte(ip + 9), np.where(is6, byte(ip + 6), 0))
    ip_header = np.where(is4, (byte(ip) & 15) * 4, 40)
    fragment = is4 & (number(ip + 6, 2) & 0x1FFF != 0)
    total = np.where(is4, number(ip + 2, 2), number(ip + 4, 2) + 40)
    total = np.where(total <= np.where(is4, 0, 40), batch.length - ip, total)  # 0: left to the network card (TSO)
    at = ip + ip_header
    tcp = protocol == TCP
    good = (is4 | is6) & (tcp | (protocol == UDP)) & ~fragment & (ip_header >= 20)
    good &= at + np.where(tcp, 14, 8) <= size
    tcp_header = np.where(tcp, (byte(at + 12) >> 4) * 4, 8)
    good &= tcp_header >= 8
    payload = total - ip_header - tcp_header
    good &= payload >= 0
    stamp, echo, mss = _tcp_options(head, rows, at, tcp & good, tcp_header, size, number, byte)
    wide = [number(ip + a, 4).astype(np.uint64) for a in (8, 12, 16, 20, 24, 28, 32, 36)]
    four = [number(ip + a, 4).astype(np.uint64) for a in (12, 16)]
    shift = np.uint64(32)
    zero = np.zeros(n, np.uint64)
    pairs = [wide[i] << shift | wide[i + 1] for i in (0, 2, 4, 6)]
    source = np.stack([np.where(is6, pairs[0], zero), np.where(is6, pairs[1], four[0])], 1)
    target = np.stack([np.where(is6, pairs[2], zero), np.where(is6, pairs[3], four[1])], 1)
    everything = (
        batch.time_ns,
        batch.length,
        at + tcp_header,
        payload,
        source,
        target,
        protocol,
        number(at, 4),
        number(at + 4, 4),
        np.where(tcp, byte(at + 13), 0),
        stamp,
        echo,
        np.where(is4, number(ip + 4, 2), -1),
        mss,
        is6,
    )
    return Packets(*(a[good] for a in everything)), int(n - good.sum())


def _tcp_options(head, rows, at, tcp, tcp_header, size, number, byte):
    """(TSval, TSecr, MSS): where the usual place (two NOPs, then the option) does not hold, option by option."""
    n = len(rows)
    stamp, echo, mss = np.full(n, -1, np.int64), np.full(n, -1, np.int64), np.zeros(n, np.int64)
    usual = tcp & (tcp_header >= 32) & (number(at + 20, 4) == 0x0101080A) & (at + 32 <= size)
    stamp[usual], echo[usual] = number(at + 24, 4)[usual], number(at + 28, 4)[usual]
    for i in np.flatnonzero(tcp & ~usual & (tcp_header > 20)):
        options = head[i, at[i] + 20 : min(at[i] + tcp_header[i], size[i])].tobytes()
        pos = 0
        while pos < len(options) and options[pos] != 0:
            if options[pos] == 1:
                pos += 1
                continue
            length = options[pos + 1] if pos + 1 < len(options) else 0
            if length < 2 or pos + length > len(options):
                break
            if options[pos] == 8 and length == 10:
                stamp[i] = int.from_bytes(options[pos + 2 : pos + 6], "big")
                echo[i] = int.from_bytes(options[pos + 6 : pos + 10], "big")
            elif options[pos] == 2 and length == 4:
                mss[i] = int.from_bytes(options[pos + 2 : pos + 4], "big")
            pos += length
    return stamp, echo, mss
