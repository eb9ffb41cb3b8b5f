"""Live runs, sabotaged: whatever is done behind the tool's back is named in the verdict."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from testbed.emulation.state import STATE_DIR

pytestmark = [pytest.mark.emulation, pytest.mark.root]

ROOT = Path(__file__).resolve().parents[2]
# links that change ten times a second, so that a delayed replay shows at once; the server's own never changes
SETTINGS = (
    "probes.seconds=0.3 s",
    "training.steps=400",
    "time_scale=600",
    "links={trace: traces/links/quickstart.csv, interpolate: linear, loss: 0}",
)


class Live:
    """A run that goes on."""

    def __init__(self, process: subprocess.Popen, out: Path):
        self.process = process
        (self.folder,) = out.iterdir()
        states = [json.loads(p.read_text()) for p in STATE_DIR.glob("*.json")]
        (self.state,) = [s for s in states if s["run_dir"] == str(self.folder)]
        (self.net,) = [n for n in self.state["objects"]["netns"] if n.endswith("-net")]
        self.output = ""

    def child(self, *words: str) -> int:
        """Pid of the run's process whose command line has all these words."""
        for recorded in self.state["objects"]["process"]:
            pid = int(recorded.partition(":")[0])
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if all(word in line for word in words):
                return pid
        raise AssertionError(f"no process with {words}")

    def ip(self, *args: str) -> None:
        subprocess.run(["ip", "-n", self.net, *args], check=True)

    def tc(self, *args: str) -> str:
        return subprocess.run(["tc", "-n", self.net, *args], check=True, capture_output=True, text=True).stdout

    def end(self) -> dict:
        """Interrupt it; its verdict."""
        self.process.send_signal(signal.SIGINT)
        self.output += self.process.communicate(timeout=60)[0]
        return json.loads((self.folder / "fidelity.json").read_text())


@contextmanager
def live(out: Path) -> Iterator[Live]:
    argv = [sys.executable, "-m", "testbed", "run", "smoke", "--out", str(out)]
    argv += [word for item in SETTINGS for word in ("--set", item)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = ""
    try:
        for line in process.stdout:
            text += line
            if "step 1/" in line:
                break
        else:
            pytest.fail(f"it ended early:\n{text}")
        run = Live(process, out)
        run.output = text
        yield run
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_each_sabotage_is_named_though_it_was_undone_at_once(tmp_path):
    with live(tmp_path) as run:
        began = datetime.now().astimezone()
        shown = run.tc("class", "show", "dev", "y0")
        rate = re.search(r"rate (\S+)", shown)[1]
        change = ["class", "change", "dev", "y0", "parent", "1:", "classid", "1:1", "htb", "burst", "100k", "rate"]
        run.tc(*change, "5mbit")
        run.tc(*change, rate)
        run.ip("link", "set", "x2", "down")
        run.ip("link", "set", "x2", "up")
        with stopped(run.child("testbed.emulation.delay")):
            time.sleep(0.02)
        with stopped(run.child("tc", "-batch")):  # the replay thread waits for it
            time.sleep(0.5)
        time.sleep(1.5)  # for the next samples
        verdict = run.end()
    assert verdict["verdict"] == "INVALID"
    reasons = {r["name"]: r for r in verdict["reasons"]}
    assert {"interference", "delay_paused", "replay_late"} <= set(reasons), verdict["reasons"]
    text = reasons["interference"]["text"]
    assert re.search(r"server downlink: rate set to 5 Mbit/s on the wire; the tool set 10\d(\.\d+)? Mbit/s", text), text
    assert "h2 uplink: the access link was taken down (x2 down)" in text
    assert set(reasons["interference"]["where"].split(", ")) == {"server", "h2"}  # and nobody else
    assert reasons["delay_paused"]["measured"] == 1
    assert 0.3 < reasons["replay_late"]["measured"] < 5
    # the moment, on both clocks; nothing of this was found before it was done
    zero = datetime.fromisoformat(json.loads((run.folder / "manifest.json").read_text())["zero_at"])
    sabotaged_s = (began - zero).total_seconds()
    assert all(reasons[n]["at_s"] >= sabotaged_s - 0.1 for n in ("interference", "delay_paused"))
    assert datetime.fromisoformat(verdict["invalid_at"]) >= zero
    for said in (
        "changed behind the tool's back: server downlink",
        "changed behind the tool's back: h2 uplink",
        "the delay line's process was paused: 1 times",
        "applied late",
    ):
        assert said in run.output, run.output
    assert "by the clock" in run.output


def test_a_delay_line_that_stays_paused_is_named_and_removed(tmp_path):
    with live(tmp_path) as run:
        os.kill(run.child("testbed.emulation.delay"), signal.SIGSTOP)
        time.sleep(3.5)
        verdict = run.end()
    reasons = {r["name"]: r for r in verdict["reasons"]}
    assert reasons["delay_stuck"]["measured"] > 2, verdict["reasons"]
    assert "no sign of life" in run.output
