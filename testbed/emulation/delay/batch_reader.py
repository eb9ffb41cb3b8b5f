"""Many netlink packets in one system call: recvmmsg, which Python's socket module lacks."""

from __future__ import annotations

import ctypes
import errno
import os

SLOT = 256  # bytes kept of each message; NFQUEUE's metadata takes 84 to 160


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _MsgHdr(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class _MMsgHdr(ctypes.Structure):
    _fields_ = [("header", _MsgHdr), ("len", ctypes.c_uint)]


class BatchReader:
    """Reads into `slots`: the messages of the last read, SLOT bytes apart."""

    def __init__(self, batch: int):
        self._batch = batch
        self._buffer = ctypes.create_string_buffer(SLOT * batch)
        self.slots = memoryview(self._buffer).cast("B")
        base = ctypes.addressof(self._buffer)
        self._vectors = (_IoVec * batch)(*[_IoVec(base + i * SLOT, SLOT) for i in range(batch)])
        self._headers = (_MMsgHdr * batch)()
        for i in range(batch):
            self._headers[i].header.iov = ctypes.addressof(self._vectors[i])
            self._headers[i].header.iovlen = 1
        libc = ctypes.CDLL(None, use_errno=True)
        self._call = libc.recvmmsg
        self._call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
        self._at = ctypes.addressof(self._headers)

    def read(self, fd: int) -> int:
        """Read what is there, at most `batch` messages, without waiting; how many. Raises OSError."""
        count = self._call(fd, self._at, self._batch, 0x40, None)  # MSG_DONTWAIT
        if count >= 0:
            return count
        code = ctypes.get_errno()
        if code in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS):
            return 0
        raise OSError(code, os.strerror(code))
