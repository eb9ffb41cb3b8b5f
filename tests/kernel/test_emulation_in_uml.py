"""The emulation's own tests on a kernel with netem, Open vSwitch and cgroup v2; tolerances: tests/emulation/steady.py."""

from __future__ import annotations

import re
import sys

import pytest
from second_kernel import ANY, run

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(600)]
FILES = ["tests/emulation/test_delay.py", "tests/emulation/test_workers_cgroups.py"]
CHOSEN = (
    "(test_delay and netem and (round_trip or shared_links or changes_hold or jitter or reordering or second_start "
    "or stop_removes)) or (cgroups and v2)"
)
LEAST = 7 + 4


def test_tests_of_the_emulation_pass(tmp_path):
    done = run(
        [
            *ANY,
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            tmp_path / "inside",
            *FILES,
            "-k",
            CHOSEN,
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) >= LEAST, done.stdout
