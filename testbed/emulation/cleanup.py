"""Remove what runs have made, as their state files list it: nothing more, and nothing less.

Works the same for a run's own end and, from another process, after a crash. Every step may be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.emulation import state
from testbed.emulation.kernel import names, namespaces
from testbed.emulation.process.cgroups import PARENT as GROUPS
from testbed.emulation.state import RunState
from testbed.errors import InputError, unknown
from testbed.processes import PARENT, START_TIME, STATE, stat_fields

KILL_TIMEOUT_S = 5.0


@dataclass
class CleanReport:
    """What was removed. `problems` says what could not be; then the state file stays, for another try."""

    runs: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # runs whose owner is alive
    processes: int = 0
    namespaces: int = 0
    cgroups: int = 0
    paths: int = 0
    sysctls: int = 0
    mounts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def is_running(process: str) -> bool:
    """Is 'pid:starttime' still that process, and not a zombie?"""
    pid, _, started = process.partition(":")
    fields = stat_fields(pid)
    return fields is not None and fields[STATE] not in "ZX" and fields[START_TIME] == started


def runs() -> list[RunState]:
    """All runs that have a state file, the oldest first."""
    found = []
    for path in state.STATE_DIR.glob("*.json") if state.STATE_DIR.is_dir() else ():
        if names.is_run_id(path.stem):
            try:
                found.append(RunState.load(path))
            except (FileNotFoundError, ValueError):  # ended meanwhile; or not ours
                continue
    return sorted(found, key=lambda run: run.created_s)


def clean(run_id: str | None = None, *, force: bool = False) -> CleanReport:
    """Remove what dead runs left behind.

    Args:
        run_id: only this run; None: every run whose owner is dead.
        force: remove runs whose owner still lives, too, the owner with them.

    Raises:
        InputError: no run of that id.
    """
    report = CleanReport()
    every = runs()
    if run_id is not None:
        chosen = [run for run in every if run.run_id == run_id]
        if not chosen:
            ids = [run.run_id for run in every]
            raise (
                unknown("run id", "run", run_id, ids)
                if ids
                else InputError("run id", f"no run {run_id!r}; there is none to clean")
            )
        every = chosen
    for run in every:
        if is_running(run.owner):
            if not force:
                report.skipped.append(run.run_id)
                continue
            _end_processes(report, {int(run.owner.partition(":")[0])}, (), ())
        _remove(run, report)
    _remove_unfinished()
    return report


def _remove_unfinished() -> None:
    """State files that were being written when their run was killed."""
    for path in list(state.STATE_DIR.glob("*.tmp")) if state.STATE_DIR.is_dir() else ():
        try:
            dead = not is_running(json.loads(path.read_text())["owner"])
        except FileNotFoundError:
            continue
        except (ValueError, KeyError):
            dead = time.time() - path.stat().st_mtime > 10
        if dead and names.is_run_id(path.stem):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                state.STATE_DIR.rmdir()


def teardown(run: RunState) -> CleanReport:
    """Remove everything of a run, at its own end; the calling process and its parents are spared."""
    report = CleanReport()
    _remove(run, report)
    return report


@contextlib.contextmanager
def sysctl_lock() -> Iterator[None]:
    """Held while a sysctl of the whole machine changes, so that runs don't undo each other's."""
    directory = os.open(state.STATE_DIR, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _remove(run: RunState, report: CleanReport) -> None:
    before = len(report.problems)
    report.runs.append(run.run_id)
    recorded = {int(value.partition(":")[0]) for value in run.values("process") if is_running(value)}
    _end_processes(report, recorded, run.values("netns"), run.values("cgroup"))
    for mount in reversed(run.values("mount")):
        if os.path.ismount(mount):
            namespaces.unmount(mount)
            report.mounts += 1
    _delete_namespaces(report, run.values("netns"))
    for cgroup in run.values("cgroup"):
        _remove_cgroup(Path(cgroup), report)
    for path in run.values("path"):
        _remove_path(Path(path), report)
    if run.values("sysctl"):
        with sysctl_lock():
            for setting in run.values("sysctl"):
                _restore(setting, report)
    if len(report.problems) == before:
        run.close()


def _ourselves() -> set[int]:
    """This process and those that it descends from."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = stat_fields(pid)
        if fields is None:
            break
        pid = int(fields[PARENT])
    return found


