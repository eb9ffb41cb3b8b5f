"""A delay backend added by its docs page alone, in a package outside the project."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from scratch_package import ROOT, blocks, install


@pytest.fixture
def testbed(tmp_path):
    """Runs the command line with the page's package installed."""
    (code,) = blocks("delay.md", "Add a delay backend", "python")
    (pyproject,) = blocks("delay.md", "Add a delay backend", "toml")
    folder = tmp_path / "site"
    folder.mkdir()
    environment = install(folder, "calm_delay", code, pyproject)

    def run(*args: str) -> subprocess.CompletedProcess:
        argv = [sys.executable, "-m", "testbed", *args]
        return subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=280)

    return run


CALM = ("--set", "network.delay_backend=calm", "--set", "links.jitter=3 ms", "--set", "links.loss=0.01")


def test_the_dry_run_prints_its_lines_and_bad_names_are_refused(testbed):
    done = testbed("run", "smoke", "--dry-run", *CALM)
    assert done.returncode == 0, done.stderr
    assert "deviation 0.000 ms, loss 0.00e+00 each way" in done.stdout
    done = testbed("run", "smoke", "--dry-run", "--set", "network.delay_backend=clam")
    assert done.returncode == 2
    assert "did you mean 'calm'" in done.stderr
    done = testbed("run", "smoke", "--dry-run", *CALM, "--set", "network.switch=ovs")
    assert done.returncode == 2
    assert "'ovs' with delay backend 'calm', which works with bridge; " in done.stderr


@pytest.mark.root
def test_the_doctor_tries_its_needs_and_shows_them(testbed):
    shown = testbed("doctor").stdout
    assert "a link that can be set up" in shown
    assert "delay backend calm" in shown
    assert json.loads(testbed("doctor", "--json").stdout)["calm_link"]["available"]


@pytest.mark.emulation
@pytest.mark.root
def test_a_run_has_its_delays_and_no_jitter(testbed, capabilities, tmp_path):
    if not capabilities.delay["nfqueue"].available:
        pytest.skip(f"NFQUEUE: {capabilities.delay['nfqueue'].how}")
    done = testbed("run", "smoke", *CALM, "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["delay_backend"] == "calm"
    assert "# calm: no jitter, no loss" in manifest["commands"]
