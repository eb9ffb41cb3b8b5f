"""The engine's hold on its worker processes: start, begin, kill, suspend, bring back, wait, clean up."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from testbed import units
from testbed.cluster import Device
from testbed.cluster.model import SERVER
from testbed.emulation.process import control
from testbed.emulation.process.cgroups import HostCgroup, RunCgroups
from testbed.emulation.process.fork_client import ForkClient
from testbed.emulation.process.forkserver import ForkRequest
from testbed.emulation.process.worker import WorkerSpec
from testbed.emulation.state import RunState, process_value
from testbed.errors import TestbedError
from testbed.runtime import Plan
from testbed.runtime.failure_detector import DetectorSettings

_STOP_S = 2.0  # real; for workers to end by themselves


class Address(Protocol):
    """Where a node lives; `testbed.emulation.network.emulated.HostPort` is one."""

    ip: str
    netns_path: str | None


@dataclass(frozen=True)
class HostAddress:
    """An Address by itself; netns_path None: the engine's own network namespace."""

    name: str
    ip: str
    netns_path: str | None = None


@dataclass(frozen=True)
class Outcome:
    """How the run ended. `node` and `traceback`: whose failure it was, and its text where there is one."""

    ok: bool
    reason: str
    node: str | None = None
    traceback: str | None = None


@dataclass
class _Worker:
    """One worker process as the engine knows it. `state` is one of docs/events.md, or 'forking'."""

    name: str
    socket: socket.socket
    unframer: control.Unframer = field(default_factory=control.Unframer)
    pid: int | None = None
    process: str = ""
    state: str = "forking"
    killed: bool = False
    suspended: bool = False
    began: bool = False
    exited: bool = False


