"""What a run has made on this machine, listed in a file before each object is made.

The file is what makes clean-up complete after SIGKILL: `cleanup.clean` reads it and removes what it lists,
and nothing else. It lives on /run, which a reboot empties together with all that it describes.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from testbed.emulation.kernel import names
from testbed.errors import CapabilityError
from testbed.processes import start_time

STATE_DIR = Path("/run/testbed")
KINDS = ("netns", "cgroup", "process", "path", "sysctl", "mount")


def process_value(pid: int) -> str:
    """'pid:starttime', the value to record for a process."""
    return f"{pid}:{start_time(pid) or 0}"


class RunState:
    """One run's list. Make it with `create` or, for clean-up, `load`. Safe to use from several threads."""

    def __init__(self, path: Path, content: dict):
        self.path = path
        self._content = content
        self._objects: dict[str, dict[str, None]] = {
            kind: dict.fromkeys(content["objects"].get(kind, ())) for kind in KINDS
        }
        self._lock = threading.Lock()
        self._closed = False

    @property
    def run_id(self) -> str:
        return self._content["run_id"]

    @property
    def run_dir(self) -> Path | None:
        return Path(self._content["run_dir"]) if self._content["run_dir"] else None

    @property
    def command(self) -> str:
        return self._content["command"]

    @property
    def owner(self) -> str:
        """'pid:starttime' of the process that runs it."""
        return self._content["owner"]

    @property
    def created_s(self) -> float:
        """When, in seconds since 1970."""
        return self._content["created_s"]

    @classmethod
    def create(cls, run_dir: Path | None = None, *, command: str = "") -> RunState:
        """Pick a run id that no run uses, and claim it; the calling process is the owner.

        Raises:
            CapabilityError: the state directory can't be written (not root).
        """
        content = {
            "run_id": "",
            "run_dir": str(Path(run_dir).absolute()) if run_dir is not None else "",
            "command": command,
            "owner": process_value(os.getpid()),
            "created_s": time.time(),
            "objects": {},
        }
        try:
            while True:
                content["run_id"] = names.new_run_id()
                state = cls(STATE_DIR / f"{content['run_id']}.json", content)
                STATE_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
                try:
                    state._claim()
                    break
                except (FileExistsError, FileNotFoundError):  # taken, or the directory just went
                    continue
        except PermissionError as error:
            raise CapabilityError(
                f"{STATE_DIR} can't be written ({error.strerror}): an emulated run needs root",
                hint="run it with sudo, with --kernel uml, or in the virtual machine: vagrant up",
            ) from error
        return state

    @classmethod
    def load(cls, path: Path) -> RunState:
        """Read a run's file.

        Raises:
            FileNotFoundError: the run has ended meanwhile.
            ValueError: not a state file (a crash between claiming the id and the first write leaves it
            empty).
        """
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or content.get("run_id") != path.stem or "objects" not in content:
            raise ValueError(f"{path}: not a run's state file")
        return cls(path, content)

    def values(self, kind: str) -> list[str]:
        """What is recorded of that kind, oldest first."""
        with self._lock:
            return list(self._objects[kind])

    def record(self, kind: str, value: str) -> None:
        """Note an object that is about to be made; a process, right after its start. See `record_many`."""
        self.record_many(kind, [value])

    def record_many(self, kind: str, values: Iterable[str]) -> None:
        """Note objects in one write.

        Args:
            kind: netns (name), cgroup (directory), process ('pid:starttime', see `process_value`), path (file
                or directory to delete), sysctl ('key=value to restore') or mount (mount point).
        """
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
        with self._lock:
            if self._closed:
                raise RuntimeError(f"run {self.run_id} has ended: {kind} would never be removed")
            self._objects[kind].update(dict.fromkeys(values))
            self._write()

    def forget(self, kind: str, value: str) -> None:
        """Strike out an object that is gone; no error when it isn't listed."""
        self.forget_many(kind, [value])

    def forget_many(self, kind: str, values: Iterable[str]) -> None:
        """Strike out objects in one write."""
        with self._lock:
            for value in values:
                self._objects[kind].pop(value, None)
            self._write()

    def netns(self, host: str) -> str:
        """Name of a host's network namespace."""
        return names.namespace(self.run_id, host)

    @property
    def net_netns(self) -> str:
        """Name of the namespace that holds the bridges."""
        return names.net_namespace(self.run_id)

    def close(self) -> None:
        """The run has ended and removed everything: delete the file, and the directory after the last one."""
        with self._lock:
            self._closed = True
            self._objects = {kind: {} for kind in KINDS}
            self.path.unlink(missing_ok=True)
            self._temporary.unlink(missing_ok=True)  # of a run that was killed while it wrote
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()

    def _write(self) -> None:
        if self._closed:  # an object struck out after the end must not bring the file back
            return
        self._content["objects"] = {kind: list(values) for kind, values in self._objects.items() if values}
        self._temporary.write_text(json.dumps(self._content))
        os.replace(self._temporary, self.path)

    def _claim(self) -> None:
        """Make the file with its content in one step. Raises FileExistsError: another run has this id."""
        self._temporary.write_text(json.dumps(self._content))
        try:
            os.link(self._temporary, self.path)
        finally:
            self._temporary.unlink()

    @property
    def _temporary(self) -> Path:
        return self.path.with_suffix(".tmp")
