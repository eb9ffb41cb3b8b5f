"""The package as pip installs it, in an empty folder; the source tree is not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.experiment.loading import find_experiment, load_experiment
from testbed.shipped import EXPERIMENTS, SHIPPED

ROOT = Path(__file__).resolve().parents[2]


def test_ready_made_experiments_come_with_the_wheel(installed):
    done = installed("simulate", "quickstart", "--set", "training.steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VALID" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "two-level"),  # names a file of topologies/
        ("traces", "inspect", str(SHIPPED / "traces" / "links" / "dsl.csv")),
        ("plan", "scale-256"),  # device populations
    ],
)
def test_what_experiments_name_comes_with_the_wheel(installed, words):
    done = installed(*words)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", ["experiments", "traces", "topologies"])
def test_every_file_for_users_is_shipped(folder):
    expected = {p.relative_to(ROOT) for s in ("*.yaml", "*.csv") for p in (ROOT / folder).rglob(s)}
    shipped = {p.relative_to(SHIPPED) for p in map(SHIPPED.joinpath, expected) if p.is_file()}
    assert expected
    assert shipped == expected


def test_the_users_own_folder_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_experiment("smoke") == EXPERIMENTS / "smoke.yaml"
    own = tmp_path / "experiments" / "smoke.yaml"
    own.parent.mkdir()
    own.write_text((EXPERIMENTS / "smoke.yaml").read_text())
    assert find_experiment("smoke") == own
    trace = tmp_path / "traces" / "links" / "dsl.csv"
    assert load_experiment("smoke").file("traces/links/dsl.csv").is_relative_to(EXPERIMENTS.parent)
    trace.parent.mkdir(parents=True)
    trace.write_text("")
    assert load_experiment("smoke").file("traces/links/dsl.csv") == trace
    own.with_name("mine-alone.yaml").write_text("")
    with pytest.raises(InputError, match="no such experiment file") as caught:
        find_experiment("mine-alon")
    assert "mine-alone" in str(caught.value)


@pytest.mark.skipif(
    not Path("/usr/lib/python3/dist-packages/mininet").is_dir(), reason="Mininet is not installed (apt install mininet)"
)
def test_mininet_is_found_where_the_distribution_puts_it():
    """Also where the environment has none of its own, and nothing else of the system's comes along."""
    code = """
import sys
sys.path = [p for p in sys.path if "packages" not in p]
import testbed.emulation, mininet, importlib.util
assert mininet.__file__.startswith("/usr/lib/python3/dist-packages/"), mininet.__file__
import mininet.net
assert importlib.util.find_spec("apt") is None and importlib.util.find_spec("yaml") is None
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
