"""`testbed rerun`: the run's own experiment again, and what differs named."""

import json
import shutil

import pytest
import yaml
from click.testing import CliRunner

from testbed.cli import cli
from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup
from testbed.measurement.run_folder import RunFolder
from testbed.shipped import SHIPPED
from testbed.studies import rerunning
from testbed.studies.running import manifest_now


def _run(tmp_path, name, *, overrides=(), losses=(5.0, 4.0), trace=None):
    """A folder as a simulated run of smoke leaves it, with these losses."""
    links = (f"links={{trace: {trace}}}",) if trace else ()
    setup = run_setup(load_experiment("smoke", ("engine=simulation", *links, *overrides), seed=5))
    folder = RunFolder.create(tmp_path, name)
    folder.write_experiment(yaml.safe_dump(setup.loaded.data))
    folder.write_plan(setup.plan)
    folder.write_manifest(**manifest_now(setup))
    for i, loss in enumerate(losses):
        folder.recorder.append(
            {
                "t": i + 1.0,
                "node": "server",
                "event": "step",
                "step": i,
                "loss": loss,
                "start": float(i),
                "end": i + 1.0,
                "samples": 8,
                "attempt": 0,
                "devices": 3,
            }
        )
    folder.finish()
    return RunFolder.open(folder.path)


def test_the_same_experiment_is_set_up_again(tmp_path):
    folder = _run(tmp_path, "a", overrides=("training.steps=7",))
    setup = rerunning.setup_again(folder)
    assert setup.loaded.experiment.seed == 5
    assert setup.loaded.experiment.training.steps == 7
    assert setup.loaded.experiment.engine == "simulation"
    assert rerunning.before_it(folder, setup, manifest_now(setup)) == []


def test_what_differs_before_it_is_named(tmp_path):
    trace = tmp_path / "links.csv"
    shutil.copy(SHIPPED / "traces" / "links" / "quickstart.csv", trace)
    folder = _run(tmp_path, "a", trace=trace)
    versions = folder.manifest["versions"] | {"torch": "1.0"}
    folder.write_manifest(versions=versions, kernel="4.19")
    trace.write_text(trace.read_text() + "\n")
    setup = rerunning.setup_again(folder)
    texts = [str(d) for d in rerunning.before_it(folder, setup, manifest_now(setup))]
    assert any(t.startswith("versions.torch: 1.0 → ") for t in texts)
    assert any(t.startswith("kernel: 4.19 → ") for t in texts)
    assert any(t.startswith("inputs.links.trace.sha256: ") for t in texts)
    assert len(texts) == 3


def test_what_differs_in_the_results_is_named(tmp_path):
    a, b = _run(tmp_path, "a"), _run(tmp_path, "b", losses=(5.0, 4.25))
    texts = [str(d) for d in rerunning.results(a, b)]
    assert "loss of step 1, the largest difference of 2: 4.000000 → 4.250000" in texts
    assert any(t.startswith("median step time: 1 s → 1 s (+0.0 %)") for t in texts)
    assert not [t for t in map(str, rerunning.results(a, _run(tmp_path, "c"))) if t.startswith("loss")]


def test_a_folder_without_its_experiment_is_refused(tmp_path):
    folder = _run(tmp_path, "a")
    (folder.path / "experiment.yaml").unlink()
    with pytest.raises(InputError, match="can't be run again"):
        rerunning.setup_again(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("name: [", "experiment.yaml line 1: is not valid YAML"), ("", "experiment.yaml: is empty")]
)
def test_a_folder_whose_experiment_is_damaged_is_refused(tmp_path, text, message):
    folder = _run(tmp_path, "a")
    (folder.path / "experiment.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        rerunning.setup_again(folder)


def test_from_the_command_line(tmp_path):
    first = CliRunner().invoke(cli, ["simulate", "smoke", "--tensors", "real", "--out", str(tmp_path / "a")])
    assert first.exit_code == 0, first.output
    (folder,) = (tmp_path / "a").iterdir()
    again = CliRunner().invoke(cli, ["rerun", str(folder), "--out", str(tmp_path / "b")])
    assert again.exit_code == 0, again.output
    assert "software, machine, inputs and plan are as they were" in again.output
    assert "the losses are the same, step by step" in again.output
    (other,) = (tmp_path / "b").iterdir()
    assert json.loads((other / "manifest.json").read_text())["seed"] == 1
