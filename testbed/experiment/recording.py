"""A run and its folder, the same way for every engine: made, described, filled and finished."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from testbed import __version__
from testbed.errors import TestbedError
from testbed.experiment.inputs import inputs
from testbed.experiment.setup import RunSetup
from testbed.measurement.run_folder import RunFolder
from testbed.scenario.run import Progress, RunResult, Scenario, Sink
from testbed.signals import Interrupted, interruptible

_PACKAGES = ("torch", "numpy", "pyzmq", "msgspec", "scapy", "pandas", "pydantic")


def record(
    setup: RunSetup, out: Path, run: Callable[[Scenario, Sink], RunResult], *, progress: Progress, command: str
) -> tuple[RunFolder, RunResult]:
    """Run a checked setup in a new folder below `out`. However the run ends, the folder has what was measured.

    run: of an engine.
    """
    folder = RunFolder.create(out, setup.loaded.experiment.name)
    folder.write_experiment(yaml.safe_dump(setup.loaded.data, sort_keys=False, allow_unicode=True))
    folder.write_plan(setup.plan)
    folder.write_manifest(**manifest(setup, command))
    result = RunResult("failed", "ended early")
    with progress as shown, interruptible(lambda name: shown.stage(f"{name}: cleaning up, keeping what was measured")):
        began = time.monotonic()
        try:
            result = run(setup, Sink(folder.recorder.append, shown, folder.write_manifest, folder.path))
        except Interrupted as signal_name:
            result = RunResult("interrupted", f"by {signal_name}", by_signal=str(signal_name))
        except TestbedError as error:
            result = RunResult("failed", str(error))
        finally:
            durations = {setup.engine: round(time.monotonic() - began, 3), **folder.manifest.get("durations", {})}
            folder.finish(result.status, error=result.error, durations=durations)
    return folder, result


def manifest(setup: RunSetup, command: str) -> dict[str, Any]:
    """What the manifest says before the start."""
    e = setup.loaded.experiment
    return {
        "experiment": e.model_dump(mode="json"),
        "experiment_file": str(setup.loaded.path),
        "command": command,
        "seed": e.seed,
        "tdf": setup.network.settings.tdf,
        "time_scale": e.time_scale,
        "engine": setup.engine,
        "link_source": setup.network.link_source,
        "churn": [{"t": t, "device": d, "action": a} for t, d, a in setup.churn],
        "inputs": inputs(setup.loaded),
        "warnings": setup.warnings,
        "versions": {"testbed": __version__, "python": platform.python_version(), **_package_versions()},
        "kernel": platform.release(),
        "machine": {"cores": os.cpu_count()},
        **setup.facts,
    }


def _package_versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
