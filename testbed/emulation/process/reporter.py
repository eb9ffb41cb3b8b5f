"""A worker's events and messages to the engine, many events at a time: hundreds a step cost little."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import msgspec

from testbed.emulation.process import control

_FLUSH_S = 0.1  # real; how long an event may wait for others to be sent with
_FLUSH_EVENTS = 500


class Reporter:
    """Never blocks, until `drain` at the end. Use it from the loop."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop):
        self._sock = sock
        self._loop = loop
        self._events: list[msgspec.Raw] = []
        self._timer: asyncio.TimerHandle | None = None
        self._out = bytearray()
        sock.setblocking(False)

    def event(self, event: dict[str, Any]) -> None:
        """Raises TypeError when a field is not JSON-like."""
        self._events.append(msgspec.Raw(control.encode(event)))
        if len(self._events) >= _FLUSH_EVENTS:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_S, self.flush)

    def message(self, message: dict[str, Any]) -> None:
        """After all events so far."""
        self.flush()
        self._write(control.frame(message))

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._events:
            events, self._events = self._events, []
            self._write(control.frame({"kind": "events", "events": events}))

    def drain(self, timeout_s: float = 2.0) -> None:
        """Blocking, at the end: everything out."""
        self.flush()
        self._loop.remove_writer(self._sock)
        self._sock.settimeout(timeout_s)
        with contextlib.suppress(OSError):
            self._sock.sendall(self._out)
        self._out.clear()

    def _write(self, data: bytes) -> None:
        if not self._out:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the engine is gone; the control reader ends this process
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._sock, self._writable)
        self._out += data

    def _writable(self) -> None:
        try:
            del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()
        if not self._out:
            self._loop.remove_writer(self._sock)
