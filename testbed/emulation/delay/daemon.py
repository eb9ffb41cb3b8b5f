"""The process that delays packets: `python -m testbed.emulation.delay.daemon CONTROL_FD MEMORY_FD`.

Apart from the engine, so that neither training nor reporting makes a packet late. It ends when it is told to, when
the control socket closes, or when its parent is gone, and takes its rules with it each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import time

from testbed.emulation.delay import netfilter, shared_stats
from testbed.emulation.delay.delay_line import DelayLine, Queue
from testbed.emulation.delay.lanes import Lanes
from testbed.emulation.delay.protocol import Change, Failed, Host, Inbox, Ready, Start, Stop, send

QUEUE_NUMBER = 0  # each namespace has its own numbers
MAX_PACKETS = 1 << 20  # a queue: beyond any rate x delay; what overflows anyway is counted
BUFFER_BYTES = 16 << 20  # of a queue's socket: what may arrive while the daemon sleeps; a limit, not an allocation
_TICK_NS = 50_000_000
_SWEEP = 4  # queues whose overflow counters are read in one tick (some 20 us each)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    memory = shared_stats.view(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, which then stops us in order
    Daemon(control, memory, os.getppid()).run()


def _go_first() -> str:
    """Ahead of other processes, memory held, clock exact, no garbage collection pauses."""
    libc = ctypes.CDLL(None)
    libc.prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: 1 ns instead of 50 us
    libc.mlockall(3)
    gc.disable()
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
        return "SCHED_RR 10"
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        return "nice -20"
    return "normal"


class Daemon:
    def __init__(self, control: socket.socket, memory: memoryview, parent: int):
        self._control = control
        self._memory = memory
        self._parent = parent
        self._inbox = Inbox()
        self._ending = False
        self._lanes: Lanes | None = None
        self._line: DelayLine | None = None
        self._configs: list[socket.socket] = []
        self._counters: list[int] = []  # descriptors of each namespace's /proc/net/netfilter/nfnetlink_queue
        self._overflows: list[int] = []
        self._swept = 0

    def run(self) -> None:
        try:
            start = self._first_message()
            if start is None:
                return
            stamps = self._set_up(start)
            self._loop()
            stamps.close()
        finally:
            for config in self._configs:
                with contextlib.suppress(OSError):
                    netfilter.remove_rule(config)

    def _first_message(self) -> Start | None:
        while True:
            data = self._control.recv(1 << 20)
            if not data:
                return None
            for message in self._inbox.feed(data):
                return message if isinstance(message, Start) else None

    def _set_up(self, start: Start) -> socket.socket:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * len(start.hosts) + 64)), hard))
        self._lanes = Lanes(
            start.delays, {h.name: h.area for h in start.hosts if h.area}, start.shared_delay_s, start.seed)
        macs = {bytes.fromhex(h.mac.replace(":", "")): h.name for h in start.hosts}
        self._line = DelayLine(self._lanes, macs, self._memory)
        # While any socket asks for receive times, the kernel stamps every packet, and NFQUEUE passes the stamp on.
        stamps = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stamps.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        for host in start.hosts:
            try:
                self._open(host)
            except OSError as error:
                send(self._control, Failed(f"{host.name} ({host.netns})", error.errno or 0, str(error)))
                raise SystemExit(1) from error
        self._line.add_handler(self._control.fileno(), self._hear)
        self._control.setblocking(False)
        scheduler = _go_first()
        self._memory[shared_stats.HEARTBEAT] = time.monotonic_ns()
        send(self._control, Ready(scheduler))
        return stamps

    def _open(self, host: Host) -> None:
        with netfilter.inside(host.netns):
            config, sock = netfilter.open_socket(), netfilter.open_socket()
            self._counters.append(os.open("/proc/thread-self/net/netfilter/nfnetlink_queue", os.O_RDONLY))
        netfilter.bind_queue(sock, QUEUE_NUMBER, MAX_PACKETS, BUFFER_BYTES)
        netfilter.add_rule(config, host.interface, QUEUE_NUMBER)
        self._configs.append(config)
        self._overflows.append(0)
        self._line.add_queue(Queue(host.name, sock, QUEUE_NUMBER))

    def _hear(self) -> None:
        try:
            data = self._control.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ending = True
            return
        for message in self._inbox.feed(data):
            if isinstance(message, Change):
                self._lanes.set(message.delays)
            elif isinstance(message, Stop):
                self._ending = True

    def _loop(self) -> None:
        line, tick = self._line, 0
        while not self._ending:
            line.turn(tick)
            if time.monotonic_ns() >= tick:
                tick = time.monotonic_ns() + _TICK_NS
                self._tick()

    def _tick(self) -> None:
        memory, line = self._memory, self._line
        for _ in range(min(_SWEEP, len(self._counters))):
            self._swept = (self._swept + 1) % len(self._counters)
            self._overflows[self._swept] = _overflowed(self._counters[self._swept])
        memory[shared_stats.PACKETS] = line.packets
        memory[shared_stats.RELEASED] = line.released
        memory[shared_stats.LOST] = line.lost
        memory[shared_stats.QUEUED] = line.queued
        memory[shared_stats.OVERFLOWED] = sum(self._overflows)
        memory[shared_stats.CPU] = time.process_time_ns()
        memory[shared_stats.HEARTBEAT] = time.monotonic_ns()
        if os.getppid() != self._parent:
            self._ending = True


def _overflowed(fd: int) -> int:
    """Packets that one namespace's queue dropped, full itself (column 6) or its socket full (column 7)."""
    return sum(
        int(fields[5]) + int(fields[6])
        for fields in map(str.split, os.pread(fd, 4096, 0).decode().splitlines())
        if int(fields[0]) == QUEUE_NUMBER
    )


if __name__ == "__main__":
    main()
