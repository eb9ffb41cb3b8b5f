"""The same experiments in both engines, and what the simulation gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import RunSetup, run_setup
from testbed.experiment.simulating import simulate_once
from testbed.measurement.run_folder import write_file
from testbed.report import compare_engines
from testbed.report.compare_engines import Case, Validation, case_of, validation
from testbed.report.compare_scatter import write_scatter
from testbed.scenario.run import Silent
from testbed.studies.running import prepare, run_once

Execute = Callable[[RunSetup, Path, str], Path]  # runs a setup below a folder for a command, returns its run folder


def _emulate(setup: RunSetup, out: Path, command: str) -> Path:
    return run_once(prepare(setup, out, lambda _: None), out, progress=Silent(), command=command).path


def _simulate(setup: RunSetup, out: Path, command: str) -> Path:
    return simulate_once(setup, out, progress=Silent(), command=command)[0].path


def checked(
    experiments: Sequence[str | Path],
    overrides: tuple[str, ...] = (),
    *,
    seed: int | None = None,
    tdf: str | None = None,
) -> list[RunSetup]:
    """All experiments read, checked and planned, before any of them starts.

    tdf: of the emulation; where neither it nor an override says, the least that this machine is expected to carry.

    Raises:
        InputError: bad input, or two experiments of one name.
    """
    if tdf is None and not any(item.partition("=")[0].strip() == "tdf" for item in overrides):
        tdf = "auto"
    setups = [run_setup(load_experiment(e, overrides, seed=seed, tdf=tdf)) for e in experiments]
    names: dict[str, Path] = {}
    for setup in setups:
        name, path = setup.loaded.experiment.name, setup.loaded.path
        if name in names:
            raise InputError(str(path), f"its name {name!r} is that of {names[name]} too; expected names of their own")
        names[name] = path
    return setups


def validate(
    setups: Sequence[RunSetup],
    out: Path,
    runs: Path,
    *,
    repeat: int,
    command: str = "",
    emulate: Execute = _emulate,
    simulate: Execute = _simulate,
    say: Callable[[str], None] = lambda _: None,
) -> Validation:
    """Run each setup `repeat` times in emulation and once in simulation (which gives the same each time).

    Writes validation.json, .csv, .md, .png and .svg into `out`, anew after each case, and the run folders below
    runs/emulated and runs/simulated.
    """
    out.mkdir(parents=True, exist_ok=True)
    cases: list[Case] = []
    for number, setup in enumerate(setups, start=1):
        name = setup.loaded.experiment.name
        say(f"{number}/{len(setups)} {name}")
        simulated = [simulate(setup, runs / "simulated", command)]
        emulated = [emulate(setup, runs / "emulated", command) for _ in range(repeat)]
        cases.append(case_of(name, emulated, simulated))
        write(validation(cases), out)
    return validation(cases)


def write(found: Validation, out: Path) -> list[Path]:
    """The files of a validation. Raises TestbedError: one can't be written."""
    texts = {"json": compare_engines.json_of, "csv": compare_engines.csv_text, "md": compare_engines.markdown}
    paths = []
    for ending, make in texts.items():
        paths.append(out / f"validation.{ending}")
        write_file(paths[-1], make(found))
    return [*paths, *write_scatter(found, out)]
