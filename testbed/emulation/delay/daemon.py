"""The process that delays packets: `python -m testbed.emulation.delay.daemon CONTROL_FD MEMORY_FD`.

Apart from the engine, so that neither training nor reporting makes a packet late. It ends when it is told to,
when the control socket closes, or when its parent is gone, and takes its rules with it each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import time

from testbed.emulation.delay import netfilter, shared_stats
from testbed.emulation.delay.compiled_line import CompiledLine, make_line
from testbed.emulation.delay.delay_line import DelayLine
from testbed.emulation.delay.lanes import Lanes
from testbed.emulation.delay.protocol import Change, Failed, Inbox, Ready, Start, Stop, send
from testbed.emulation.delay.stamps import forget_early_stamps
from testbed.emulation.kernel.namespaces import enter_namespace
from testbed.emulation.kernel.processors import delay_processor
from testbed.emulation.kernel.socket_options import stamp_packets

QUEUES = 128  # pairs of hosts are spread over them: the kernel finds a packet by searching its queue
MAX_PACKETS = 1 << 20  # in a queue: beyond any rate x delay; what overflows anyway is counted
BUFFER_BYTES = 64 << 20  # what may arrive while the daemon sleeps; a limit, not an allocation
_TICK_NS = 50_000_000
_OVERFLOW_TICKS = 10  # how often the kernel's counters are read: twice a second


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
        self._lanes: Lanes
        self._line: DelayLine | CompiledLine
        self._ticks = 0

    def run(self) -> None:
        start = self._first_message()
        if start is None:
            return
        with contextlib.ExitStack() as stack:
            try:
                rule = self._set_up(start, stack)
            except OSError as error:
                send(self._control, Failed(error.errno or 0, str(error)))
                return
            self._control.setblocking(False)
            signal.signal(signal.SIGCONT, self._continued)
            self._line.add_handler(self._control.fileno(), self._hear)
            own = delay_processor()
            others = os.sched_getaffinity(0) - {own}
            scheduler = _go_first()
            if own is not None:
                os.sched_setaffinity(0, [own])
                if isinstance(self._line, CompiledLine):
                    self._line.start_stand_in(others)
                    stack.callback(self._line.close)
                    scheduler += ", with a stand-in"
            if self._line.stamped:
                scheduler += ", stamps from behind uplinks"
            self._tick()
            send(self._control, Ready(rule, f"{self._line.loop} loop, {scheduler}"))
            self._loop()

    def _first_message(self) -> Start | None:
        while True:
            data = self._control.recv(1 << 20)
            if not data:
                return None
            for message in self._inbox.feed(data):
                return message if isinstance(message, Start) else None

    def _set_up(self, start: Start, stack: contextlib.ExitStack) -> str:
        """Sockets and rule in the bridges' namespace, which this process stays in."""
        enter_namespace(start.netns)
        sock, rules = (stack.enter_context(netfilter.open_socket()) for _ in range(2))
        # While any socket asks for receive times, the kernel stamps packets, and NFQUEUE passes the stamp on.
        stamps = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        stamp_packets(stamps)
        areas = {h.name: h.area for h in start.hosts if h.area}
        self._lanes = Lanes(start.delays, areas, start.shared_delay_s, start.seed)
        self._line = make_line(
            sock,
            self._lanes,
            macs={bytes.fromhex(h.mac.replace(":", "")): h.name for h in start.hosts},
            ports={socket.if_nametoindex(h.port): h.name for h in start.hosts},
            memory=self._memory,
        )
        self._line.stamped = _stamp_behind_uplinks([h.uplink for h in start.hosts], stack)
        netfilter.set_buffer(sock, BUFFER_BYTES)
        for number in range(QUEUES):
            netfilter.bind_queue(sock, number, MAX_PACKETS)
        stack.callback(_remove_rule, rules)
        return netfilter.add_rule(rules, start.prefix, QUEUES)

    def _continued(self, *_) -> None:
        """Somebody had stopped this process: packets waited meanwhile, however short it was."""
        self._memory[shared_stats.PAUSES] += 1

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
        tick = 0
        while not self._ending:
            self._line.turn(tick)
            if time.monotonic_ns() >= tick:
                tick = time.monotonic_ns() + _TICK_NS
                self._tick()

    def _tick(self) -> None:
        memory, line = self._memory, self._line
        if self._ticks % _OVERFLOW_TICKS == 0:
            memory[shared_stats.OVERFLOWED] = _overflowed()
        self._ticks += 1
        memory[shared_stats.PACKETS] = line.packets
        memory[shared_stats.RELEASED] = line.released
        memory[shared_stats.LOST] = line.lost
        memory[shared_stats.QUEUED] = line.queued
        memory[shared_stats.CPU] = time.process_time_ns()
        memory[shared_stats.HEARTBEAT] = time.monotonic_ns()
        if os.getppid() != self._parent:
            self._ending = True


def _stamp_behind_uplinks(interfaces: list[str], stack: contextlib.ExitStack) -> bool:
    """Whether the kernel can: see stamps.py. A file descriptor for each, as many as the network has allowed for."""
    with contextlib.suppress(OSError):
        for link in forget_early_stamps(map(socket.if_nametoindex, interfaces)):
            stack.callback(os.close, link)
        return True
    return False


def _remove_rule(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        netfilter.remove_rule(sock)


def _overflowed() -> int:
    """Packets that queues dropped, being full themselves (column 6) or their socket (column 7)."""
    with open("/proc/thread-self/net/netfilter/nfnetlink_queue") as lines:
        return sum(int(fields[5]) + int(fields[6]) for fields in map(str.split, lines))


if __name__ == "__main__":
    main()
