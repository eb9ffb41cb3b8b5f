"""The netem backend on a kernel that has netem, through the same tests as the other backend."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import uml

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
CHOSEN = ("netem and (round_trip or shared_links or changes_hold or jitter or reordering or second_start "
          "or stop_removes)")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> uml.Uml:
    if os.geteuid():
        pytest.skip("needs root: the second kernel writes to this file system as the user who boots it")
    found = uml.find(tmp_path_factory.mktemp("uml"))
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_the_netem_backend_passes_the_delay_tests(kernel):
    status, output = kernel.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp",
         str(kernel.folder / "pytest"), "tests/emulation/test_delay.py", "-k", CHOSEN],
        ROOT, timeout_s=150,
    )
    assert status == 0, output
    assert re.search(r"^7 passed", output, re.MULTILINE), output
