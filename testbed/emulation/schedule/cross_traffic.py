"""Sends cross traffic, from a process of its own: `python -m testbed.emulation.schedule.cross_traffic`.

Its sockets live in the hosts' namespaces, so that no process runs in a home. Downlink traffic comes from a
host outside, whose link nothing fills, so that the server's link carries none of it. Receiving sockets are
never read: what they can't hold, the kernel drops after it has crossed the link.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from testbed.emulation.kernel.namespaces import inside
from testbed.emulation.network.hosts import HostPort
from testbed.emulation.state import RunState, process_value
from testbed.errors import TestbedError
from testbed.scenario.cross_traffic import Stream
from testbed.scenario.link_model import GOODPUT_BYTES, MTU

READY_TIMEOUT_S = 20.0
_TICK_S = 0.001  # packets that are due within it leave together
_BEHIND_MAX_S = 0.05  # a source that was held up for longer leaves packets out
_UDP_HEADERS = 28
OnRate = Callable[[float, str, str, float, float], None]


class CrossTraffic:
    """The source process of one run. `begin` starts the traffic, `stop` ends it.

    Args:
        on_rate: called for each change, in a thread of its own, as (emulated time, home, direction, rate
            [bit/s], real seconds late).
    """

    def __init__(
        self,
        state: RunState,
        streams: Sequence[Stream],
        hosts: dict[str, HostPort],
        outside: HostPort,
        *,
        tdf: float = 1.0,
        mtu: int = MTU,
        on_rate: OnRate | None = None,
    ):
        self._state, self._on_rate = state, on_rate
        job = {"tdf": tdf, "mtu": mtu, "streams": [_job(s, hosts[s.home], outside) for s in streams]}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[3],
            start_new_session=True,
        )
        self._recorded = process_value(self._process.pid)
        state.record("process", self._recorded)
        self._thread = threading.Thread(target=self._listen, name="cross traffic", daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        try:
            self._send(job)
            if not self._ready.wait(READY_TIMEOUT_S) or not self.alive:
                raise TestbedError("the source of cross traffic did not start")
        except BaseException:
            self.stop()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, t0_monotonic: float) -> None:
        """Emulated time 0 is at that moment of CLOCK_MONOTONIC. Starts again if it was begun before."""
        self._send({"t0": t0_monotonic})

    def pause(self) -> None:
        """No packets until the next `begin`."""
        self._send({"t0": None})

    def _send(self, message: dict) -> None:
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TestbedError("the source of cross traffic has ended") from None

    def _listen(self) -> None:
        for line in self._process.stdout:
            message = json.loads(line)
            if message == "ready":
                self._ready.set()
            elif self._on_rate is not None:
                self._on_rate(*message)
        self._ready.set()

    def stop(self) -> None:
        """End the process. Idempotent."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._process.stdout.close()
        self._state.forget("process", self._recorded)


def _job(stream: Stream, home: HostPort, outside: HostPort) -> dict:
    source, sink = (outside, home) if stream.direction == "down" else (home, outside)
    return {
        "home": stream.home,
        "direction": stream.direction,
        "source": source.netns_path,
        "sink": sink.netns_path,
        "address": sink.ip,
        "changes": stream.changes,
    }


@dataclass
class _Sender:
    """One stream: what it sends now, and when it changes."""

    home: str
    direction: str
    socket: socket.socket
    schedule: list  # (emulated time, rate)
    changes: list  # what is to come, the next one last
    rate_bps: float = 0.0  # emulated
    next_s: float = 0.0  # when its next packet is due, real


def main() -> None:
    """Reads the job, then starting times (or null, for a pause), as lines of JSON; ends with its input."""
    with open(0, "rb", buffering=0) as orders, contextlib.ExitStack() as stack:  # unbuffered: select() sees all
        job = json.loads(orders.readline())
        senders = [_open(s, stack) for s in job["streams"]]
        _say("ready")
        _run(senders, orders, job["tdf"], job["mtu"])


def _say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _open(spec: dict, stack: contextlib.ExitStack) -> _Sender:
    with inside(spec["sink"]):
        sink = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sink.bind((spec["address"], 0))
    with inside(spec["source"]):
        sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.setblocking(False)
    sender.connect(sink.getsockname())
    return _Sender(spec["home"], spec["direction"], sender, spec["changes"], [])


def _run(senders: list[_Sender], orders: IO[bytes], tdf: float, mtu: int) -> None:
    t0 = 0.0
    payload = bytes(mtu - _UDP_HEADERS)
    gap_bits = 8 * (mtu - (MTU - GOODPUT_BYTES)) * tdf  # real seconds between packets, x the emulated rate
    while True:
        now = time.monotonic()
        wake = now + 3600.0
        for s in senders:
            while s.changes and t0 + s.changes[-1][0] * tdf <= now:
                t_s, s.rate_bps = s.changes.pop()
                due = t0 + t_s * tdf
                s.next_s = max(due, now - _TICK_S)
                _say([t_s, s.home, s.direction, s.rate_bps, now - due])
            if s.changes:
                wake = min(wake, t0 + s.changes[-1][0] * tdf)
            if s.rate_bps > 0:
                _send_due(s, payload, gap_bits / s.rate_bps, now)
                wake = min(wake, max(s.next_s, now + _TICK_S))
        if select.select([orders], [], [], max(0.0, wake - time.monotonic()))[0]:
            line = orders.readline()
            if not line:
                return
            t0 = json.loads(line)["t0"]
            for s in senders:
                s.rate_bps, s.changes = 0.0, [] if t0 is None else s.schedule[::-1]


def _send_due(s: _Sender, payload: bytes, gap_s: float, now: float) -> None:
    s.next_s = max(s.next_s, now - max(_BEHIND_MAX_S, gap_s))
    while s.next_s <= now:
        with contextlib.suppress(OSError):  # a link that is down, a full socket: the packet is lost
            s.socket.send(payload)
        s.next_s += gap_s


if __name__ == "__main__":
    main()
