"""Messages between the command that booted the second kernel and the first process in it, on one serial line.

Either side imports this, the guest without anything else of the testbed. A message is a type of one byte, a length of
two, and so many bytes.
"""

from __future__ import annotations

import struct

# guest to host
HELLO = b"h"  # the line is ready
OUT = b"1"  # bytes for standard output
ERR = b"2"  # bytes for standard error
TERMINAL = b"t"  # bytes for the terminal that any of the three streams is
ACK = b"a"  # UINT: bytes of INPUT that the program has taken
EXIT = b"x"  # INT: exit code, negative for a signal; the last message
FAILED = b"f"  # text: why the program could not be started; the last message

# host to guest
INPUT = b"0"  # bytes from standard input; none: its end
SIGNAL = b"s"  # UINT: for the program
SIZE = b"w"  # rows, columns of the terminal
CLOSED = b"c"  # OUT or ERR: nobody reads it any more
BYE = b"b"  # the last message has arrived

_HEAD = struct.Struct(">cH")
UINT = struct.Struct(">I")
INT = struct.Struct(">i")
ROWS_COLUMNS = struct.Struct(">HH")

LARGEST = 32768
# The guest's line takes at most 4,095 bytes that nobody has read yet, and loses what comes beyond.
INPUT_WINDOW = 2048


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


class Decoder:
    """Puts messages together again from whatever pieces arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """(type, payload) of every message that is complete now."""
        self._rest += data
        found = []
        at = 0
        while len(self._rest) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest, at)
            if len(self._rest) - at - _HEAD.size < length:
                break
            at += _HEAD.size
            found.append((kind, bytes(self._rest[at : at + length])))
            at += length
        del self._rest[:at]
        return found
