"""A run's folder: made before anything starts, filled during the run, completed from its events at the end.

What each file holds is in docs/events.md. Everything but the events can be derived again from them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.errors import InputError, looking, nearest
from testbed.measurement.events import JSONL, PARQUET, read_events
from testbed.measurement.fidelity import Verdict, judge, setting
from testbed.measurement.rates import links_table
from testbed.measurement.recorder import EventRecorder, write_error
from testbed.measurement.steps import counted_steps
from testbed.measurement.timeline import trace_json
from testbed.outputs import check_folder
from testbed.processes import start_time

MANIFEST, EXPERIMENT, PLAN, FIDELITY = "manifest.json", "experiment.yaml", "plan.json", "fidelity.json"
STEPS, LINKS, TIMELINE, REPORT, LOGS = "steps.csv", "links.parquet", "timeline.json", "report.html", "logs"
STATUSES = ("running", "complete", "interrupted", "failed")
# Of the manifest's entries, those that a damaged or foreign manifest is told by
_MANIFEST_TYPES = {
    "name": str,
    "status": str,
    "started": str,
    "experiment_file": str,
    "process": dict,
    "experiment": dict,
}


def json_text(data: Any) -> str:
    """Readable JSON of dataclasses, paths, NumPy values and the like; NaN and infinities become null."""
    return json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if callable(getattr(value, "tolist", None)):  # NumPy, torch
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file's content in one go: readers see the old or the new, never half. Raises TestbedError."""
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.exists() and not path.is_file():  # a device or a pipe is not replaced
            path.write_bytes(data)
            return
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as error:
        try:
            partial.unlink(missing_ok=True)
        except OSError:
            pass
        raise write_error(path, error) from None


