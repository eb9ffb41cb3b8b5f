"""The process that owns the second kernel: when the kernel or whoever asked for it ends, however, nothing is left.

It is a fork of the command, in a session of its own, so that neither a terminal's signals nor the command's SIGKILL
reach it. It learns of the command's end from a pipe that closes, and ends the kernel with all of its processes. The
kernel in turn dies with the guardian.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PID = struct.Struct("=i")


@dataclass(frozen=True)
class Guardian:
    """The command's end of it.

    said: a pipe that closes when all is over. lifeline: a pipe; while it is open, the kernel lives.
    """

    pid: int
    kernel: int
    folders: tuple[Path, ...]
    said: int
    lifeline: int

    def end(self) -> None:
        """End the kernel, and wait until it, its guardian and its files are gone."""
        os.close(self.lifeline)
        status = os.waitpid(self.pid, 0)[1]
        if os.WIFSIGNALED(status):  # someone killed the guardian
            _kill_group(self.kernel)
            _remove(self.folders)
        os.close(self.said)


def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folders: Sequence[Path],
    passed: Sequence[int],
    log: int,
    terminal: int | None,
) -> Guardian:
    """Fork a guardian that starts the kernel.

    Args:
        folders: removed when the kernel has ended. passed: descriptors that the kernel inherits, by the same number.
        log: what the kernel says goes there. terminal: a terminal whose settings are restored if the command can't.
    """
    settings = termios.tcgetattr(terminal) if terminal is not None else None
    life, lifeline = os.pipe()
    said, says = os.pipe()
    command = os.getpid()
    pid = os.fork()
    if pid:
        os.close(life)
        os.close(says)
        kernel = os.read(said, _PID.size)
        return Guardian(pid, _PID.unpack(kernel)[0] if kernel else 0, tuple(folders), said, lifeline)
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        kept = None if terminal is None else os.dup(terminal)
        for number in range(3):
            os.dup2(null, number)
        _close_others({life, says, log, *passed, *(() if kept is None else (kept,))})
        os.chdir("/")
        _guard(list(argv), dict(environment), list(folders), list(passed), log, life, says)
        if kept is not None and os.getppid() != command:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(kept, termios.TCSANOW, settings)
    except BaseException:
        os.write(log, traceback.format_exc().encode())
    os._exit(0)


def _close_others(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _guard(
    argv: list[str], environment: dict[str, str], folders: list[Path], passed: list[int], log: int, life: int, says: int
) -> None:
    guardian = os.getpid()
    processor = quietest_processor()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the guest's processes come to us when their tracer dies

    def with_the_guardian() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the kernel aborts when it panics
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # what the guest has open, the kernel has
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        # Every page fault and system call of the guest is a few switches between the kernel's process and the guest's.
        # On one processor they cost a quarter of what they cost across two.
        os.sched_setaffinity(0, {processor})
        # Root's comes first, as its delay lines do on this kernel: packets wait in there.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
            Path("/proc/self/autogroup").write_text("-20")  # where sessions compete, a process's own has no say
        if os.getppid() != guardian:
            os._exit(1)

    try:
        # A session of its own: a kernel that panics sends SIGTERM to its whole process group.
        kernel = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=passed,
            start_new_session=True,
            preexec_fn=with_the_guardian,
        )
        for fd in passed:
            os.close(fd)
        os.write(says, _PID.pack(kernel.pid))
        select.select([life, os.pidfd_open(kernel.pid)], [], [])
        # Every process of the guest is a process here, in the kernel's group, traced by it.
        _kill_group(kernel.pid)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
    finally:
        _remove(folders)


def _kill_group(group: int) -> None:
    if group > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def quietest_processor(over_s: float = 0.03) -> int:
    """The processor, of those that this process may use, that is idle most."""

    def idle_ticks() -> dict[int, int]:
        found = {}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name.startswith("cpu") and name != "cpu":
                found[int(name[3:])] = int(ticks[3]) + int(ticks[4])  # idle, waiting for a disk
        return found

    before = idle_ticks()
    time.sleep(over_s)
    after = idle_ticks()
    return max(sorted(os.sched_getaffinity(0)), key=lambda n: after.get(n, 0) - before.get(n, 0))
