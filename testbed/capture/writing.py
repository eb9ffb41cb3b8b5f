"""Completes what tcpdump wrote: pcapng with the interface's and the hosts' names and comments, from a classic pcap.

The packets are unchanged. Format: draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from testbed.capture.reading import INTERFACE, NAMES, PACKET, SECTION, STATISTICS, Batch, Capture
from testbed.errors import InputError

_NANOSECONDS = 9  # if_tsresol: 10^-9


def complete(
    source: Path, target: Path, *, host: str, interface: str, names: Mapping[str, str], comments: list[str],
    snaplen: int, dropped: int | None = None,
) -> int:  # fmt: skip
    """Write `target` (pcapng) from `source`, then delete `source`. Returns how many packets there are.

    Args:
        names: hosts' names by IPv4 address. comments: of the file, shown by Wireshark's properties of a capture.
        dropped: packets that the capturer lost, None if it did not say.

    Raises:
        InputError: `source` is no capture. OSError: `target` can't be written; `source` is then still there.
    """
    partial = target.with_name(f".{target.name}.partial")
    count, begun = 0, False
    try:
        with partial.open("wb") as file:
            for batch in _readable(source):
                if not begun:
                    file.write(_head(batch.link, host, interface, names, comments, snaplen))
                    begun = True
                raw = batch.data.tobytes()
                out = []
                for at, size, length, time_ns in zip(
                    batch.start.tolist(), batch.captured.tolist(), batch.length.tolist(), batch.time_ns.tolist()
                ):
                    padding = -size % 4
                    total = 32 + size + padding
                    out.append(struct.pack("<7I", PACKET, total, 0, time_ns >> 32, time_ns & 0xFFFFFFFF, size, length))
                    out.append(raw[at : at + size])
                    out.append(bytes(padding) + struct.pack("<I", total))
                file.write(b"".join(out))
                count += len(batch.start)
            if not begun:
                file.write(_head(1, host, interface, names, comments, snaplen))
            if dropped is not None:
                file.write(_block(STATISTICS, struct.pack("<III", 0, 0, 0) + _options((5, struct.pack("<Q", dropped)))))
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    source.unlink()
    return count


def _readable(source: Path) -> Iterator[Batch]:
    """Up to where a full disk left a hole. Raises InputError: nothing is readable."""
    count = 0
    try:
        for batch in Capture(source).batches():
            count += 1
            yield batch
    except InputError:
        if not count:
            raise


def _head(link: int, host: str, interface: str, names: Mapping[str, str], comments: list[str], snaplen: int) -> bytes:
    section = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    section += _options(*((1, text.encode()) for text in comments), (4, b"testbed"))
    described = struct.pack("<HHI", link, 0, snaplen) + _options(
        (2, interface.encode()), (3, f"the access link of {host}".encode()), (9, bytes([_NANOSECONDS]))
    )
    records = b"".join(_padded(1, socket.inet_aton(address) + name.encode() + b"\0") for address, name in names.items())
    return _block(SECTION, section) + _block(INTERFACE, described) + _block(NAMES, records + bytes(4))


def _padded(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _options(*options: tuple[int, bytes]) -> bytes:
    return b"".join(_padded(code, value) for code, value in options) + bytes(4)


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size
