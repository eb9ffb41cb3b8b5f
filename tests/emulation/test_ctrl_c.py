"""Ctrl-C at random moments of every long command: exit code 130, no traceback, what was measured is kept.

TESTBED_CTRL_C=200 pytest tests/emulation/test_ctrl_c.py tries 200 moments instead of one a command.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.root, pytest.mark.emulation]
SEED = int(os.environ.get("TESTBED_CTRL_C_SEED", "0"))

# command, seconds that it takes about
COMMANDS = {
    "simulate": (["simulate", "quickstart", "--set", "training.steps=200"], 6),
    "run": (["run", "smoke"], 9),
    "sweep": (["run", "smoke", "--set", "sweep=[{seed: 1},{seed: 2}]"], 16),
    "exec": (["exec", "smoke", "h1", "--", "sleep", "3"], 5),
    "verify": (["verify", "smoke", "--quick", "--sample", "1"], 15),
    "traces": (["traces", "generate", "links", "--preset", "cable", "--homes", "2000", "--out", "made.csv"], 4),
}
MOMENTS = max(len(COMMANDS), int(os.environ.get("TESTBED_CTRL_C", "0")))


@pytest.mark.parametrize("number", range(MOMENTS))
def test_ctrl_c_at_any_moment(number, tmp_path):
    name = list(COMMANDS)[number % len(COMMANDS)]
    words, seconds = COMMANDS[name]
    moment = random.Random(f"{SEED} {number}").uniform(0.3, seconds)
    out = ["--out", str(tmp_path / "runs")] if name in ("simulate", "run", "sweep") else []
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", *words, *out], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGINT)
    try:
        shown, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        pytest.fail(f"{name} goes on after Ctrl-C at {moment:.2f} s: {process.communicate()[0][-2000:]}")
    where = f"{name}, Ctrl-C at {moment:.2f} s: exit code {process.returncode}\n{shown[-3000:]}"
    # -2: Python itself was still starting. 0: it was done before.
    assert process.returncode in (130, -2, 0), where
    assert "Traceback" not in shown or process.returncode == -2, where
    assert "Error:" not in shown, where
    for manifest in tmp_path.glob("runs/*/manifest.json"):
        assert json.loads(manifest.read_text())["status"] in ("complete", "interrupted"), where
        for line in (manifest.parent / "events.jsonl").read_text().splitlines():
            json.loads(line)
