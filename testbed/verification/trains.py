"""Numbered datagrams, whose arrival times are the kernel's own (SO_TIMESTAMPNS).

A busy user space then makes no packet look late: only what happens between the two hosts counts. A packet
during whose sending this process lost the processor is not used for delays, since nobody knows when it left.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from dataclasses import dataclass

import numpy as np

from testbed.emulation.kernel.namespaces import inside
from testbed.emulation.kernel.socket_options import SO_RCVBUFFORCE, SO_SNDBUFFORCE, UDP_SEGMENT, stamp, stamp_packets
from testbed.scenario.link_model import FRAME_BYTES, GOODPUT_BYTES, MTU

_UDP_HEADERS = 28
_HEAD = struct.Struct("=I")
_BUFFER_BYTES = 256 << 20  # a limit, not an allocation: nothing is read while a link is saturated
_BUSY_S = 0.0002  # a send that took longer was interrupted
_SEGMENTS_MAX = 40  # datagrams of one system call; the kernel makes single frames of them at once
_TICK_S = 0.001
OVERDRIVE = 1.15  # x the link's rate: its queue stays full


@dataclass(frozen=True)
class Path:
    """source, sink: paths of namespaces; address: the sink's."""

    source: str
    sink: str
    address: str


@dataclass(frozen=True)
class Received:
    """Packets of one flow; arrays by packet, in the order of sending.

    sent_s, arrived_s: on the machine's clock; NaN in `arrived_s` for a packet that never came.
    clear: whether the moment of sending is known.
    """

    sent_s: np.ndarray
    arrived_s: np.ndarray
    clear: np.ndarray

    @property
    def lost(self) -> int:
        return int(np.isnan(self.arrived_s).sum())

    def delays_s(self) -> np.ndarray:
        """One-way delays of the packets that came and whose sending was clear."""
        delays = (self.arrived_s - self.sent_s)[self.clear]
        return delays[~np.isnan(delays)]


