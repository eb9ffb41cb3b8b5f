"""The baselines with real processes over shaped links: a device is killed, and losses stay those of one device."""

from __future__ import annotations

import os
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
SMALL = (
    "probes.seconds=0.3 s", "outputs={report: false, timeline: false}", "topology.homes=4", "time_scale=400",
    "availability={trace: traces/availability/quickstart.csv, assign: by-name, mapping: {h2: two-leave-05}, churn: kill}",
)  # fmt: skip
JOBS = {
    "ps": "training={runner: data_parallel, reduce: ps, batch: 8, micro_batches: 2, steps: 8}",
    "ring": "training={runner: data_parallel, reduce: ring, batch: 8, micro_batches: 2, steps: 8, checkpoint_every: 3}",
    "tensor": "training={runner: tensor_parallel, batch: 8, micro_batches: 1, steps: 7, checkpoint_every: 3}",
}


@pytest.mark.parametrize("job", JOBS)
def test_killed_device_and_losses_of_one_device(job, tmp_path):
    changes = (*SMALL, JOBS[job])
    words = [word for change in changes for word in ("--set", change)]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "run", "smoke", "--out", str(tmp_path), *words],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    setup = run_setup(load_experiment("smoke", changes))
    torch.set_num_threads(1)
    expected = train(setup.plan.model, setup.plan.training)
    assert pd.read_csv(folder / "steps.csv")["loss"].tolist() == pytest.approx(expected, abs=1e-4)
    events = pd.read_parquet(folder / "events.parquet")
    lost = events[(events["event"] == "recovery") & (events["kind"] != "join")]
    assert "h2" in set(lost["peer"])
    data = events[(events["event"] == "transfer") & events["tag"].str.contains("gradient|reduce", na=False)]
    assert len(data) > 50
