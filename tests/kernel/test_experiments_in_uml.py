"""Whole commands with `--kernel uml`: an experiment over netem and over Open vSwitch, verification, cgroup limits."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from second_kernel import ANY, TESTBED, assert_nothing_left, open_folder, ordinary_user, run, start

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(600)]
#: What `smoke` computes, on any kernel: the numbers of one-device training on the same batches.
LOSSES = [5.5086, 5.3000]


def run_folder(base: Path) -> Path:
    [folder] = base.iterdir()
    return folder


def test_smoke_runs_over_open_vswitch():
    if not shutil.which("ovs-vswitchd"):
        pytest.skip("no Open vSwitch (apt install openvswitch-switch)")
    with open_folder() as base:
        done = run(
            [
                *TESTBED,
                "run",
                "smoke",
                "--kernel",
                "uml",
                "--out",
                "made",
                "--set",
                "network.switch=ovs",
                "--set",
                "training.steps=2",
            ],
            cwd=base,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert_results(run_folder(base / "made"), "complete", os.getuid())


def test_smoke_runs_over_netem_for_an_ordinary_user_until_ctrl_c():
    """Its results are kept."""
    user = ordinary_user()
    with open_folder() as base:
        process = start(
            [*user, *TESTBED, "run", "smoke", "--kernel", "uml", "--out", "made", "--set", "training.steps=2000"],
            cwd=base,
        )
        said = []
        for line in process.stdout:
            said.append(line)
            if "step 2/2000" in line:
                process.send_signal(signal.SIGINT)
        assert process.wait() == 130, "".join(said) + process.stderr.read()
        process.stderr.close()
        assert_nothing_left(process.pid)
        assert_results(run_folder(base / "made"), "interrupted", 65534 if user else os.getuid())


def assert_results(folder: Path, status: str, owner: int) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == status
    assert manifest["delay_backend"] == "netem"
    assert manifest["capabilities"]["cgroup_version"] == 2
    with open(folder / "steps.csv") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert losses[:2] == pytest.approx(LOSSES, abs=2e-4)
    assert {path.stat().st_uid for path in folder.rglob("*")} == {owner}


def test_verify_measures_four_hosts(tmp_path):
    """Three homes and the server. Medians and counts: what a busy machine does to single packets is not our bug."""
    for attempt in range(3):
        out = tmp_path / str(attempt)
        done = run([*TESTBED, "verify", "smoke", "--kernel", "uml", "--quick", "--sample", "2", "--out", out])
        assert done.returncode in (0, 1), done.stdout + done.stderr
        rows = json.loads((run_folder(out) / "verify.json").read_text())["rows"]
        steady = [r for r in rows if r["quantity"] in ("RTT p50", "delay p50", "UDP rate", "loss", "buffer")]
        wrong = [r for r in steady if not r["ok"]]
        if not wrong:
            break
    assert len({r["home"] for r in steady}) == 2
    assert len(steady) == 2 * (1 + 2 * 4)
    assert not wrong, wrong


def test_cgroup_v2_limits_bind():
    done = run([*ANY, sys.executable, Path(__file__).with_name("limits.py")])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["code"] == -9
    assert found["oom_kills"] >= 1
    assert found["throttled"] > 5
    assert found["cpu_s"] < 0.35 * found["wall_s"]  # a fifth was allowed
