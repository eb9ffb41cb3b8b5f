"""Simulated experiments from the command line: repeatable to the byte, true to training, honest about bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from runners import reference
from testbed.cli import cli
from testbed.cluster import ModelSpec, TrainingSpec
from testbed.errors import InputError
from testbed.measurement.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
CHURN = ["--set", "availability.trace=traces/availability/quickstart.csv", "--set", "availability.mapping={h2: two-leave-05}",
         "--set", "time_scale=600", "--set", "training.stages=2", "--set", "training.steps=12"]  # fmt: skip


def simulate(out, *arguments, experiment="smoke", catch=False):
    result = CliRunner().invoke(cli, ["simulate", experiment, "--out", str(out), *arguments], catch_exceptions=catch)
    assert result.exit_code == 0, result.output
    (folder,) = Path(out).iterdir()
    return RunFolder.open(folder)


@pytest.mark.parametrize("jitter", ["0 ms", "3 ms"])
def test_event_logs_are_the_same_to_the_byte_in_other_processes_with_other_hash_seeds(tmp_path, jitter):
    logs = []
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, "-m", "testbed", "simulate", "smoke", "--out", str(out), *CHURN,
             "--set", f"links.jitter={jitter}", "--set", "links.loss=0.001"],
            check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (folder,) = out.iterdir()
        logs.append((folder / "events.jsonl").read_bytes())
    assert logs[0] == logs[1]
    assert b'"left"' in logs[0]  # somebody was lost on the way


def test_another_seed_gives_another_log(tmp_path):
    def log(seed):
        run = simulate(tmp_path / seed, "--seed", seed, "--set", "links.jitter=3 ms")
        return (run.path / "events.jsonl").read_bytes()

    assert log("1") != log("2")


def test_with_real_tensors_losses_are_those_of_one_device(tmp_path):
    run = simulate(tmp_path, "--tensors", "real", *CHURN)
    steps = pd.read_csv(run.path / "steps.csv")
    model = ModelSpec(layers=3, d_model=64, heads=2, d_ff=256, sequence=32)
    expected = reference.train(model, TrainingSpec(batch=8, micro_batches=4, steps=12, seed=1))
    assert steps["loss"].tolist() == pytest.approx(list(expected), abs=1e-4)
    assert len(run.events().query("event == 'recovery'"))


def test_a_run_folder_like_any_other(tmp_path):
    run = simulate(tmp_path, "--set", "outputs.report=true", "--set", "outputs.timeline=true")
    for name in ("manifest.json", "experiment.yaml", "plan.json", "events.parquet", "steps.csv", "links.parquet",
                 "fidelity.json", "report.html", "timeline.json"):  # fmt: skip
        assert (run.path / name).stat().st_size > 0, name
    assert run.manifest["engine"] == "simulation"
    assert run.manifest["status"] == "complete"
    assert "simulated" in json.loads((run.path / "fidelity.json").read_text())["notes"][0]
    assert len(pd.read_csv(run.path / "steps.csv")) == 4


def test_time_does_not_depend_on_whether_tensors_have_data(tmp_path):
    times = [pd.read_csv(simulate(tmp_path / kind, "--tensors", kind).path / "steps.csv")["end_s"].tolist()
             for kind in ("meta", "real")]  # fmt: skip
    assert times[0] == pytest.approx(times[1], rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--runner", "pipline"], "did you mean 'pipeline'?"),
        (["--set", "simulation.tensors=metal"], "expected 'meta' or 'real'"),
        (["--set", "simulation.detail=3"], "did you mean 'details'?"),
        (["--set", "topology.homes=0"], "0 homes"),
    ],
)
def test_bad_input_is_found_before_anything_starts(tmp_path, arguments, text):
    with pytest.raises(InputError) as error:
        simulate(tmp_path / "runs", *arguments)
    assert text in str(error.value)
    assert error.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_a_sweep_is_a_simulation_for_each_entry_and_a_comparison(tmp_path):
    entries = "sweep=[{training.stages: 2}, {training.stages: 1, engine: emulation, simulation.tensors: meta}]"
    result = CliRunner().invoke(
        cli,
        ["simulate", "smoke", "--out", str(tmp_path), "--set", entries, "--tensors", "real"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    assert "run 2 of 2: training.stages=1" in result.output
    runs = sorted((RunFolder.open(p) for p in tmp_path.iterdir() if p.is_dir()), key=lambda r: r.path.name)
    assert [r.manifest["experiment"]["training"]["stages"] for r in runs] == [2, 1]
    assert {(r.manifest["engine"], r.manifest["experiment"]["simulation"]["tensors"]) for r in runs} == {
        ("simulation", "real")
    }  # what the command says holds for every entry
    assert not any(r.manifest["experiment"]["sweep"] for r in runs)
    assert len(list(tmp_path.glob("*-sweep.html"))) == 1


def test_ctrl_c_keeps_what_was_simulated(tmp_path):
    import signal

    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", "simulate", "smoke", "--out", str(tmp_path), "--set", "training.steps=1000000",
         "--set", "time_limit=1000 d"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if "step 3/" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    (folder,) = tmp_path.iterdir()
    run = RunFolder.open(folder)
    assert run.manifest["status"] == "interrupted"
    assert len(pd.read_csv(folder / "steps.csv")) >= 3
    assert len(run.events().query("event == 'totals'"))
