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
import subprocess
import termios
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@dataclass
class Guardian:
    """The command's end of it. said: a pipe on which it reports; lifeline: while that is open, the kernel lives."""

    pid: int
    said: int
    lifeline: int

    def end(self) -> None:
        """End the kernel, and wait until it, its guardian and its files are gone."""
        os.close(self.lifeline)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.said)


def start(argv: Sequence[str], environment: Mapping[str, str], folders: Sequence[Path], passed: Sequence[int],
          log: int, terminal: int | None) -> Guardian:
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
        return Guardian(pid, said, lifeline)
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
        _guard(list(argv), dict(environment), list(folders), list(passed), log, life)
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


def _guard(argv: list[str], environment: dict[str, str], folders: list[Path], passed: list[int], log: int,
           life: int) -> None:
    guardian = os.getpid()
    libc = ctypes.CDLL(None)

    def with_the_guardian() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the kernel aborts when it panics
        if os.getppid() != guardian:
            os._exit(1)

    try:
        # A session of its own: a kernel that panics sends SIGTERM to its whole process group.
        kernel = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  pass_fds=passed, start_new_session=True, preexec_fn=with_the_guardian)
        for fd in passed:
            os.close(fd)
        ended = os.pidfd_open(kernel.pid)
        select.select([life, ended], [], [])
        # Every process of the guest is a process here, in the kernel's group, traced by it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
