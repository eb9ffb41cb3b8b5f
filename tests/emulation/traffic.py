"""TCP flows between emulated hosts, from threads of the test itself: a socket stays where it was made."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator

from testbed.emulation.kernel.namespaces import in_thread, inside
from testbed.emulation.network.emulated import EmulatedNetwork

_BLOCK = bytes(1 << 16)


def socket_in(netns: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket that belongs to a namespace."""

    def make() -> socket.socket:
        with inside(netns):
            return socket.socket(socket.AF_INET, kind)

    return in_thread(make)


def connect(network: EmulatedNetwork, source: str, target: str) -> tuple[socket.socket, socket.socket]:
    """A TCP connection: (the source's end, the target's end)."""
    with socket_in(network.hosts[target].netns) as listener:
        listener.bind((network.hosts[target].ip, 0))
        listener.listen()
        listener.settimeout(10)
        near = socket_in(network.hosts[source].netns)
        near.settimeout(10)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
    far.settimeout(10)
    return near, far


class Flow:
    """A TCP flow that sends as much as it can, from construction until `stop`."""

    def __init__(self, network: EmulatedNetwork, source: str, target: str):
        self.near, self.far = connect(network, source, target)
        self.received_bytes = 0
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, daemon=True),
            threading.Thread(target=self._receive, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while not self._stopped.is_set():
                self.near.sendall(_BLOCK)

    def _receive(self) -> None:
        buffer = bytearray(1 << 18)
        with contextlib.suppress(OSError):
            while not self._stopped.is_set():
                self.received_bytes += self.far.recv_into(buffer)

    def goodput_bps(self, seconds: float, warm_up_s: float = 1.0) -> float:
        """Payload received over `seconds` that start after the warm-up, as a rate."""
        time.sleep(warm_up_s)
        start, before = time.monotonic(), self.received_bytes
        time.sleep(seconds)
        return (self.received_bytes - before) * 8 / (time.monotonic() - start)

    def stop(self) -> None:
        self._stopped.set()
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        self.near.close()
        self.far.close()

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, *_) -> None:
        self.stop()


@contextlib.contextmanager
def flood(network: EmulatedNetwork, source: str, target: str, rate_bps: float) -> Iterator[None]:
    """Full-size UDP packets at a rate that no queue slows down, while the context lasts."""
    sock = socket_in(network.hosts[source].netns, socket.SOCK_DGRAM)
    sock.connect((network.hosts[target].ip, 9))
    sock.setblocking(False)
    stopped = threading.Event()

    def send() -> None:
        start, sent = time.monotonic(), 0
        while not stopped.wait(0.002):
            due = (time.monotonic() - start) * rate_bps / 8
            while sent < due:
                with contextlib.suppress(OSError):  # no room, or the target has no such port: so be it
                    sock.send(_BLOCK[:1472])
                sent += 1514

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(5)
        sock.close()


def goodputs(flows: list[Flow], seconds: float, warm_up_s: float = 1.0) -> list[float]:
    """Goodput of flows that run at the same time [bit/s]."""
    time.sleep(warm_up_s)
    start, before = time.monotonic(), [flow.received_bytes for flow in flows]
    time.sleep(seconds)
    elapsed = time.monotonic() - start
    return [(flow.received_bytes - b) * 8 / elapsed for flow, b in zip(flows, before, strict=True)]


def ping_ms(network: EmulatedNetwork, source: str, target: str, count: int = 5) -> list[float]:
    """Round-trip times of the pings that were answered [ms]."""
    ip = network.hosts[target].ip
    done = network.run(source, ["ping", "-n", "-c", str(count), "-i", "0.1", "-W", "1", ip])
    return [float(found) for found in re.findall(r"time=([\d.]+) ms", done.stdout)]
