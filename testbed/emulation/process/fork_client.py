"""The engine's end of the fork server: start it, ask it for workers, end it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from testbed.emulation.process import control
from testbed.emulation.process.forkserver import ForkRequest
from testbed.emulation.state import RunState, process_value
from testbed.runtime import Plan

_END_S = 2.0  # real
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class ForkClient:
    """A running fork server. What it tells comes in over `socket`, as `control` messages.

    Args:
        state: where the process is recorded.
        log: file for its output.
        runner, plan: what all workers will run.
    """

    def __init__(self, state: RunState, log: Path, runner: str, plan: Plan):
        self._state = state
        self.log = log
        self.socket, theirs = socket.socketpair()
        env = {
            **os.environ, **dict.fromkeys(_THREAD_LIMITS, "1"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        with theirs, open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "testbed.emulation.process.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env,
                start_new_session=True,
            )  # fmt: skip
        self._recorded = process_value(self._process.pid)
        state.record("process", self._recorded)
        control.send(self.socket, {"kind": "hello", "runner": runner, "plan": msgspec.msgpack.encode(plan)})

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, request: ForkRequest, control_socket: socket.socket, log: Path) -> None:
        """Ask for a worker with that end of its control socket; 'forked' tells its pid. Raises OSError."""
        data = control.frame(msgspec.to_builtins(request))
        with open(log, "ab") as output:
            sent = socket.send_fds(self.socket, [data], [control_socket.fileno(), output.fileno()])
        self.socket.sendall(data[sent:])

    def end(self) -> None:
        """End it, and with it every worker that is left. Close `socket` afterwards."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._state.forget("process", self._recorded)
