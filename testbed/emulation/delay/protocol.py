"""What engine and delay daemon say to each other: msgpack behind its length, over a socket pair."""

from __future__ import annotations

import socket

import msgspec

from testbed.scenario.link_model import PathDelay


class Host(msgspec.Struct):
    name: str
    mac: str
    uplink: str  # the interface by which its packets enter
    port: str  # the bridge's port that leads to it
    area: str | None = None  # the shared link that it is behind


class Start(msgspec.Struct, tag="start"):
    netns: str  # path of the namespace with the bridges
    prefix: str  # of the names of the hosts' ports, and of no other port's
    hosts: list[Host]
    delays: dict[str, PathDelay]
    shared_delay_s: dict[str, float]
    seed: int


class Change(msgspec.Struct, tag="change"):
    delays: dict[str, PathDelay]


class Stop(msgspec.Struct, tag="stop"):
    pass


class Ready(msgspec.Struct, tag="ready"):
    rule: str  # what was put in place, in words
    scheduler: str  # which loop, how it got ahead of others, and whether times are from behind uplinks' queues


class Failed(msgspec.Struct, tag="failed"):
    code: int  # errno
    text: str


Message = Start | Change | Stop | Ready | Failed
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def send(sock: socket.socket, message: Message) -> None:
    """Send all of it, within the socket's timeout. Raises OSError."""
    body = _encoder.encode(message)
    sock.sendall(len(body).to_bytes(4, "big") + body)


class Inbox:
    """Takes bytes as they come, gives messages once they are whole."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                break
            messages.append(_decoder.decode(bytes(self._buffer[4:end])))
            del self._buffer[:end]
        return messages
