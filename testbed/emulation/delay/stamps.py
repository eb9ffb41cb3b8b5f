"""Receive times of packets that have waited in an uplink: taken anew behind it.

The kernel stamps a packet where it first comes in, ahead of the uplink's queue, and keeps that stamp on its way to
the bridge, where it is of no use. A small BPF program has it forgotten in time, so that the kernel stamps the packet
when it leaves the queue. Needs tcx (Linux 6.6). Without it the line takes the time at which it last found its own
queue empty.

Sources: linux/bpf.h (bpf(2), struct __sk_buff), kernel documentation bpf/standardization/instruction-set.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

_SYS_BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_PROG_LOAD, _LINK_CREATE = 5, 28
_SCHED_CLS, _TCX_INGRESS = 3, 46
_TSTAMP_AT = 152  # in struct __sk_buff
_NEXT = -1  # TCX_NEXT: go on with what else is attached
_libc = ctypes.CDLL(None, use_errno=True)


def _instruction(code: int, to: int = 0, of: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, of << 4 | to, offset, value)


_PROGRAM = b"".join(
    (
        _instruction(0xB7, to=2, value=0),  # r2 = 0
        _instruction(0x7B, to=1, of=2, offset=_TSTAMP_AT),  # *(u64 *)(r1 + 152) = r2
        _instruction(0xB7, to=0, value=_NEXT),  # r0 = TCX_NEXT
        _instruction(0x95),  # exit
    )
)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYS_BPF.get(os.uname().machine)
    if number is None:
        raise OSError(f"bpf(2) on {os.uname().machine}")
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = _libc.syscall(number, command, buffer, 128)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf: {os.strerror(error)}")
    return result


def forget_early_stamps(interfaces: Iterable[int]) -> list[int]:
    """Have packets that enter by these interfaces stamped anew when next received.

    Args:
        interfaces: indexes, in the caller's namespace.

    Returns:
        File descriptors that keep it so; it ends when they are closed.

    Raises:
        OSError: the kernel has no tcx, or does not let us.
    """
    program, terms = ctypes.create_string_buffer(_PROGRAM), ctypes.create_string_buffer(b"none")
    where = ctypes.addressof(program), ctypes.addressof(terms)
    loaded = _bpf(_PROG_LOAD, struct.pack("=IIQQ", _SCHED_CLS, len(_PROGRAM) // 8, *where))
    links: list[int] = []
    try:
        links.extend(_bpf(_LINK_CREATE, struct.pack("=IIII", loaded, index, _TCX_INGRESS, 0)) for index in interfaces)
    except OSError:
        for link in links:
            os.close(link)
        raise
    finally:
        os.close(loaded)
    return links