class _Flow:
    def __init__(self, path: Path, stack: contextlib.ExitStack, most: int):
        with inside(path.sink):
            self.sink = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with inside(path.source):
            self.source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER_BYTES)
        stamp_packets(self.sink)
        self.sink.bind((path.address, 0))
        self.sink.setblocking(False)
        self.source.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
        self.source.connect(self.sink.getsockname())
        self.source.setblocking(False)
        self.count = 0
        self._sent = np.full(most, np.nan)
        self._arrived = np.full(most, np.nan)
        self._clear = np.zeros(most, dtype=bool)

    def send(self, data: bytes | memoryview, packets: int = 1) -> None:
        """Datagrams whose numbers follow the ones before; `data` holds them all."""
        before = time.time_ns()
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            self.source.send(data)
        took_s = (time.time_ns() - before) * 1e-9
        part = slice(self.count, self.count + packets)
        self._sent[part] = before * 1e-9
        self._clear[part] = took_s < _BUSY_S * packets
        self.count += packets

    def read(self) -> None:
        """Take what has arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, extra, _, _ = self.sink.recvmsg(_HEAD.size, 64)
                (number,) = _HEAD.unpack(data)
                self._arrived[number] = stamp(extra)

    def received(self) -> Received:
        n = self.count
        return Received(self._sent[:n], self._arrived[:n], self._clear[:n])


def send_trains(
    paths: dict[str, Path], *, count: int, interval_s: float, wait_s: float, payload: int = 64
) -> dict[str, Received]:
    """Small datagrams on all paths at once, `count` of them `interval_s` apart; their senders take turns."""
    with contextlib.ExitStack() as stack:
        flows = {name: _Flow(path, stack, count) for name, path in paths.items()}
        turn_s = interval_s / max(1, len(flows))
        pad = bytes(payload - _HEAD.size)
        begin = time.monotonic()
        for number in range(count):
            for i, flow in enumerate(flows.values()):
                _sleep_until(begin + number * interval_s + i * turn_s)
                flow.send(_HEAD.pack(number) + pad)
            if number % 64 == 63:
                for flow in flows.values():
                    flow.read()
        time.sleep(wait_s)
        for flow in flows.values():
            flow.read()
        return {name: flow.received() for name, flow in flows.items()}


def _sleep_until(due: float) -> None:
    while (left := due - time.monotonic()) > 0:
        time.sleep(left)


@dataclass(frozen=True)
class Saturation:
    """A link whose queue was kept full. Rates are real.

    arrived_s: times of the packets that came while the queue was full, ascending. delays_s: theirs, from
    sending. payload: what a TCP flow would have carried in each. sent_bps: what was offered, as goodput.
    """

    arrived_s: np.ndarray
    delays_s: np.ndarray
    payload: int
    sent_bps: float

    @property
    def goodput_bps(self) -> float:
        """0 when fewer than two packets came."""
        if len(self.arrived_s) < 2 or self.arrived_s[-1] <= self.arrived_s[0]:
            return 0.0
        return 8 * self.payload * (len(self.arrived_s) - 1) / float(self.arrived_s[-1] - self.arrived_s[0])


def saturate_path(path: Path, goodput_bps: float, buffer_s: float, delay_s: float, seconds: float) -> Saturation:
    """Fill the queue of a path's bottleneck at once, keep it full, and watch what comes out.

    Args:
        goodput_bps: of the bottleneck (real).
        buffer_s: how much its queue holds, as time.
        delay_s: one-way delay of the path (real).
        seconds: how long to watch (real).
    """
    payload = MTU - _UDP_HEADERS
    gap_s = 8 * GOODPUT_BYTES / goodput_bps
    first = int(1.3 * buffer_s / gap_s) + 4
    total = first + int(OVERDRIVE * (seconds + buffer_s) / gap_s) + 4
    with contextlib.ExitStack() as stack:
        flow = _Flow(path, stack, total)
        flow.source.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, payload)
        packets = bytearray(payload * _SEGMENTS_MAX)
        view = memoryview(packets)
        begin = time.monotonic()
        filled = None
        while flow.count < total:
            elapsed = time.monotonic() - begin
            due = min(total, first + int(OVERDRIVE * elapsed / gap_s))
            while flow.count < due:
                n = min(due - flow.count, _SEGMENTS_MAX)
                for i in range(n):
                    _HEAD.pack_into(packets, i * payload, flow.count + i)
                flow.send(view[: n * payload], n)
            filled = time.time() if filled is None else filled
            time.sleep(_TICK_S if gap_s < _TICK_S else min(gap_s, 0.01))
        ended = time.time()
        time.sleep(delay_s + buffer_s + 0.05)
        flow.read()
        got = flow.received()
    here = ~np.isnan(got.arrived_s)
    arrived, delays = got.arrived_s[here], (got.arrived_s - got.sent_s)[here]
    order = np.argsort(arrived, kind="stable")
    arrived, delays = arrived[order], delays[order]
    # From when the first packet behind a full queue comes, until the last that found it full.
    steady = (arrived >= filled + delay_s + buffer_s) & (arrived <= ended + delay_s)
    offered = 8 * GOODPUT_BYTES * (total - first) / max(1e-9, ended - filled)
    return Saturation(arrived[steady], delays[steady], GOODPUT_BYTES, offered)


def timer_floor_s(gap_s: float, count: int = 400, spin: bool = False) -> np.ndarray:
    """How late this machine's timers wake a thread that asks for it every `gap_s` [s], the engine apart.

    What no software that waits by timers, shaper included, can undercut by much.

    Args:
        spin: read the clock all the time instead, without a timer: what no software can undercut at all.
    """
    late = np.empty(count)
    with contextlib.suppress(OSError):
        if not spin:  # the kernel would interrupt it for its share of real time
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        due = time.monotonic()
        for i in range(count):
            due += gap_s
            if spin:
                while time.monotonic() < due:
                    pass
            else:
                time.sleep(max(0.0, due - time.monotonic()))
            late[i] = time.monotonic() - due
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return late


def frame_gap_s(wire_bps: float) -> float:
    """Transmission time of a full frame [s] at a wire rate."""
    return FRAME_BYTES * 8 / wire_bps