class WorkerPool:
    """A run's workers. A context manager: leaving it ends them all.

    Args:
        state: where processes and cgroups are recorded.
        run_dir: the run folder; output goes to logs/<name>.log in it.
        runner: entry point name of the runner, or 'module:Class'.
        plan: what it planned.
        addresses: of every node, 'server' included.
        tdf: time dilation factor.
        on_event: takes each event (a dict); called from one thread of this pool.
        memory_limits: bytes, by node; the kernel kills a worker that needs more. Memory that workers share
            with their parent (the libraries) doesn't count; the interpreter's own, about 15 MB, does.
        devices: every node's device, where the plan's cluster has only some.
        user: whom workers run as; None: whoever starts them.
        detector: constants of the failure detector.
        threads: torch threads of a worker.
        ready_timeout_s: real seconds in which a launched worker has to have joined.
    """

    def __init__(
        self, *, state: RunState, run_dir: Path, runner: str, plan: Plan, addresses: Mapping[str, Address],
        tdf: float = 1.0, on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        memory_limits: Mapping[str, int] | None = None, devices: Mapping[str, Device] | None = None,
        user: str | None = "nobody", detector: DetectorSettings | None = None, threads: int = 1,
        ready_timeout_s: float = 60.0,
    ):  # fmt: skip
        self._state = state
        self._logs = Path(run_dir) / "logs"
        self._runner = runner
        self._plan = plan
        self._addresses = dict(addresses)
        self._tdf = tdf
        self._hand_out = on_event
        self._limits = dict(memory_limits or {})
        cluster = plan.cluster
        self._devices = dict(devices) if devices else {d.name: d for d in (cluster.server, *cluster.devices)}
        self._user = user
        self._detector = detector or DetectorSettings()
        self._threads = threads
        self._ready_timeout_s = ready_timeout_s
        self._cgroups = RunCgroups(
            state.run_id, record=lambda paths: state.record_many("cgroup", paths),
            forget=lambda path: state.forget("cgroup", path),
        )  # fmt: skip
        self._workers: dict[str, _Worker] = {}
        self._forkserver: ForkClient | None = None
        self._up = False
        self._t0: float | None = None
        self._view = 0
        self._outcome: Outcome | None = None
        self._stopping = False
        self._closed = False
        self._changed = threading.Condition(threading.RLock())
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Life of the pool

    def start(self) -> None:
        """Start the fork server; it imports torch and the runner while others go on."""
        self._logs.mkdir(parents=True, exist_ok=True)
        self._forkserver = ForkClient(self._state, self._logs / "forkserver.log", self._runner, self._plan)
        self._selector.register(self._forkserver.socket, selectors.EVENT_READ, control.Unframer())
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="worker-pool", daemon=True)
        self._thread.start()

    def launch(self, names: Iterable[str]) -> None:
        """Fork these workers and wait until all have joined; the server has to be one of the first launched.

        Raises:
            TestbedError: one of them failed or didn't join in time; the message names it.
        """
        names = list(names)
        for name in names:
            self._check_name(name)
        self._wait_up()
        self._cgroups.make([n for n in names if n not in self._cgroups.hosts], self._limits)
        initial = [n for n in names if n != SERVER]
        for name in sorted(names, key=lambda n: n != SERVER):
            self._fork(name, initial)
        deadline = time.monotonic() + self._ready_timeout_s * max(1.0, self._tdf)
        with self._changed:
            while True:
                if self._outcome is not None and not self._outcome.ok:
                    raise TestbedError(self._outcome.reason, hint=self._outcome.traceback)
                late = [n for n in names if self._workers[n].state in ("forking", "started")]
                if not late:
                    return
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TestbedError(
                        f"worker(s) {', '.join(sorted(late))} didn't join within {self._ready_timeout_s:g} s",
                        hint=f"their output is in {self._logs}",
                    )

    def begin(self, t0_monotonic: float) -> None:
        """Emulated time 0 is at that moment of CLOCK_MONOTONIC; runners start then."""
        with self._changed:
            self._t0 = t0_monotonic
            for worker in self._workers.values():
                self._begin(worker)

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """Until the coordinator returns, or something ends the run; None after `timeout` real seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None, timeout)
            return self._outcome

    def close(self) -> None:
        """Stop the workers (in order, if they heed it), and remove processes and cgroups. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with self._changed:
            self._stopping = True
            for worker in self._alive():
                if worker.suspended:
                    self._kill(worker)
                else:
                    self._tell(worker, {"kind": "stop"})
            self._changed.wait_for(lambda: not self._alive(), _STOP_S)
            for worker in self._alive():
                self._kill(worker)
            self._changed.wait_for(lambda: not self._alive(), _STOP_S)
        if self._forkserver is not None:
            self._forkserver.end()
            with contextlib.suppress(OSError):
                self._wake_out.send(b"!")
            self._thread.join()
            self._forkserver.socket.close()
        self._cgroups.remove()
        for worker in self._workers.values():
            if worker.process:
                self._state.forget("process", worker.process)
            worker.socket.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    # Devices come and go

    def kill(self, name: str) -> None:
        """End the device's process at once, with all its children. No error when it is gone already."""
        with self._changed:
            worker = self._worker(name)
            if worker is not None and not worker.exited:
                worker.killed = True
                self._kill(worker)
                self._changed.wait_for(lambda: worker.exited, _STOP_S)

    def suspend(self, name: str) -> None:
        """Freeze the device's processes where they are."""
        with self._changed:
            worker = self._worker(name)
            if worker is None or worker.exited or worker.suspended:
                return
            worker.suspended = True
            cgroup = self._cgroups.hosts.get(name)
            if cgroup is not None and cgroup.can_freeze:
                cgroup.freeze()
            else:
                self._signal(worker, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        with self._changed:
            worker = self._worker(name)
            if worker is None or worker.exited or not worker.suspended:
                return
            worker.suspended = False
            cgroup = self._cgroups.hosts.get(name)
            if cgroup is not None and cgroup.can_freeze:
                cgroup.thaw()
            else:
                self._signal(worker, signal.SIGCONT)

    def relaunch(self, name: str) -> None:
        """Start the device's worker, anew or for the first time. Returns before it has joined."""
        self._check_name(name)
        with self._changed:
            worker = self._worker(name)
            if worker is not None and not worker.exited:
                raise RuntimeError(f"{name} is running")
            if name not in self._cgroups.hosts:
                self._cgroups.make([name], self._limits)
            self._fork(name, [])

    def state(self, name: str) -> str | None:
        """One of docs/events.md ('started', 'ready', 'ended', …), 'suspended', or None: never launched."""
        with self._changed:
            worker = self._worker(name)
            if worker is None:
                return None
            return "suspended" if worker.suspended and not worker.exited else worker.state

    def usage(self) -> dict[str, dict[str, float | None]]:
        """By node, as its cgroup counts: cpu_s so far, memory_bytes now, memory_peak_bytes."""
        with self._changed:
            return {
                name: {
                    "cpu_s": group.cpu_s(), "memory_bytes": group.memory_bytes(),
                    "memory_peak_bytes": group.memory_peak_bytes(),
                }
                for name, group in self._cgroups.hosts.items()
            }  # fmt: skip

    def pids(self) -> dict[str, int]:
        """Of the workers that run."""
        with self._changed:
            return {w.name: w.pid for w in self._alive()}

    # Inside

    def _check_name(self, name: str) -> None:
        if name not in self._addresses or name not in self._devices:
            raise KeyError(f"{name!r} has no address or is no device of this run")

    def _worker(self, name: str) -> _Worker | None:
        self._check_name(name)
        return self._workers.get(name)

    def _alive(self) -> list[_Worker]:
        return [w for w in self._workers.values() if w.pid is not None and not w.exited]

    def _wait_up(self) -> None:
        with self._changed:
            settled = lambda: self._up or self._outcome is not None  # noqa: E731
            done = self._changed.wait_for(settled, self._ready_timeout_s)
            if self._outcome is not None:
                raise TestbedError(self._outcome.reason, hint=f"see {self._forkserver.log}")
            if not done:
                raise TestbedError("the fork server didn't come up", hint=f"see {self._forkserver.log}")

    def _fork(self, name: str, initial: list[str]) -> None:
        ours, theirs = socket.socketpair()
        cgroup = self._cgroups.hosts.get(name)
        address = self._addresses[name]
        request = ForkRequest(
            name=name, netns_path=address.netns_path, user=self._user,
            cgroup_procs=[str(d / "cgroup.procs") for d in cgroup.directories] if cgroup else [],
            worker=msgspec.to_builtins(WorkerSpec(
                name=name, device=self._devices[name], names=[n for n in self._devices if n != SERVER],
                ips={n: a.ip for n, a in self._addresses.items()}, tdf=self._tdf, initial=initial,
                detector=self._detector, threads=self._threads,
            )),
        )  # fmt: skip
        with theirs, self._changed:
            worker = _Worker(name, ours)
            old = self._workers.get(name)
            if old is not None:
                self._drop(old)
            self._workers[name] = worker
            self._forkserver.fork(request, theirs, self._logs / f"{name}.log")

    def _begin(self, worker: _Worker) -> None:
        if self._t0 is not None and not worker.began and worker.state == "ready":
            worker.began = True
            self._tell(worker, {"kind": "begin", "t0": self._t0, "view": self._view})

    def _tell(self, worker: _Worker, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            control.send(worker.socket, message)

    def _signal(self, worker: _Worker, signum: int) -> None:
        """To the process group, which a worker leads. It isn't reaped yet, so the pid is its own."""
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signum)

    def _kill(self, worker: _Worker) -> None:
        self._changed.wait_for(lambda: worker.pid is not None or worker.exited, _STOP_S)
        self._signal(worker, signal.SIGKILL)
        cgroup = self._cgroups.hosts.get(worker.name)
        if cgroup is not None:
            cgroup.kill()

    def _on_event(self, event: dict[str, Any]) -> None:
        """Whoever takes the events may fail (a full disk, say); that ends the run, and not this thread."""
        try:
            self._hand_out(event)
        except Exception as error:
            with self._changed:
                self._end(Outcome(False, f"an event could not be recorded: {error}"))

    def _event(self, node: str, **fields: Any) -> None:
        t = 0.0 if self._t0 is None else max(0.0, (time.monotonic() - self._t0) / self._tdf)
        self._on_event({"t": t, "node": node, **fields})

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None and not self._stopping:
            self._outcome = outcome
        self._changed.notify_all()

    def _drop(self, worker: _Worker) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.socket)
        worker.socket.close()

    # The listening thread

    def _listen(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._wake_in:
                        return
                    self._hear(key.fileobj, key.data)
        except Exception as error:  # without this thread nobody would ever hear of the end
            traceback.print_exc()
            with self._changed:
                self._end(Outcome(False, f"{type(error).__name__} in the worker pool: {error}"))

    def _hear(self, sock: socket.socket, data: control.Unframer | _Worker) -> None:
        if isinstance(data, _Worker):
            if not self._read(sock, data.unframer, functools.partial(self._from_worker, data)):
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(sock)
        elif not self._read(sock, data, self._from_forkserver):
            self._selector.unregister(sock)
            with self._changed:
                for worker in self._workers.values():  # the kernel ended them with their parent
                    worker.exited = True
                self._end(Outcome(False, f"the fork server ended; see {self._forkserver.log}"))

    def _read(self, sock: socket.socket, unframer: control.Unframer, handle: Callable[[dict], None]) -> bool:
        try:
            data = sock.recv(1 << 18)
        except OSError:
            data = b""
        for message in unframer.feed(data):
            handle(message)
        return bool(data)

    def _from_forkserver(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        with self._changed:
            if kind == "up":
                self._up = True
            elif kind == "failed":
                self._end(Outcome(False, f"the fork server could not start: {message['error']}"))
            elif kind == "forked":
                self._forked(message)
            elif kind == "ended":
                self._ended(message)
            self._changed.notify_all()

    def _forked(self, message: dict[str, Any]) -> None:
        worker = self._workers[message["name"]]
        worker.pid = message["pid"]
        worker.process = process_value(worker.pid)
        self._state.record("process", worker.process)
        worker.state = "started"
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        self._event(worker.name, event="worker", state="started", pid=worker.pid)

    def _ended(self, message: dict[str, Any]) -> None:
        worker = self._workers.get(message["name"])
        if worker is None or worker.pid != message["pid"]:
            return
        self._drain(worker)
        code = message["exit"]
        before = worker.state
        worker.exited = True
        if worker.killed:
            worker.state = "killed"
        elif before == "failed":
            pass
        else:
            worker.state = "ended" if code == 0 and self._stopping else "failed"
        self._state.forget("process", worker.process)
        worker.process = ""
        self._drop(worker)
        self._event(worker.name, event="worker", state=worker.state, pid=worker.pid, exit=code)
        if worker.state == "failed" and before != "failed":
            self._end(Outcome(False, self._death(worker, code), worker.name, self._log_tail(worker.name)))

    def _drain(self, worker: _Worker) -> None:
        """What it wrote before its end."""
        with contextlib.suppress(OSError):
            worker.socket.setblocking(False)
            while self._read(worker.socket, worker.unframer, lambda m: self._from_worker(worker, m)):
                continue

    def _from_worker(self, worker: _Worker, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "events":
            for event in message["events"]:
                self._on_event(event)
            return
        with self._changed:
            if kind == "ready":
                if worker.state == "started":
                    worker.state = "ready"
                if worker.name == SERVER:
                    self._view = message["view"]
                self._event(worker.name, event="worker", state="ready", pid=worker.pid)
                self._begin(worker)
            elif kind == "done":
                self._end(Outcome(True, "the coordinator returned", worker.name))
            elif kind == "failed":
                worker.state = "failed"
                self._event(worker.name, event="worker", state="failed", pid=worker.pid)
                reason = f"{worker.name}: {message['error']}"
                self._end(Outcome(False, reason, worker.name, message["traceback"]))
            self._changed.notify_all()

    def _death(self, worker: _Worker, code: int) -> str:
        group: HostCgroup | None = self._cgroups.hosts.get(worker.name)
        limit = self._limits.get(worker.name)
        if code == -signal.SIGKILL and group is not None and limit is not None and group.oom_kills():
            return (
                f"{worker.name} needed more than its {units.size(limit)} of memory and was killed by the "
                "kernel (the limit is its device's memory)"
            )
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the worker of {worker.name} ended {how}"

    def _log_tail(self, name: str, lines: int = 20) -> str | None:
        try:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return None
        return "\n".join(text.splitlines()[-lines:]) or None
