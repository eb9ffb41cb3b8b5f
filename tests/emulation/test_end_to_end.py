"""Whole runs from the command line: the main job, its failures, and what each leaves on the machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from steady import measured

from runners.reference import train
from testbed.emulation.kernel import namespaces
from testbed.emulation.state import STATE_DIR
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup

pytestmark = [pytest.mark.emulation, pytest.mark.root]

ROOT = Path(__file__).resolve().parents[2]
HOUSEHOLD = ROOT.parent / "shared" / "traces" / "links" / "amadeuspzs--speedtest.csv"
SMALL = ("probes.seconds=0.3 s",)


def testbed(*args: str, **options) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "timeout": 200, "cwd": ROOT, **options}
    return subprocess.run([sys.executable, "-m", "testbed", *args], **options)


testbed.__test__ = False


def started(*args: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "testbed", *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(process: subprocess.Popen, pattern: str) -> str:
    """Output up to the first line that matches."""
    text = ""
    for line in process.stdout:
        text += line
        if re.search(pattern, line):
            return text
    pytest.fail(f"{pattern!r} did not appear; the output was:\n{text}")


def sets(*items: str) -> list[str]:
    return [word for item in items for word in ("--set", item)]


def run_dir(out: Path) -> Path:
    (found,) = out.iterdir()
    return found


def namespaces_of(out: Path) -> set[str]:
    """Namespaces recorded by the runs whose folders are in `out`."""
    states = [json.loads(p.read_text()) for p in STATE_DIR.glob("*.json")]
    return {n for s in states if s["run_dir"].startswith(str(out)) for n in s["objects"].get("netns", ())}


def existing(names: set[str]) -> set[str]:
    return {n for n in names if Path("/run/netns", n).exists()}


@measured  # --require-valid: its links and pacing are measured
def test_smoke_losses_equal_one_device_training(tmp_path):
    done = testbed(
        "run",
        "smoke",
        "--require-valid",
        "--out",
        str(tmp_path),
        *sets(*SMALL, "outputs.report=true", "outputs.timeline=true"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_dir(tmp_path)
    steps = pd.read_csv(folder / "steps.csv")
    setup = run_setup(load_experiment("smoke"))
    torch.set_num_threads(1)
    expected = train(setup.plan.model, setup.plan.training)
    assert steps["loss"].tolist() == pytest.approx(expected, abs=1e-4)
    for name in (
        "manifest.json",
        "experiment.yaml",
        "plan.json",
        "events.jsonl",
        "events.parquet",
        "links.parquet",
        "fidelity.json",
        "timeline.json",
        "report.html",
    ):
        assert (folder / name).stat().st_size > 0, name
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert any("htb" in c for c in manifest["commands"])
    events = pd.read_parquet(folder / "events.parquet")
    probes = events[events["event"] == "probe"]
    assert len(probes) == 9  # three homes: rate up, rate down, RTT
    shown = testbed("show", str(folder))
    assert shown.returncode == 0
    assert "4 of 4" in shown.stdout


@pytest.mark.parametrize("change", ["fidelity={rate_error_worst: 0}", "probes.enabled=false"])
def test_a_verdict_that_is_not_valid_is_an_exit_code_where_it_is_asked_for(tmp_path, change):
    done = testbed("run", "smoke", "--require-valid", "--out", str(tmp_path), *sets(*SMALL, change))
    assert done.returncode == 3, done.stdout + done.stderr


def test_killed_device_comes_back_and_losses_stay_equal(tmp_path):
    changes = (
        "availability.trace=traces/availability/quickstart.csv",
        "availability.mapping={h2: two-leave-05}",
        "time_scale=400",
        "training.steps=30",
        "training.checkpoint_every=3",
        "training.recovery=replan",
        "topology.homes=4",
    )
    done = testbed("run", "smoke", "--out", str(tmp_path), *sets(*SMALL, *changes))
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_dir(tmp_path)
    events = pd.read_parquet(folder / "events.parquet")
    assert set(events[events["event"] == "churn"]["action"]) >= {"leave"}
    lost = events[(events["event"] == "member") & (events["kind"] == "left") & (events["node"] == "server")]
    assert "h2" in set(lost["peer"])
    setup = run_setup(load_experiment("smoke", changes))
    torch.set_num_threads(1)
    expected = train(setup.plan.model, setup.plan.training)
    assert pd.read_csv(folder / "steps.csv")["loss"].tolist() == pytest.approx(expected, abs=1e-4)


def test_kill_9_then_clean_leaves_nothing_and_touches_nobody(tmp_path):
    foreign = f"other{os.getpid()}"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    subprocess.run(["ip", "-n", foreign, "link", "add", "name", "br9", "type", "bridge"], check=True)
    try:
        process = started("run", "smoke", "--out", str(tmp_path), *sets(*SMALL, "training.steps=400"))
        wait_for(process, r"step 2/")
        process.kill()
        process.wait()
        left = namespaces_of(tmp_path)
        assert len(existing(left)) == 5  # three homes, the server, the network
        cleaned = testbed("clean", "--json")
        assert cleaned.returncode == 0, cleaned.stderr
        assert not existing(left)
        assert "br9" in namespaces.run_in(foreign, ["ip", "-br", "link"]).stdout
        folder = run_dir(tmp_path)  # what was measured is there, and can be reported on
        assert testbed("report", str(folder)).returncode == 0
        shown = json.loads(testbed("show", str(folder), "--json").stdout)
        assert shown["status"] == "interrupted"
        assert testbed("clean").returncode == 0  # again: nothing to do, no error
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_in_order_and_keeps_what_was_measured(tmp_path, signum):
    process = started("run", "smoke", "--out", str(tmp_path), *sets(*SMALL, "training.steps=400"))
    wait_for(process, r"step 2/")
    made = namespaces_of(tmp_path)
    assert existing(made)
    process.send_signal(signum)
    process.send_signal(signum)  # an impatient user
    rest = process.communicate(timeout=30)[0]
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert not existing(made)
    folder = run_dir(tmp_path)
    assert len(pd.read_csv(folder / "steps.csv")) >= 2
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"


def test_two_runs_side_by_side_and_programs_in_a_live_one(tmp_path):
    a = started("run", "smoke", "--out", str(tmp_path / "a"), *sets(*SMALL, "training.steps=300"))
    wait_for(a, r"step 1/")
    b = testbed("run", "smoke", "--out", str(tmp_path / "b"), *sets(*SMALL))
    assert b.returncode == 0, b.stdout + b.stderr
    joined = testbed("exec", str(run_dir(tmp_path / "a")), "h1", "--", "ping", "-c", "2", "server")
    assert joined.returncode == 0, joined.stderr
    assert "which is up" in joined.stderr
    a.send_signal(signal.SIGINT)
    a.communicate(timeout=30)
    assert len(pd.read_csv(run_dir(tmp_path / "a") / "steps.csv")) > 2


@measured
def test_ping_and_iperf_agree_with_the_trace():
    trace = run_setup(load_experiment("quickstart")).network.link_changes["h1"][0][1]
    ping = testbed("exec", "quickstart", "h1", "--new", "--hold", "--", "ping", "-c", "10", "-i", "0.1", "server")
    rtt_s = float(re.search(r"= [\d.]+/([\d.]+)/", ping.stdout)[1]) / 1e3
    assert rtt_s == pytest.approx(trace.rtt_s, abs=0.001 + 0.02 * trace.rtt_s + trace.jitter_s)
    for options, expected in (([], trace.up_bps), (["-R"], trace.down_bps)):
        done = testbed(
            "exec",
            "quickstart",
            "h1",
            "--new",
            "--hold",
            "--with",
            "server=iperf3 -s",
            "--",
            "iperf3",
            "-J",
            "-c",
            "server",
            "-t",
            "4",
            "-O",
            "1",
            *options,
        )
        assert done.returncode == 0, done.stderr
        measured = json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]
        assert measured == pytest.approx(expected, rel=0.05)


@measured
def test_unmodified_ddp_script_is_slower_on_a_slower_uplink(tmp_path):
    seconds = {}
    for up in ("24 Mbit/s", "4 Mbit/s"):
        done = testbed(
            "exec",
            "smoke",
            "--new",
            "--hosts",
            "h1,h2",
            *sets(f"links.upload={up}"),
            "--",
            "sh",
            "-c",
            f"{sys.executable} -m torch.distributed.run --nnodes=$WORLD_SIZE --node-rank=$RANK "
            f"--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT --log-dir={tmp_path} examples/ddp.py",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.findall(r"sum to (\S+), 5 steps in ([\d.]+) s", done.stdout)
        assert len(found) == 2
        assert found[0][0] == found[1][0]  # both ranks hold the same model
        seconds[up] = max(float(s) for _, s in found)
    assert seconds["4 Mbit/s"] > 1.5 * seconds["24 Mbit/s"], seconds  # the kernel's shaping, not the machine's speed


@measured
def test_shell_has_the_shaped_network():
    done = testbed("shell", "smoke", "--hold", input="h1 ping -c 3 -i 0.2 server\nnet\nexit\n")
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"= [\d.]+/([\d.]+)/", done.stdout)[1]) == pytest.approx(20, abs=1.4)
    assert "h1 h1-eth0" in done.stdout


@pytest.mark.skipif(not HOUSEHOLD.exists(), reason=f"no speed-test log of a real household at {HOUSEHOLD}")
@measured
def test_log_of_a_real_household(tmp_path):
    done = testbed(
        "run",
        "smoke",
        "--out",
        str(tmp_path),
        "--set",
        f"links={{trace: {HOUSEHOLD}}}",
        *sets("time_scale=600", "training.steps=5"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_dir(tmp_path)
    events = pd.read_parquet(folder / "events.parquet")
    first = pd.read_csv(HOUSEHOLD).query("Download > 0").iloc[0]
    assert events.query("event == 'link' and node == 'h1'")["down_bps"].iloc[0] == pytest.approx(first["Download"])
    probes = events.query("event == 'probe' and quantity == 'rate_down'")
    assert (probes["measured"] / probes["set"]).between(0.95, 1.05).all()


def test_device_without_memory_for_its_stage_is_named(tmp_path):
    """The kernel's limit, not only the planner's estimate: a worker that needs more is killed and named."""
    done = testbed(
        "run",
        "smoke",
        "--out",
        str(tmp_path),
        *sets(*SMALL, "devices.define.tiny={speed: 11 GFLOP/s, memory: 8 MB}", "devices.mapping={h2: tiny}"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "h2 needed more than its 8 MB of memory" in done.stderr
    assert json.loads((run_dir(tmp_path) / "manifest.json").read_text())["status"] == "failed"


def test_time_limit_ends_a_run(tmp_path):
    done = testbed("run", "smoke", "--out", str(tmp_path), *sets(*SMALL, "training.steps=1000", "time_limit=3 s"))
    assert done.returncode == 1
    assert "time limit" in done.stderr


def test_as_an_ordinary_user_it_says_what_to_do(tmp_path):
    done = testbed("run", "smoke", "--out", str(tmp_path / "runs"), user=65534, env={**os.environ, "HOME": "/tmp"})
    assert done.returncode == 1
    assert "root" in done.stderr
    assert "Traceback" not in done.stderr
