"""Membership on real sockets: one small thread a node, so that neither training nor bulk data delays
heartbeats.

The thread needs the interpreter for some 50 µs a datagram; torch lets go of it while it computes. Datagrams
have a path of their own beside the data's TCP connections, so bulk data delays them by the bottleneck's
buffer and no more.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait  # poll(): select() ends at descriptor 1023

from testbed.emulation.process.membership import Expelled, Joined, Lease, Registry
from testbed.runtime import MembershipEvent
from testbed.runtime.failure_detector import DetectorSettings

_MAX_DATAGRAM = 65536
_JUDGE_S = 0.05  # emulated; how often the server looks for deadlines that passed
_MIN_WAIT_S, _MAX_WAIT_S = 0.01, 0.25  # real; bounds of one wait in the server's loop


class _Loop:
    """A thread around one datagram socket. `clock`: real seconds; the rules see them divided by the TDF."""

    def __init__(self, address: tuple[str, int], tdf: float, name: str, clock: Callable[[], float]):
        self._tdf = tdf
        self._clock = clock
        self._stop = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(address)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the sockets; a second call does nothing."""
        if self._stop:
            return
        self._stop = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        for s in (self._socket, self._wake_in, self._wake_out):
            s.close()

    def _now_s(self) -> float:
        return self._clock() / self._tdf

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.send(b"!")

    def _wait(self, seconds: float) -> None:
        if self._wake_in in wait([self._socket, self._wake_in], max(0.0, seconds)):
            self._wake_in.recv(4096)

    def _received(self) -> list[tuple[bytes, object]]:
        datagrams = []
        while True:
            try:
                datagrams.append(self._socket.recvfrom(_MAX_DATAGRAM))
            except BlockingIOError:
                return datagrams
            except OSError:  # an ICMP error about something sent earlier: silence will tell
                continue

    def _send(self, data: bytes, address: object) -> None:
        with contextlib.suppress(OSError):  # link down or queue full: lost, like anything else on the way
            self._socket.sendto(data, address)

    def _run(self) -> None:
        raise NotImplementedError


class MembershipServer(_Loop):
    """Listens for heartbeats of all devices, and judges.

    Args:
        address: (ip, port) to listen on.
        names: the devices in the cluster's order.
        on_event: called for each change, in order, in this thread.
    """

    def __init__(
        self, address: tuple[str, int], names: Sequence[str], *, on_event: Callable[[MembershipEvent], None],
        tdf: float = 1.0, settings: DetectorSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        super().__init__(address, tdf, "membership", clock)
        self._on_event = on_event
        self._registry = Registry(names, settings or DetectorSettings(), self._now_s())

    def begin(self, t0: float) -> None:
        """The experiment's time 0, on `clock`; changes before it are stamped 0."""
        with self._lock:
            self._registry.start_s = t0 / self._tdf

    def deadline_s(self, name: str) -> float | None:
        with self._lock:
            return self._registry.deadline_s(name)

    @property
    def alive(self) -> dict[str, int]:
        with self._lock:
            return self._registry.alive

    def _run(self) -> None:
        wait_s = min(max(_JUDGE_S * self._tdf, _MIN_WAIT_S), _MAX_WAIT_S)
        judged = self._clock()
        while not self._stop:
            self._wait(wait_s)
            with self._lock:
                for data, address in self._received():
                    self._apply(self._registry.receive(data, address, self._now_s()))
                if self._clock() - judged >= wait_s:
                    self._apply(self._registry.judge(self._now_s()))
                    judged = self._clock()

    def _apply(self, outcome: tuple[list[tuple[object, bytes]], list[MembershipEvent]]) -> None:
        out, events = outcome
        for address, data in out:
            self._send(data, address)
        for event in events:
            self._on_event(event)


class MembershipClient(_Loop):
    """A device's heartbeats and lease.

    Args:
        address: (ip, port) to send from; port 0 for any.
        server: (ip, port) of the server's MembershipServer.
        on_change: called for Joined, Expelled and each MembershipEvent, in order, in this thread.
    """

    def __init__(
        self, address: tuple[str, int], server: tuple[str, int], names: Sequence[str], name: str, *,
        on_change: Callable[[Joined | Expelled | MembershipEvent], None], tdf: float = 1.0,
        settings: DetectorSettings | None = None, clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        super().__init__(address, tdf, "heartbeat", clock)
        self._server = server
        self._on_change = on_change
        self._lease = Lease(names, name, settings or DetectorSettings(), self._now_s(), time.monotonic_ns())

    def rejoin(self) -> None:
        """After Expelled: ask to be let in again, as a new life."""
        with self._lock:
            self._lease.rejoin(time.monotonic_ns(), self._now_s())
        self._wake()

    def hurry(self) -> None:
        """Ask for the view at once."""
        with self._lock:
            self._lease.hurry()
        self._wake()

    @property
    def rtt_s(self) -> float:
        """Smoothed round-trip time to the server [emulated s]; 0 before the first."""
        return self._lease.round_trip.smoothed_s

    def _run(self) -> None:
        while not self._stop:
            with self._lock:
                changes = []
                for data, _ in self._received():
                    changes += self._lease.receive(data, self._now_s())
                beat, more = self._lease.poll(self._now_s())
                due_s = self._lease.due_s
            if beat is not None:
                self._send(beat, self._server)
            for change in changes + more:
                self._on_change(change)
            self._wait((due_s - self._now_s()) * self._tdf)
