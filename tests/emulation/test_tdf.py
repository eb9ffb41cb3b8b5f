"""Time dilation: what is too heavy is INVALID and fits at the factor that is proposed; results do not depend on it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup
from testbed.studies.preflight import BUSY

pytestmark = [pytest.mark.emulation, pytest.mark.root]

ROOT = Path(__file__).resolve().parents[2]
HOT = Path(__file__).with_name("hot.yaml")
ATTEMPTS = 3  # noise of the machine is transient, a bug is not


def run(out: Path, *args: str) -> Path:
    argv = [sys.executable, "-m", "testbed", "run", *args, "--out", str(out)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = out.iterdir()
    (folder / "output.txt").write_text(done.stdout)
    return folder


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def skip_if_busy(folder: Path) -> None:
    """With other programs on the machine nothing can be VALID, whatever is done."""
    machine = read(folder, "manifest.json")["preflight"]["capacity"]
    if machine["others"] > BUSY * len(machine["core_flops"]):
        pytest.skip(f"other programs keep {machine['others']:.2g} cores busy")


def test_too_heavy_is_invalid_and_valid_at_the_time_dilation_that_is_proposed(tmp_path):
    heavy = run(tmp_path / "heavy", str(HOT))
    verdict = read(heavy, "fidelity.json")
    assert verdict["verdict"] == "INVALID"
    assert verdict["reasons"]  # overruns, late packets or a saturated machine: whichever this one shows first
    before = read(heavy, "manifest.json")["preflight"]
    assert before["tdf"] == 1
    assert before["demand"]["declared"]
    assert before["demand"]["workers"] == 32
    text = (heavy / "output.txt").read_text()
    assert "is not expected to carry the experiment at time dilation 1; the smallest that it would carry is" in text
    skip_if_busy(heavy)
    reasons = []
    for attempt in range(ATTEMPTS):
        folder = run(tmp_path / f"dilated{attempt}", str(HOT), "--tdf", "auto")
        manifest, verdict = read(folder, "manifest.json"), read(folder, "fidelity.json")
        assert manifest["tdf"] == manifest["preflight"]["needed_tdf"] > 1
        assert manifest["experiment"]["tdf"] == manifest["tdf"]
        if verdict["valid"]:
            break
        reasons.append([r["text"] for r in verdict["reasons"]])
    else:
        skip_if_busy(folder)
        pytest.fail(f"not VALID at the time dilation proposed: {reasons}")
    losses = [pd.read_csv(f / "steps.csv")["loss"].tolist() for f in (heavy, folder)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_step_times_do_not_depend_on_the_time_dilation(tmp_path):
    """Emulated step times at TDF 1 and 8 within 5 %: medians of steps that wait for links and for computation."""
    settings = ("probes.enabled=false", "training.steps=4", "links={download: 10 Mbit/s, upload: 4 Mbit/s, rtt: 30 ms}")
    options = [word for item in settings for word in ("--set", item)]
    errors = []
    for attempt in range(ATTEMPTS):
        medians = {}
        for tdf in ("1", "8"):
            folder = run(tmp_path / f"{attempt}-{tdf}", "smoke", "--tdf", tdf, *options)
            medians[tdf] = statistics.median(pd.read_csv(folder / "steps.csv")["step_time_s"][2:])
        errors.append(medians["8"] / medians["1"] - 1)
        if abs(errors[-1]) <= 0.05:
            break
    assert abs(errors[-1]) <= 0.05, errors
    # and they are what links and devices make of it, not the machine: the plan foresees about as much
    setup = run_setup(load_experiment("smoke", settings))
    assert medians["8"] == pytest.approx(setup.plan.predicted["step_time_s"], rel=0.25)
