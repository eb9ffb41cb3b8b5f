"""The emulation's own tests on a kernel with netem, Open vSwitch and cgroup v2; tolerances: tests/emulation/steady.py."""

from __future__ import annotations

import re
import sys

import pytest
from second_kernel import ANY, run

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
CHOSEN = {
    "netem": (["tests/emulation/test_delay.py"], "netem and (round_trip or shared_links or changes_hold or jitter "
              "or reordering or second_start or stop_removes)", 7),
    "ovs and cgroup v2": (["tests/emulation/test_network_switches.py", "tests/emulation/test_workers_cgroups.py"],
                          "carries_the_network or v2", 6),
}


@pytest.mark.parametrize("what", CHOSEN)
def test_tests_of_the_emulation_pass(what, tmp_path):
    files, chosen, count = CHOSEN[what]
    done = run([*ANY, sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp",
                tmp_path / "inside", *files, "-k", chosen])
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) >= count, done.stdout
