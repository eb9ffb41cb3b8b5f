"""One experiment in virtual time, from a checked setup to a filled run folder. Loads nothing that emulates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from testbed.experiment.recording import record
from testbed.experiment.setup import RunSetup
from testbed.measurement.run_folder import RunFolder, check_space
from testbed.scenario.network import NetworkSettings
from testbed.scenario.run import Progress, RunResult
from testbed.simulation.run import run


def simulate_once(setup: RunSetup, out: Path, *, progress: Progress, command: str) -> tuple[RunFolder, RunResult]:
    """Simulate a checked setup, whatever engine it is for. Ctrl-C keeps what was simulated so far."""
    check_space(out)
    return record(simulated(setup), out, run, progress=progress, command=command)


def simulated(setup: RunSetup) -> RunSetup:
    """The same for virtual time, which nothing dilates."""
    settings = NetworkSettings.of(setup.loaded.experiment, tdf=1.0)
    facts = {"tensors": setup.tensors, "probes_enabled": False}
    return replace(setup, engine="simulation", network=replace(setup.network, settings=settings), facts=facts)
