"""This side of the second kernel's serial line: terminal, streams and signals of the command that booted it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field

from testbed.errors import TestbedError
from testbed.uml import frames

BOOT_TIMEOUT_S = 120.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GIVE_UP_AFTER = 5  # so many signals without an end, and the kernel is ended instead of the program
_LOG_BYTES = 65536
_AT_EVERY_BOOT = re.compile(r"SELinux|mmapper_init|ubd device|size of device's file")


class KernelLost(TestbedError):
    """The second kernel ended before the program in it did: it panicked, was killed, or never booted."""


@dataclass(frozen=True)
class Streams:
    """What standard input, output and error are. owned: is standard input a terminal, and ours to read?"""

    terminals: tuple[bool, bool, bool]
    owned: bool
    size: tuple[int, int] = (24, 80)
    attributes: list | None = None

    @classmethod
    def found(cls) -> Streams:
        terminals = [os.isatty(fd) if _is_open(fd) else False for fd in range(3)]
        # In the background, reading the terminal or changing it would stop us.
        owned = terminals[0] and _in_foreground(0)
        terminals[0] = owned
        first = next((fd for fd in range(3) if terminals[fd]), None)
        if first is None:
            return cls(tuple(terminals), owned)
        attributes = termios.tcgetattr(first)
        attributes[6][termios.VSUSP] = b"\0"  # nothing in there could continue a stopped program
        if not owned:  # this side's terminal keeps its settings and does all that
            attributes[1] &= ~termios.OPOST
        return cls(tuple(terminals), owned, tuple(os.get_terminal_size(first))[::-1], attributes)

    def as_json(self) -> dict:
        attributes = self.attributes and [
            *self.attributes[:6],
            [c[0] if isinstance(c, bytes) else c for c in self.attributes[6]],
        ]
        return {"terminals": self.terminals, "size": self.size, "attributes": attributes}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _in_foreground(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def raw(streams: Streams) -> Iterator[None]:
    """The terminal hands every byte on; what they mean is decided by the terminal inside."""
    if not streams.owned:
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@dataclass
class Console:
    """Relays until the program inside has ended.

    line: a socket whose other end is the kernel's serial line. log: a pipe with what the kernel says. said: a pipe
    that closes when the kernel has ended.
    """

    streams: Streams
    line: socket.socket
    log: int
    said: int
    _decoder: frames.Decoder = field(default_factory=frames.Decoder)
    _logged: bytearray = field(default_factory=bytearray)
    _up: bool = False
    _code: int | None = None
    _unread: int = 0
    _input_open: bool = True
    _signals: int = 0

    def run(self) -> int:
        """The program's exit code, 128 + n when signal n ended it.

        Raises:
            KernelLost: the kernel ended first. TestbedError: the program could not be started.
        """
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        with self._signals_passed_on() as woken, raw(self.streams):
            while self._code is None:
                fds = [self.line, self.log, self.said, woken]
                if self._up and self._input_open and self._unread < frames.INPUT_WINDOW and self._may_read():
                    fds.append(0)
                left = None if self._up else max(0.0, deadline - time.monotonic())
                readable = select.select(fds, [], [], left)[0]
                if not readable:
                    raise KernelLost(f"the second kernel did not boot within {BOOT_TIMEOUT_S:g} s", hint=self._last())
                if woken in readable:
                    for number in os.read(woken, 256):
                        self._signal(number)
                if self.log in readable:
                    self._read_log()
                if 0 in readable:
                    self._read_input()
                if self.line in readable:
                    self._read_line()
                if self.said in readable and self._code is None:  # all that was sent lies in the socket by now
                    self._read_line()
                    if self._code is None:
                        self._lost()
        return self._code if self._code >= 0 else 128 - self._code

    def _may_read(self) -> bool:
        return _is_open(0) and (self.streams.owned or not os.isatty(0))

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[int]:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        before_fd = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        before = {
            n: signal.signal(n, lambda *_: None)
            for n in (*_PASSED_ON, signal.SIGWINCH)
            if signal.getsignal(n) is not signal.SIG_IGN
        }
        try:
            yield woken
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.close(woken)
            os.close(wake)

    def _signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            first = next((fd for fd in range(3) if self.streams.terminals[fd]), None)
            if first is not None and self._up:
                columns, rows = os.get_terminal_size(first)
                self._send(frames.SIZE, frames.ROWS_COLUMNS.pack(rows, columns))
            return
        if number not in _PASSED_ON:
            return
        self._signals += 1
        if not self._up or self._signals >= _GIVE_UP_AFTER:  # ends the kernel on its way out
            self._code = -number
            return
        self._send(frames.SIGNAL, frames.UINT.pack(number))

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        with contextlib.suppress(OSError):  # the kernel has ended: noticed by itself
            self.line.sendall(frames.frame(kind, payload))

    def _read_input(self) -> None:
        try:
            data = os.read(0, frames.INPUT_WINDOW - self._unread)
        except OSError:  # EIO: the terminal was hung up
            data = b""
        self._input_open = bool(data)
        self._unread += len(data)
        self._send(frames.INPUT, data)

    def _read_log(self) -> None:
        self._logged += os.read(self.log, 65536)
        del self._logged[:-_LOG_BYTES]

    def _read_line(self) -> None:
        try:
            data = self.line.recv(1 << 18, socket.MSG_DONTWAIT)
        except OSError:
            return
        for kind, payload in self._decoder.feed(data):
            if kind == frames.HELLO:
                self._up = True
            elif kind in (frames.OUT, frames.ERR, frames.TERMINAL):
                self._write(kind, payload)
            elif kind == frames.ACK:
                self._unread -= frames.UINT.unpack(payload)[0]
            elif kind == frames.EXIT:
                self._code = frames.INT.unpack(payload)[0]
                self._send(frames.BYE)
            elif kind == frames.FAILED:
                self._send(frames.BYE)
                raise TestbedError(
                    f"--kernel uml: {payload.decode(errors='replace').strip()}",
                    hint="the second kernel has file systems of its own at /dev, /proc, /run and /sys",
                )

    def _write(self, kind: bytes, payload: bytes) -> None:
        if kind == frames.TERMINAL:
            fd = next(fd for fd in (1, 2, 0) if self.streams.terminals[fd])
        else:
            fd = 1 if kind == frames.OUT else 2
        rest = memoryview(payload)
        try:
            while rest:
                try:
                    rest = rest[os.write(fd, rest) :]
                except BlockingIOError:  # someone made the descriptor non-blocking
                    select.select([], [fd], [])
        except OSError:  # nobody reads it any more
            if kind != frames.TERMINAL:
                self._send(frames.CLOSED, kind)

    def _lost(self) -> None:
        while select.select([self.log], [], [], 0)[0]:
            before = len(self._logged)
            self._read_log()
            if len(self._logged) == before:
                break
        text = self._logged.decode(errors="replace")
        panic = re.search(r"Kernel panic - not syncing: (.*)", text)
        if panic:
            raise KernelLost(
                f"the second kernel panicked: {panic[1].strip()}",
                hint="What the program had not yet written to disk is lost." if self._up else None,
            )
        what = "ended before the program in it did" if self._up else "did not boot"
        raise KernelLost(f"the second kernel {what}", hint=self._last())

    def _last(self) -> str:
        lines = [
            line.rstrip()
            for line in self._logged.decode(errors="replace").splitlines()
            if line.strip() and not _AT_EVERY_BOOT.search(line)
        ]
        return "its last words:\n  " + "\n  ".join(lines[-12:]) if lines else "it said nothing"


def flush() -> None:
    """What this process has printed comes before what the program inside prints."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
