"""The project below a folder that only root may look into, with a space and an umlaut in its path."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.emulation]
ROOT = Path(__file__).resolve().parents[2]

# In a mount namespace of its own, the project and its environment lie below a private home, and nowhere else on the
# search path: what a worker imports late, it must be able to read there.
IN_PRIVATE_HOME = """
set -e
mount --bind "$1" "$2"
cd "$2"
shift 2
exec env --unset=PYTHONPATH "$@"
"""
LARGE_MESSAGES = ["--set", "model.d_model=256", "--set", "model.sequence=128"]  # 131 kB: zmq then loads one module more


@pytest.fixture
def in_private_home(tmp_path):
    """Runs a command in the project as it would lie in somebody's home; its Python is {python}."""
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip(f"the environment is not {ROOT / '.venv'}, which is what lies in the private home")
    home = tmp_path / "Jörgs private home"
    project = home / "test bed"
    project.mkdir(parents=True)
    home.chmod(0o700)

    def run(*words, **options):
        command = ["unshare", "--mount", "sh", "-c", IN_PRIVATE_HOME, "sh", str(ROOT), str(project)]
        return subprocess.run(
            [*command, ".venv/bin/python", *words], capture_output=True, text=True, timeout=150, **options
        )

    return run


def test_workers_read_what_they_import_late(in_private_home, tmp_path):
    done = in_private_home("-m", "testbed", "run", "smoke", *LARGE_MESSAGES, "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3" in done.stdout or "steps" in done.stdout.lower()


def test_the_speed_of_the_cores_is_known(in_private_home):
    shape = '{"samples": 1, "sequence": 16, "d_model": 32, "heads": 2, "d_ff": 64}'
    done = in_private_home("-m", "testbed.emulation.calibration", shape, "1")
    assert len(json.loads(done.stdout)) == 1, done.stdout + done.stderr


def test_a_program_of_the_project_runs_in_hosts(in_private_home):
    done = in_private_home(
        *["-m", "testbed", "exec", "smoke", "--hosts", "h1,h2", "--", ".venv/bin/python", "examples/ddp.py"]
    )
    assert done.returncode == 0, done.stdout + done.stderr