class RunFolder:
    """One run's folder. Use `create` for a new run and `open` for one that exists."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        self.path = path
        self.manifest = manifest
        self._recorder: EventRecorder | None = None

    @classmethod
    def create(cls, base: str | Path, name: str) -> RunFolder:
        """Make BASE/NAME-YYYYMMDD-HHMMSS (local time), with -2, -3, … appended when that exists already.

        Raises:
            InputError: the folder can't be made; says why.
        """
        base = Path(base)
        now = datetime.now().astimezone()
        stem = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.')[:80] or 'run'}-{now:%Y%m%d-%H%M%S}"
        try:
            base.mkdir(parents=True, exist_ok=True)
            for n in range(1, 10_000):
                path = base / (stem if n == 1 else f"{stem}-{n}")
                try:
                    path.mkdir()  # fails when it exists, whoever made it and however recently
                    break
                except FileExistsError:
                    continue
            (path / LOGS).mkdir()
        except OSError as error:
            told = write_error(base / stem, error)
            raise InputError(str(base), told.message, hint=told.hint) from None
        folder = cls(path, {})
        folder.write_manifest(
            name=name,
            status="running",
            started=now.isoformat(timespec="seconds"),
            process={"pid": os.getpid(), "start_ticks": start_time(os.getpid())},
        )
        return folder

    @classmethod
    @looking()
    def open(cls, path: str | Path, base: str | Path = "runs") -> RunFolder:
        """An existing run, complete or not: by its path, or by its name within `base`.

        Raises:
            InputError: there is no such folder, or it holds no run; the nearest run's name is suggested.
        """
        given = Path(path)
        found = given if given.exists() else Path(base) / given
        where = str(path)
        if not found.exists():
            siblings = given.parent if given.parent.is_dir() and given.parent != Path(".") else Path(base)
            runs = sorted(p.name for p in siblings.iterdir() if _is_run(p)) if siblings.is_dir() else []
            latest = {re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", run): run for run in runs}
            near = nearest(given.name, runs) or latest.get(nearest(given.name, latest) or "")
            if near:
                hint = f"did you mean {siblings / near}?"
            else:
                hint = f"{siblings} holds no runs" if not runs else f"the latest in {siblings}: {', '.join(runs[-5:])}"
            raise InputError(where, "no such run folder", hint=hint)
        if not found.is_dir():
            inside = f"did you mean {found.parent}?" if _is_run(found.parent) else None
            raise InputError(where, "a file; expected a run folder", hint=inside)
        if not _is_run(found):
            runs = sorted(p.name for p in found.iterdir() if _is_run(p))
            hint = f"it holds runs itself: {', '.join(runs[-3:])}" if runs else "run folders are made by `testbed run`"
            raise InputError(where, f"no run folder: it has neither {MANIFEST} nor {JSONL} nor {PARQUET}", hint=hint)
        manifest: Any = {}
        if (found / MANIFEST).exists():
            try:
                manifest = json.loads((found / MANIFEST).read_text())
            except (ValueError, OSError) as error:
                raise InputError(str(found / MANIFEST), f"not readable as JSON: {error}") from None
            if not isinstance(manifest, dict):
                raise InputError(str(found / MANIFEST), f"{type(manifest).__name__}; expected an object")
            for key, kind in _MANIFEST_TYPES.items():
                if not isinstance(manifest.get(key), (kind, type(None))):
                    raise InputError(
                        f"{found / MANIFEST}, {key}",
                        f"{manifest[key]!r}; expected {'text' if kind is str else 'an object'}",
                    )
        return cls(found, manifest)

    # what goes in while the run goes on

    @property
    def recorder(self) -> EventRecorder:
        """The recorder of this run's events; opened on first use."""
        if self._recorder is None:
            self._recorder = EventRecorder(self.path)
        return self._recorder

    @property
    def logs(self) -> Path:
        return self.path / LOGS

    def write_manifest(self, **fields: Any) -> None:
        """Set fields of the manifest and write it, atomically. docs/events.md lists what reports read."""
        if fields.get("status", STATUSES[0]) not in STATUSES:
            raise ValueError(f"status {fields['status']!r}: expected one of {', '.join(STATUSES)}")
        self.manifest.update({k: _plain(v) for k, v in fields.items()})
        write_file(self.path / MANIFEST, json_text(self.manifest))

    def write_experiment(self, text: str) -> None:
        """The experiment as given (YAML), with --set applied."""
        write_file(self.path / EXPERIMENT, text)

    def write_plan(self, plan: Any) -> None:
        """The runner's plan: a Plan, or JSON-like data of the same shape."""
        write_file(self.path / PLAN, json_text(plan))

    # what comes out

    @property
    def status(self) -> str:
        """The manifest's status; 'interrupted' when it is 'running' but its process is gone; or 'unknown'."""
        status = self.manifest.get("status", "unknown")
        if status == "running":
            process = self.manifest.get("process") or {}
            start = start_time(process.get("pid") or 0)
            if start is None or start != process.get("start_ticks"):
                return "interrupted"
        return status

    def events(self) -> pd.DataFrame:
        """All events so far, as from read_events()."""
        if self._recorder is not None and not (self.path / PARQUET).exists():
            self._recorder.flush()
        return read_events(self.path)

    def plan(self) -> dict[str, Any]:
        """plan.json, or an empty dict when there is none (yet) or it was cut short."""
        return _read_json(self.path / PLAN)

    def experiment_text(self) -> str:
        """experiment.yaml, or '' when there is none."""
        try:
            return (self.path / EXPERIMENT).read_text(errors="replace")
        except OSError:
            return ""

    def verdict(self) -> Verdict:
        """The verdict in fidelity.json, or one judged now when there is none yet."""
        try:
            return Verdict.from_dict(_read_json(self.path / FIDELITY))
        except (KeyError, TypeError):
            return judge(self.events(), self.manifest)

    def finish(self, status: str = "complete", **fields: Any) -> Verdict:
        """Close the recorder, derive every other file from the events, and write the manifest's last state.

        Args:
            status: 'complete', 'interrupted' or 'failed'.
            fields: more for the manifest, e.g. `error` or `durations`.

        Raises:
            TestbedError: a file could not be written.
        """
        if self._recorder is not None:
            self._recorder.close()
        events = self.events()
        verdict = self.derive(events)
        self.write_manifest(
            **fields,
            status=status,
            ended=datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds"),
            duration_s=float(events["t"].max()) if len(events) else 0.0,
            verdict=verdict.label,
        )
        return verdict

    def derive(self, events: pd.DataFrame | None = None) -> Verdict:
        """Write steps.csv, links.parquet, fidelity.json and timeline.json anew. Raises TestbedError."""
        events = self.events() if events is None else events
        verdict = judge(events, self.manifest)
        write_file(self.path / FIDELITY, json_text(verdict.to_dict()))
        write_file(self.path / STEPS, counted_steps(events).to_csv(index=False))
        write_file(self.path / LINKS, links_table(events).to_parquet(index=False))
        if (setting(self.manifest, "outputs") or {}).get("timeline", True):
            write_file(self.path / TIMELINE, trace_json(events))
        return verdict


def _is_run(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in (MANIFEST, JSONL, PARQUET))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def check_space(path: Path, least_bytes: float = 50e6) -> None:
    """Refuse to start a run on a disk with less than this left; the folder may not exist yet.

    Raises:
        InputError: nothing can be written there, or there is too little space.
    """
    free = os.statvfs(check_folder(path))
    left = free.f_bavail * free.f_frsize
    if left < least_bytes:
        raise InputError(
            str(path),
            f"only {left / 1e6:.0f} MB free; a run needs {least_bytes / 1e6:.0f} MB",
            hint="free some space, or choose another place with --out",
        )
