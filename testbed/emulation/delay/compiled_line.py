"""The delay line's inner loop, compiled (line.c), where the package was built with a C compiler.

It has no Python headers and is no extension module: setuptools builds it as one, ctypes loads it. Which loop a
run had is in the manifest's commands.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from testbed.emulation.delay.delay_line import DelayLine, pace
from testbed.emulation.delay.lanes import Lane, Lanes

CHOICE = "TESTBED_DELAY_LINE"  # in the environment: 'python' or 'compiled'; else compiled where it is there
_UNTIL, _OTHER_READABLE, _UNKNOWN_LANE, _FAILED = range(4)


def library_path() -> Path | None:
    """Where the compiled loop is, if it was built."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_line{suffix}")
        if path.exists():
            return path
    return None


def load(path: Path) -> ctypes.CDLL:
    """The library with its functions' types. Raises OSError."""
    library = ctypes.CDLL(str(path))
    c_line, i64, u64 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
    number, u32, real = ctypes.c_int, ctypes.c_uint32, ctypes.c_double
    types: dict[str, tuple[Any, list]] = {
        "line_new": (c_line, [number, number, ctypes.c_void_p]),
        "line_free": (None, [c_line]),
        "line_add": (number, [c_line, u32, ctypes.c_char_p, u64, u64]),
        "line_set": (None, [c_line, number, i64, i64, real, real]),
        "line_set_pace": (None, [c_line, i64, i64]),
        "line_due": (i64, [c_line, number, i64]),
        "line_run": (number, [c_line, i64]),
        "line_stand_in": (None, [c_line]),
        "line_end": (None, [c_line]),
        "line_packets": (u64, [c_line]),
        "line_released": (u64, [c_line]),
        "line_lost": (u64, [c_line]),
        "line_stood_in": (u64, [c_line]),
        "line_unknown_out": (u32, [c_line]),
        "line_unknown_mac": (ctypes.c_void_p, [c_line]),
        "line_error": (number, [c_line]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class CompiledLine:
    """A DelayLine, compiled; the same arguments. Waits for one other descriptor, see add_handler."""

    loop = "compiled"

    def __init__(
        self,
        library: ctypes.CDLL,
        sock: socket.socket,
        lanes: Lanes,
        macs: Mapping[bytes, str],
        ports: Mapping[int, str],
        memory: memoryview,
    ):
        self.stamped = False
        self._c, self._sock, self._lanes, self._macs, self._ports = library, sock, lanes, macs, ports
        self._memory = memory
        self._counters = (ctypes.c_uint64 * len(memory)).from_buffer(memory.obj)
        self._line: int | None = None
        self._stand_in: threading.Thread | None = None
        self._hear: Callable[[], None] = lambda: None
        self._numbers: dict[Lane, int] = {}
        lanes.on_change = self._changed

    def add_handler(self, fd: int, call: Callable[[], None]) -> None:
        """Have `call` run whenever `fd` can be read. Once, and first of all."""
        self._hear = call
        self._line = self._c.line_new(self._sock.fileno(), fd, ctypes.addressof(self._counters))
        if not self._line:
            raise MemoryError("no memory for the delay line")

    def start_stand_in(self, processors: Iterable[int]) -> None:
        """A second thread, on these processors and scheduled like this one, works whenever this one is kept from it."""

        def work() -> None:
            os.sched_setaffinity(0, processors)
            self._c.line_stand_in(self._line)

        self._stand_in = threading.Thread(target=work, name="stand-in", daemon=True)
        self._stand_in.start()

    def close(self) -> None:
        """End the stand-in."""
        if self._stand_in:
            self._c.line_end(self._line)
            self._stand_in.join()
            self._stand_in = None

    @property
    def stood_in(self) -> int:
        """Packets that the stand-in released."""
        return self._c.line_stood_in(self._line)

    @property
    def packets(self) -> int:
        return self._c.line_packets(self._line)

    @property
    def released(self) -> int:
        return self._c.line_released(self._line)

    @property
    def lost(self) -> int:
        return self._c.line_lost(self._line)

    @property
    def queued(self) -> int:
        return self.packets - self.released - self.lost

    def turn(self, latest_ns: int) -> None:
        """Delay packets until `latest_ns` (monotonic), or until the handler has run. Raises OSError."""
        while True:
            code = self._c.line_run(self._line, latest_ns)
            if code == _UNKNOWN_LANE:
                out = self._c.line_unknown_out(self._line)
                mac = ctypes.string_at(self._c.line_unknown_mac(self._line), 6)
                self._add(out, mac)
            elif code == _OTHER_READABLE:
                self._hear()
                return
            elif code == _FAILED:
                error = self._c.line_error(self._line)
                raise OSError(error, os.strerror(error))
            else:
                return

    def _add(self, out: int, mac: bytes) -> None:
        lane = self._lanes.lane(self._macs.get(mac, ""), self._ports.get(out, ""))
        number = self._c.line_add(self._line, out, mac, *lane.seeds)
        if number < 0:
            raise MemoryError("no memory for another lane")
        self._numbers[lane] = number
        self._changed([lane])

    def _changed(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            number = self._numbers.get(lane)
            if number is not None:
                self._c.line_set(self._line, number, lane.delay, lane.jitter, lane.loss, lane.reorder)
        self._c.line_set_pace(self._line, *pace(self._lanes.shortest, self.stamped))


def make_line(
    sock: socket.socket, lanes: Lanes, macs: Mapping[bytes, str], ports: Mapping[int, str], memory: memoryview
) -> DelayLine | CompiledLine:
    """The compiled loop where it was built, else the one in Python. Raises OSError when it was asked for in vain."""
    choice = os.environ.get(CHOICE, "")
    path = library_path()
    if choice == "compiled" and path is None:
        raise OSError(f"{CHOICE}=compiled, but it was not built: install the package where a C compiler is")
    if choice != "python" and path is not None:
        try:
            return CompiledLine(load(path), sock, lanes, macs, ports, memory)
        except (OSError, AttributeError):  # built for another machine, or from older source
            if choice == "compiled":
                raise
    return DelayLine(sock, lanes, macs, ports, memory)
