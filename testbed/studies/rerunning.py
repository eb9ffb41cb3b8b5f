"""A run repeated from its folder, and what differs: before it (software, machine, inputs, plan) and in its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.experiment.loading import parse, validated
from testbed.experiment.setup import RunSetup, run_setup
from testbed.measurement.run_folder import EXPERIMENT, PLAN, RunFolder, json_text
from testbed.measurement.steps import counted_steps

# What may make results differ, of the manifest; `started`, `command` and the like always do.
_COMPARED = (
    "engine",
    "seed",
    "tdf",
    "time_scale",
    "delay_backend",
    "versions",
    "kernel",
    "machine",
    "capabilities",
    "inputs",
    "fidelity_thresholds",
    "experiment",
)
_SAME_LOSS = 1e-6


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same. what: dotted name; before, after: as text."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} → {self.after}"


def setup_again(folder: RunFolder) -> RunSetup:
    """The run's experiment, read and planned anew.

    Raises:
        InputError: the folder lacks its experiment, or a file that it reads is gone.
    """
    if not (folder.path / EXPERIMENT).exists():
        raise InputError(str(folder.path), f"has no {EXPERIMENT}: it can't be run again")
    data, _ = parse(folder.path / EXPERIMENT)
    data["tdf"] = folder.manifest.get("tdf", data.get("tdf", 1.0))  # what was chosen, where it was left to us
    path = Path(folder.manifest.get("experiment_file") or folder.path / EXPERIMENT)
    return run_setup(validated(data, path))


def before_it(folder: RunFolder, setup: RunSetup, manifest: Mapping[str, Any]) -> list[Difference]:
    """What is not as it was, of the software, the machine, the inputs and the plan.

    manifest: what a run of `setup` would write before its start.
    """
    old = {key: folder.manifest.get(key) for key in _COMPARED}
    new = {key: manifest.get(key) for key in _COMPARED}
    if old["inputs"] is None:
        del old["inputs"], new["inputs"]
    new = json.loads(json_text(new))
    plan = _read(folder.path / PLAN)
    return _differences("", old, new) + (_differences("plan", plan, json.loads(json_text(setup.plan))) if plan else [])


def results(old: RunFolder, new: RunFolder) -> list[Difference]:
    """What came out differently: status, verdict, losses step by step, step time."""
    found = [
        Difference(key, str(old.manifest.get(key)), str(new.manifest.get(key)))
        for key in ("status", "verdict")
        if old.manifest.get(key) != new.manifest.get(key)
    ]
    a, b = (counted_steps(f.events()) for f in (old, new))
    if len(a) != len(b):
        found.append(Difference("steps", str(len(a)), str(len(b))))
    both = a.merge(b, on="step", suffixes=("_before", "_after"))
    if len(both):
        gaps = (both["loss_after"] - both["loss_before"]).abs()
        if gaps.max() > _SAME_LOSS:
            at = both.loc[gaps.idxmax()]
            found.append(
                Difference(
                    f"loss of step {int(at['step'])}, the largest difference of {len(both)}",
                    f"{at['loss_before']:.6f}",
                    f"{at['loss_after']:.6f}",
                )
            )
        before, after = both["step_time_s_before"].median(), both["step_time_s_after"].median()
        change = f" ({100 * (after / before - 1):+.1f} %)" if before else ""
        found.append(Difference("median step time", f"{before:.4g} s", f"{after:.4g} s{change}"))
    return found


def trained(folder: RunFolder) -> bool:
    """Does it have losses? A simulation of shapes without data has none."""
    return bool(counted_steps(folder.events())["loss"].notna().any())


def _differences(name: str, old: Any, new: Any) -> list[Difference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for key in dict.fromkeys([*old, *new]):
            found += _differences(f"{name}.{key}" if name else str(key), old.get(key), new.get(key))
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [d for i, (a, b) in enumerate(zip(old, new)) for d in _differences(f"{name}.{i}", a, b)]
    if old == new or (
        isinstance(old, (int, float))
        and isinstance(new, (int, float))
        and abs(old - new) <= 1e-9 * max(abs(old), abs(new))
    ):
        return []
    return [Difference(name, _shown(old), _shown(new))]


def _shown(value: Any) -> str:
    text = "–" if value is None else json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= 80 else text[:77] + "…"


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
