"""Whole commands with `--kernel uml`: an experiment over netem and over Open vSwitch, verification, cgroup limits."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from second_kernel import ANY, TESTBED, open_folder, ordinary_user, run

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(600)]
#: What `smoke` computes, on any kernel: the numbers of one-device training on the same batches.
LOSSES = [5.5086, 5.3000, 5.0239, 4.9834]
FEWER = ["--set", "training.steps=2"]


def run_folder(base: Path) -> Path:
    [folder] = base.iterdir()
    return folder


@pytest.mark.parametrize("switch", ["bridge", "ovs"])
def test_smoke_runs_over_netem(switch):
    """Over a bridge as an ordinary user, where there is one; over Open vSwitch as whoever tests."""
    if switch == "ovs" and not shutil.which("ovs-vswitchd"):
        pytest.skip("no Open vSwitch (apt install openvswitch-switch)")
    user = [] if switch == "ovs" else ordinary_user()
    with open_folder() as base:
        done = run([*user, *TESTBED, "run", "smoke", "--kernel", "uml", "--out", "made", "--set",
                    f"network.switch={switch}", *FEWER], cwd=base)
        assert done.returncode == 0, done.stdout + done.stderr
        folder = run_folder(base / "made")
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["status"] == "complete"
        assert manifest["delay_backend"] == "netem"
        assert manifest["capabilities"]["cgroup_version"] == 2
        with open(folder / "steps.csv") as file:
            assert [float(row["loss"]) for row in csv.DictReader(file)] == pytest.approx(LOSSES[:2], abs=2e-4)
        assert {path.stat().st_uid for path in folder.rglob("*")} == {65534 if user else os.getuid()}


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
