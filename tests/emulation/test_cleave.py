"""Cleave on real processes and links: the losses of one device through a departure in the middle of a step, and sweeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from runners.reference import train
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup

pytestmark = [pytest.mark.emulation, pytest.mark.root]

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["tdf=1", "probes.seconds=0.3 s", "outputs.report=false", "outputs.timeline=false", "model.d_model=64", "model.layers=1",
         "model.sequence=32", "training.batch=8", "training.local=never"]  # fmt: skip


def run(name: str, *settings: str, out: Path) -> subprocess.CompletedProcess:
    words = [word for s in settings for word in ("--set", s)]
    return subprocess.run([sys.executable, "-m", "testbed", "run", name, "--out", str(out), *words], cwd=ROOT, timeout=200,
                          capture_output=True, text=True)  # fmt: skip


def test_a_device_is_killed_in_the_middle_of_a_step_and_comes_back(tmp_path):
    trace = tmp_path / "leaves.csv"
    trace.write_text("device,start_s,end_s\nh2,0,3\nh2,6,1000\n")
    settings = [*SMALL, "topology.homes=3", f"availability.trace={trace}", "availability.mapping={h2: h2}",
                "time_scale=1", "devices.speed_factor=0.006", "training.steps=10"]  # fmt: skip
    done = run("cleave-churn", *settings, out=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    steps = pd.read_csv(folder / "steps.csv")
    setup = run_setup(load_experiment("cleave-churn", tuple(settings)))
    torch.set_num_threads(1)
    assert steps["loss"].tolist() == pytest.approx(train(setup.plan.model, setup.plan.training), abs=1e-4)
    assert steps["attempt"].tolist() == [1] * 10
    events = pd.read_parquet(folder / "events.parquet")
    recoveries = events[events["event"] == "recovery"]
    assert {("replan", "h2"), ("join", "h2")} <= set(zip(recoveries["kind"], recoveries["peer"]))
    assert (recoveries["lost_steps"] == 0).all()
    # what the server counts as sent is what the transport carried, but for headers and what went to the lost device
    counted = events[events["event"] == "traffic"]["server_out"].sum()
    (carried,) = events[(events["event"] == "transport") & (events["node"] == "server")]["sent"]
    carried = json.loads(carried) if isinstance(carried, str) else carried
    assert counted == pytest.approx(sum(v or 0 for v in carried.values()), rel=0.1)


def test_a_sweep_is_a_run_for_each_entry_and_a_comparison(tmp_path):
    entries = "sweep=[{topology.homes: 1}, {topology.homes: 3}]"
    done = run("cleave-scaling", *SMALL, "training.steps=1", "devices.speed_factor=0.1", entries, out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folders = sorted(p for p in tmp_path.iterdir() if p.is_dir())
    plans = [json.loads((f / "plan.json").read_text()) for f in folders]
    assert [len(p["cluster"]["devices"]) for p in plans] == [1, 3]
    assert "sweep" not in (folders[0] / "experiment.yaml").read_text()
    (page,) = tmp_path.glob("*-sweep.html")
    assert "Down a device" in page.read_text()
    assert "Down a device" in done.stdout
