"""`make test` runs all parts, whatever fails, and says at the end what all of them found."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def suite(tmp_path):
    """suite(unit=…, kernel=…, emulation=…): starts scripts/test.py in a project with these test files."""
    project = tmp_path / "Jörgs test bed"
    (project / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test.py", project / "scripts")
    for package in ("testbed", "runners"):
        (project / package).mkdir()
        (project / package / "__init__.py").write_text("")

    def start(**tests):
        for part, text in tests.items():
            (project / "tests" / part).mkdir(parents=True)
            (project / "tests" / part / f"test_{part}.py").write_text(text)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
        return subprocess.Popen(
            [sys.executable, "scripts/test.py"],
            cwd=project,
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


PASSES = "def test_passes(): pass\n"


def test_every_part_runs_and_the_worst_counts(suite):
    process = suite(
        unit=PASSES
        + "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\ndef test_fails(): assert False, 'seen'\n",
        kernel="import os\ndef test_dies(): os._exit(9)\n",
        emulation="not python\n",
    )
    out, _ = process.communicate(timeout=200)
    assert "FAILED tests.unit.test_unit::test_fails - " in out
    assert "ERROR tests.kernel.test_kernel::test_dies - " in out
    assert "tests/emulation ended with exit code 2" in out
    assert out.splitlines()[-1].startswith("1 passed, 1 failed, 1 skipped, "), out
    assert process.returncode == 2


def test_all_pass(suite):
    process = suite(unit=PASSES, kernel=PASSES, emulation=PASSES)
    out, _ = process.communicate(timeout=200)
    assert out.splitlines()[-1] == "3 passed, 0 failed, 0 skipped", out
    assert process.returncode == 0


def test_ctrl_c_ends_it(suite, tmp_path):
    started = tmp_path / "started"
    wait = f"import pathlib, time\ndef test_waits():\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(60)\n"
    process = suite(unit=wait, kernel=PASSES, emulation=PASSES)
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "== tests/kernel" not in out
