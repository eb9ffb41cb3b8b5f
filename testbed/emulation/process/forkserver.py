"""The parent of all workers: imports torch and the runner once, then forks a worker in milliseconds.

A forked worker shares the parent's memory until it writes to it, so all that workers would import later is
imported here.

Runs as `python -m testbed.emulation.process.forkserver FD`; talks with the engine over the Unix socket FD. When that
socket closes, it kills every worker and ends: nobody is orphaned, however the engine died.
"""

from __future__ import annotations

import array
import ctypes
import gc
import os
import pwd
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from testbed.cluster.model import SERVER
from testbed.emulation.kernel.namespaces import enter_namespace
from testbed.emulation.process import control, privileges
from testbed.runtime import Plan
from testbed.runtime.registry import load_runner

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
NICENESS = 19  # of devices' workers; see `_step_back`
_libc = ctypes.CDLL(None, use_errno=True)


class ForkRequest(msgspec.Struct):
    """One worker. Two descriptors come with it: its control socket and its log file.

    cgroup_procs: files to write the process into. user: None to stay who we are.
    """

    name: str
    netns_path: str | None
    cgroup_procs: list[str]
    user: str | None
    worker: dict[str, Any]  # a WorkerSpec


def preload() -> None:
    """Have torch and the worker's code import all that they import late; see that no thread came with it."""
    import torch

    import testbed.emulation.process.worker  # noqa: F401
    from testbed.emulation.process.warm_up import warm_up

    torch.set_num_threads(1)
    warm_up(backward=False)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"{threads} threads after the imports: forked children would inherit their locks")


class _ForkServer:
    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._workers: dict[int, str] = {}

    def serve(self) -> None:
        hello = self._receive()[0]
        try:
            self._runner = load_runner(hello["runner"])
            self._plan = msgspec.msgpack.decode(hello["plan"], type=Plan)
            preload()
        except BaseException as error:
            traceback.print_exc()
            control.send(self._sock, {"kind": "failed", "error": f"{type(error).__name__}: {error}"})
            return
        gc.collect()
        gc.freeze()
        control.send(self._sock, {"kind": "up", "pid": os.getpid()})
        wake_in, wake_out = socket.socketpair()
        for s in (wake_in, wake_out):
            s.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_out.fileno())
        while True:
            readable, _, _ = select.select([self._sock, wake_in], [], [])
            if wake_in in readable:
                wake_in.recv(4096)
                self._reap()
            if self._sock in readable:
                message, fds = self._receive()
                if message is None:
                    return
                self._fork(msgspec.convert(message, ForkRequest), fds)

    def end(self) -> None:
        for pid in self._workers:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """One message with its descriptors; None when the engine has closed the socket."""
        fds = array.array("i")
        head, ancillary, _, _ = self._sock.recvmsg(4, socket.CMSG_SPACE(8 * fds.itemsize))
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not head:
            return None, []
        head += self._exactly(4 - len(head))
        body = self._exactly(int.from_bytes(head, "big"))
        return msgspec.msgpack.decode(body), list(fds)

    def _exactly(self, n: int) -> bytes:
        data = bytearray()
        while len(data) < n:
            piece = self._sock.recv(n - len(data))
            if not piece:
                raise SystemExit(1)
            data += piece
        return bytes(data)

    def _reap(self) -> None:
        while self._workers:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._workers.pop(pid, None)
            if name is not None:
                code = os.waitstatus_to_exitcode(status)
                control.send(self._sock, {"kind": "ended", "name": name, "pid": pid, "exit": code})

    def _fork(self, request: ForkRequest, fds: list[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._sock.close()
                code = self._child(request, fds, parent)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        for fd in fds:
            os.close(fd)
        self._workers[pid] = request.name
        control.send(self._sock, {"kind": "forked", "name": request.name, "pid": pid})

    def _child(self, request: ForkRequest, fds: list[int], parent: int) -> int:
        control_fd, log_fd = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        os.setsid()
        if request.name != SERVER:
            _step_back()
        sock = socket.socket(fileno=control_fd)
        _become_worker(request, parent)
        import asyncio

        from testbed.emulation.process.worker import Worker, WorkerSpec

        spec = msgspec.convert(request.worker, WorkerSpec)
        import torch

        torch.set_num_threads(spec.threads)
        asyncio.run(Worker(spec, self._plan, self._runner, sock).run())
        return 0


def _step_back() -> None:
    """Engine, monitors and server go first when the machine is short of time: a change of a link must not wait for
    hundreds of workers. With automatic groups (one a session) the group's niceness counts, else the process's.
    """
    try:
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def _become_worker(request: ForkRequest, parent: int) -> None:
    """Enter cgroup and network namespace, then give up all privileges but reading, for good."""
    for path in request.cgroup_procs:
        with open(path, "w") as f:
            f.write("0")
    if request.netns_path is not None:
        enter_namespace(request.netns_path)
    os.chdir("/")
    os.environ["HOME"] = "/"
    if request.user is not None:
        account = pwd.getpwnam(request.user)
        keeps_reading = privileges.keep_reading()
        os.setgroups([])
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        if keeps_reading:
            privileges.read_everything()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    server = _ForkServer(sock)
    try:
        server.serve()
    finally:
        server.end()


if __name__ == "__main__":
    main()