def _members(cgroup: Path) -> set[int]:
    """Pids in a cgroup and in those below it."""
    found = set()
    for directory, _, _ in os.walk(cgroup):
        with contextlib.suppress(OSError):
            found.update(int(line) for line in Path(directory, "cgroup.procs").read_text().split())
    return found


def _thaw(cgroup: Path) -> None:
    """Frozen processes of a cgroup v1 don't die before they are thawed."""
    for directory, _, _ in os.walk(cgroup):
        with contextlib.suppress(OSError):
            freezer = Path(directory, "freezer.state")
            if freezer.exists():
                freezer.write_text("THAWED")
        with contextlib.suppress(OSError):
            freezer = Path(directory, "cgroup.freeze")
            if freezer.exists():
                freezer.write_text("0")


def _alive(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[STATE] not in "ZX"


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_processes(report: CleanReport, recorded: set[int], netns: Sequence[str], cgroups: Sequence[str]) -> None:
    """SIGKILL to recorded processes and their groups, and to all in cgroups and namespaces, until all end."""
    spared = _ourselves()
    recorded = recorded - spared
    killed: set[int] = set()
    for pid in recorded:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == pid:  # leads its group, so the group is ours
                os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    pause_s = 0.001
    while True:
        found = {pid for pid in recorded if _alive(pid)} | namespaces.processes_in(netns)
        for cgroup in cgroups:
            _thaw(Path(cgroup))
            found |= {pid for pid in _members(Path(cgroup)) if _alive(pid)}
        found -= spared
        killed |= found
        if not found:
            break
        if time.monotonic() > deadline:
            report.problems.append(f"processes that don't end: {', '.join(map(str, sorted(found)))}")
            break
        _kill(found)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    report.processes += len(killed | recorded)


def _delete_namespaces(report: CleanReport, netns: Sequence[str]) -> None:
    for name in netns:
        try:
            report.namespaces += namespaces.delete(name)
        except OSError as error:
            report.problems.append(f"namespace {name}: {error}")


def remove_namespaces(run: RunState, netns: Sequence[str]) -> CleanReport:
    """End every process in these namespaces of a run, delete them, and strike them out of its state."""
    report = CleanReport(runs=[run.run_id])
    _end_processes(report, set(), netns, ())
    _delete_namespaces(report, netns)
    if report.ok:
        run.forget_many("netns", netns)
    return report


def _remove_cgroup(cgroup: Path, report: CleanReport) -> None:
    """Remove a cgroup with those below it; the kernel needs a moment after the last process ended."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while cgroup.is_dir():
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
                report.cgroups += 1
        if cgroup.is_dir():
            if time.monotonic() > deadline:
                users = sorted(_members(cgroup)) or "the kernel"
                report.problems.append(f"cgroup {cgroup}: still in use by {users}")
                return
            time.sleep(0.01)
    if cgroup.parent.name == GROUPS:
        with contextlib.suppress(OSError):  # others' runs are in it
            cgroup.parent.rmdir()


def _remove_path(path: Path, report: CleanReport) -> None:
    if not path.is_absolute() or len(path.parts) < 3:  # a damaged file must not lose anyone's data
        report.problems.append(f"path {path}: too near the root to be ours")
        return
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
        else:
            return
        report.paths += 1
    except OSError as error:
        report.problems.append(f"path {path}: {error}")


def _restore(setting: str, report: CleanReport) -> None:
    key, _, value = setting.partition("=")
    path = Path("/proc/sys") / key.replace(".", "/")
    try:
        if path.read_text().strip() != value.strip():
            path.write_text(value)
            report.sysctls += 1
    except OSError as error:
        report.problems.append(f"sysctl {key}: {error}")
