"""Control groups of a run, `testbed/<run>/<host>`, on cgroup v1 (one hierarchy a controller) and v2 alike.

A host's group limits its memory, counts its CPU time, and freezes and kills all its processes at once.
See the kernel's Documentation/admin-guide/cgroup-v1/memory.rst, freezer-subsystem.rst, and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import CapabilityError

PARENT = "testbed"
CONTROLLERS = ("memory", "freezer", "cpuacct")
_V2_NAMES = {"memory": "memory", "cpuacct": "cpu"}  # v2 freezes and counts CPU time without a controller


@dataclass(frozen=True)
class Mounts:
    """Where each of CONTROLLERS is: mount points of v1 hierarchies, and the v2 mount point."""

    v1: dict[str, Path] = field(default_factory=dict)
    v2: Path | None = None
    v2_controllers: frozenset[str] = frozenset()

    @property
    def version(self) -> str:
        """'v1', 'v2' or 'none', by who would limit memory."""
        return "v1" if "memory" in self.v1 else "v2" if "memory" in self.v2_controllers else "none"


def find_mounts(mounts: str | None = None) -> Mounts:
    """What this machine has mounted.

    Args:
        mounts: text in the format of /proc/self/mounts; that file by default.
    """
    text = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in text.splitlines():
        _, point, kind, options = line.split()[:4]
        path = Path(point.encode().decode("unicode_escape"))
        if kind == "cgroup":
            for controller in set(options.split(",")) & set(CONTROLLERS):
                v1.setdefault(controller, path)
        elif kind == "cgroup2" and v2 is None:
            v2 = path
    controllers: frozenset[str] = frozenset()
    if v2 is not None:
        with contextlib.suppress(OSError):
            controllers = frozenset((v2 / "cgroup.controllers").read_text().split())
    return Mounts(v1, v2, controllers)


def _write(path: Path, value: object) -> None:
    with open(path, "w") as f:
        f.write(str(value))


def _enter(directory: Path, pid: int = 0) -> None:
    _write(directory / "cgroup.procs", pid)


class HostCgroup:
    """One host's directories, one for each hierarchy in use."""

    def __init__(self, directories: dict[str, Path], v2: Path | None):
        self._v1 = directories
        self._v2 = v2

    @property
    def directories(self) -> list[Path]:
        return [*dict.fromkeys(self._v1.values()), *([self._v2] if self._v2 else [])]

    def enter(self) -> None:
        """The calling process joins; its children will be in it too."""
        for directory in self.directories:
            _enter(directory)

    def pids(self) -> set[int]:
        found: set[int] = set()
        for directory in self.directories:
            with contextlib.suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def limit_memory(self, limit_bytes: int) -> None:
        """At most this much memory; a process that needs more is killed by the kernel."""
        if "memory" in self._v1:
            directory = self._v1["memory"]
            _write(directory / "memory.limit_in_bytes", limit_bytes)
            with contextlib.suppress(OSError):  # only there when swap is accounted
                _write(directory / "memory.memsw.limit_in_bytes", limit_bytes)
        elif self._v2 is not None:
            _write(self._v2 / "memory.max", limit_bytes)
            with contextlib.suppress(OSError):
                _write(self._v2 / "memory.swap.max", 0)

    def memory_bytes(self) -> int | None:
        return self._number("memory.usage_in_bytes", "memory.current")

    def memory_peak_bytes(self) -> int | None:
        """None on v2 before Linux 5.19."""
        return self._number("memory.max_usage_in_bytes", "memory.peak")

    def oom_kills(self) -> int:
        """Processes that the kernel killed for the limit's sake."""
        if "memory" in self._v1:
            text = _read(self._v1["memory"] / "memory.oom_control")
        else:
            text = _read(self._v2 / "memory.events") if self._v2 else ""
        match = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0

    def cpu_s(self) -> float | None:
        """CPU time of all its processes so far, those that ended included."""
        if "cpuacct" in self._v1:
            text = _read(self._v1["cpuacct"] / "cpuacct.usage")
            return int(text) / 1e9 if text else None
        text = _read(self._v2 / "cpu.stat") if self._v2 else ""
        match = re.search(r"^usage_usec (\d+)", text, re.MULTILINE)
        return int(match[1]) / 1e6 if match else None

    @property
    def can_freeze(self) -> bool:
        return "freezer" in self._v1 or bool(self._v2 and (self._v2 / "cgroup.freeze").exists())

    def freeze(self, timeout_s: float = 2.0) -> None:
        """Stop every process where it is; returns when all of them stand still.

        Raises:
            TimeoutError: some don't within `timeout_s` real seconds.
        """
        self._set_frozen(True, timeout_s)

    def thaw(self, timeout_s: float = 2.0) -> None:
        self._set_frozen(False, timeout_s)

    def kill(self, timeout_s: float = 5.0) -> None:
        """End every process, frozen ones too; returns when there are none."""
        deadline = time.monotonic() + timeout_s
        if self._v2 is not None:
            with contextlib.suppress(OSError):  # Linux 5.14
                _write(self._v2 / "cgroup.kill", 1)
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if "freezer" in self._v1:  # a frozen process of v1 dies when it is thawed
                with contextlib.suppress(OSError):
                    _write(self._v1["freezer"] / "freezer.state", "THAWED")
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {sorted(pids)} in {self.directories[0]} don't end")
            time.sleep(0.005)

    def remove(self) -> None:
        """Kill what is in it and delete the directories. No error when they are gone."""
        self.kill()
        for directory in self.directories:
            _rmdir(directory)

    def _set_frozen(self, frozen: bool, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if "freezer" in self._v1:
            state = self._v1["freezer"] / "freezer.state"
            want = "FROZEN" if frozen else "THAWED"
            _write(state, want)

            def done() -> bool:
                return _read(state).strip() == want
        else:
            _write(self._v2 / "cgroup.freeze", int(frozen))

            def done() -> bool:
                return f"frozen {int(frozen)}" in _read(self._v2 / "cgroup.events")

        _wait(done, deadline, "freeze" if frozen else "thaw")

    def _number(self, v1: str, v2: str) -> int | None:
        if "memory" in self._v1:
            text = _read(self._v1["memory"] / v1)
        else:
            text = _read(self._v2 / v2) if self._v2 else ""
        return int(text) if text.strip().isdigit() else None


class RunCgroups:
    """All groups of one run.

    Args:
        run_id: part of the directories' names.
        record, forget: told of each directory before it is made and after it is gone.
    """

    def __init__(
        self, run_id: str, *, mounts: Mounts | None = None,
        record: Callable[[Iterable[str]], None] = lambda paths: None,
        forget: Callable[[str], None] = lambda path: None,
    ):  # fmt: skip
        self.mounts = find_mounts() if mounts is None else mounts
        self._path = Path(PARENT) / run_id
        self._record = record
        self._forget = forget
        self.hosts: dict[str, HostCgroup] = {}

    def make(self, names: Iterable[str], limits: dict[str, int]) -> None:
        """A group for each host, with its memory limit [bytes] where one is given.

        Raises:
            CapabilityError: a limit is asked for and no hierarchy can enforce it, or cgroups can't be
                written.
        """
        names = list(names)
        if self.mounts.version == "none" and any(n in limits for n in names):
            raise CapabilityError(
                "no cgroup with the memory controller is mounted, so memory limits can't be enforced",
                hint="mount cgroup2 (mount -t cgroup2 none /sys/fs/cgroup) or set no memory limit",
            )
        try:
            self._make(names, limits)
        except PermissionError as error:
            raise CapabilityError(
                f"{error.filename} can't be written: cgroups need root", hint="run it with sudo"
            ) from error

    def remove(self) -> None:
        """Everything that `make` made: processes killed, directories deleted. A second call does nothing."""
        roots = {d.parent for h in self.hosts.values() for d in h.directories}
        for host in self.hosts.values():
            host.remove()
            for directory in host.directories:
                self._forget(str(directory))
        self.hosts.clear()
        for root in roots:
            _rmdir(root)
            self._forget(str(root))
            with contextlib.suppress(OSError):  # others' runs are in it
                root.parent.rmdir()

    def _make(self, names: list[str], limits: dict[str, int]) -> None:
        v1 = {c: path / self._path for c, path in self.mounts.v1.items()}
        v2 = self._v2_root() if len(v1) < len(CONTROLLERS) else None
        roots = [*dict.fromkeys(v1.values()), *([v2] if v2 else [])]
        hosts = {}
        for name in names:
            directories = {controller: root / _safe(name) for controller, root in v1.items()}
            hosts[name] = HostCgroup(directories, v2 / _safe(name) if v2 else None)
        self._record([*map(str, roots), *(str(d) for h in hosts.values() for d in h.directories)])
        for root in roots:
            root.mkdir(parents=True, exist_ok=True)
        if v2 is not None:
            self._delegate(v2)
        for name, host in hosts.items():
            self.hosts[name] = host
            for directory in host.directories:
                directory.mkdir(exist_ok=True)
            if name in limits:
                host.limit_memory(limits[name])

    def _v2_root(self) -> Path | None:
        return self.mounts.v2 / self._path if self.mounts.v2 is not None else None

    def _delegate(self, root: Path) -> None:
        """v2: a controller works in a group when every group above has handed it down."""
        wanted = [c for c in _V2_NAMES.values() if c in self.mounts.v2_controllers]
        if not wanted:
            return
        for directory in (self.mounts.v2, root.parent, root):
            with contextlib.suppress(OSError):  # EBUSY where processes live in that very group: see below
                _write(directory / "cgroup.subtree_control", " ".join(f"+{c}" for c in wanted))
        if "memory" in wanted and "memory" not in _read(root / "cgroup.subtree_control").split():
            raise CapabilityError(
                f"{self.mounts.v2}/cgroup.subtree_control doesn't hand the memory controller down",
                hint="in a container, give it a cgroup namespace of its own, with no processes in its root",
            )


def _safe(name: str) -> str:
    return name.replace("/", "_")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _rmdir(directory: Path, timeout_s: float = 2.0) -> None:
    """The kernel says busy for a moment after the last process has ended."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _wait(done: Callable[[], bool], deadline: float, what: str) -> None:
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cgroup doesn't {what} in time")
        time.sleep(0.001)
