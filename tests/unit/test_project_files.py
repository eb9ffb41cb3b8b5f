"""Files that no other test reads are right too."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.stem)
def test_ready_made_experiment_can_be_planned(path):
    setup = run_setup(load_experiment(path))
    assert setup.plan.predicted["step_time_s"] > 0
    assert setup.loaded.experiment.description


@pytest.mark.skipif(shutil.which("vagrant") is None, reason="vagrant is not installed (apt-get install vagrant)")
def test_vagrantfile(tmp_path):
    shutil.copy(ROOT / "Vagrantfile", tmp_path)
    done = subprocess.run(["vagrant", "validate", "--ignore-provider"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", ["scripts/setup", ".ci/run"])
def test_scripts_parse(script):
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_experiment_in_the_docs_is_valid(tmp_path):
    text = (ROOT / "docs" / "experiment.md").read_text()
    block = text.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(block)
    path = tmp_path / "e.yaml"
    path.write_text(block)
    run_setup(load_experiment(path))
