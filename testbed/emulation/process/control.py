"""Control and metrics between the engine and its processes: msgpack messages, each after its length, on Unix
sockets.

They never touch the shaped network. A message is a dict with a `kind`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("!I")


def plain(value: Any) -> Any:
    """What NumPy and torch scalars and arrays hold, as JSON-like values."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON-like")


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_decoder = msgspec.msgpack.Decoder()


def encode(value: Any) -> bytes:
    """Raises TypeError when it is not JSON-like."""
    return _encoder.encode(value)


def frame(message: dict[str, Any]) -> bytes:
    """A message with its length in front."""
    data = encode(message)
    return _LENGTH.pack(len(data)) + data


class Unframer:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        self._buffer += data
        messages = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decoder.decode(memoryview(self._buffer)[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return messages


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Blocking."""
    sock.sendall(frame(message))
