"""What an unprivileged worker keeps of root: reading files, and nothing else.

A worker is another user, so that it can't change the machine. But what it imports late may lie where that user can't
look: below a home directory of mode 0700, or in a clone made with umask 077. CAP_DAC_READ_SEARCH (capabilities(7)) lets
it read and search everything, and write nothing. It gives away little: root has loaded the runner's code before, in the
fork server.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CAP_DAC_READ_SEARCH = 2
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2
_VERSION_3 = 0x20080522  # of the capset system call: 64 bits in two parts
_libc = ctypes.CDLL(None, use_errno=True)


def keep_reading() -> bool:
    """Before the change of user: capabilities outlive it. False where this process may not read everything itself."""
    return _effective() & 1 << _CAP_DAC_READ_SEARCH != 0 and _libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0


def read_everything() -> None:
    """After the change of user: CAP_DAC_READ_SEARCH alone is left, for programs that the worker starts, too.

    Raises:
        OSError: the kernel does not let it be kept.
    """
    one = 1 << _CAP_DAC_READ_SEARCH
    header = struct.pack("Ii", _VERSION_3, 0)
    data = struct.pack("6I", one, one, one, 0, 0, 0)  # effective, permitted, inheritable: low bits, then high bits
    if _libc.capset(header, data) or _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"keeping CAP_DAC_READ_SEARCH: {os.strerror(code)}")


def _effective() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
