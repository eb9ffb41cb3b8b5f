import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from synthetic_run import Synthetic, write_run

from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec
from testbed.errors import InputError, TestbedError
from testbed.measurement.run_folder import RunFolder, check_space
from testbed.runtime.interface import Plan

SMALL = Synthetic(homes=3, steps=4, micro_batches=2, churn=())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs"), SMALL)


def test_many_at_once_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: RunFolder.create(tmp_path, "same name"), range(24)))
    assert len({f.path for f in folders}) == 24
    assert all(f.path.name.startswith("same-name-") for f in folders)
    assert all(json.loads((f.path / "manifest.json").read_text())["status"] == "running" for f in folders)


@pytest.mark.parametrize(
    ("name", "expected"), [("../../etc", "etc-"), ("", "run-"), ("a/b c", "a-b-c-"), (".", "run-")]
)
def test_names_can_not_leave_the_folder(tmp_path, name, expected):
    folder = RunFolder.create(tmp_path, name)
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith(expected)


def test_every_file_of_the_contract_is_written(run):
    names = {p.name for p in run.iterdir()}
    assert names >= {
        "manifest.json",
        "experiment.yaml",
        "plan.json",
        "events.jsonl",
        "events.parquet",
        "steps.csv",
        "links.parquet",
        "fidelity.json",
        "timeline.json",
        "logs",
    }
    assert not [n for n in names if "partial" in n]
    steps = pd.read_csv(run / "steps.csv")
    columns = ["step", "loss", "start_s", "end_s", "step_time_s", "samples", "attempt", "devices"]
    assert list(steps.columns) == columns
    assert steps["step"].tolist() == [0, 1, 2, 3]
    assert steps["step_time_s"].tolist() == pytest.approx((steps["end_s"] - steps["start_s"]).tolist())
    links = pd.read_parquet(run / "links.parquet")
    assert set(links["source"]) == {"set", "measured", "probe"}
    held = links[(links["source"] == "set") & (links["node"] == "h1") & (links["quantity"] == "rate_down")]
    assert held["start_s"].tolist()[1:] == pytest.approx(held["end_s"].tolist()[:-1])
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["verdict"] == "VALID"
    assert manifest["ended"] >= manifest["started"]


def test_a_plan_is_written_whatever_it_holds(tmp_path):
    device = Device("h1", 1e9, 10, Link(1.0, float("inf")))
    plan = Plan("x", ModelSpec(), TrainingSpec(), Cluster(device, (device,)), data={"path": Path("/a"), "set": {2, 1}})
    folder = RunFolder.create(tmp_path, "plan")
    folder.write_plan(plan)
    assert folder.plan()["data"] == {"path": "/a", "set": [1, 2]}
    assert folder.plan()["cluster"]["devices"][0]["link"]["downlink_bps"] is None


def test_it_opens_by_path_and_by_name(run):
    assert RunFolder.open(run).manifest["name"] == "synthetic"
    assert RunFolder.open(run.name, base=run.parent).path == run


def test_a_name_that_is_no_run_gets_the_nearest(run):
    with pytest.raises(InputError, match="no such run folder") as caught:
        RunFolder.open(run.name[:-2], base=run.parent)
    assert run.name in caught.value.hint
    with pytest.raises(InputError, match="no such run folder") as caught:
        RunFolder.open(run.parent / "syntetic")
    assert run.name in caught.value.hint


def test_other_folders_and_files_are_no_runs(run, tmp_path):
    with pytest.raises(InputError, match="no run folder: it has neither manifest.json"):
        RunFolder.open(tmp_path)
    with pytest.raises(InputError, match="no run folder") as caught:
        RunFolder.open(run.parent)
    assert run.name in caught.value.hint
    with pytest.raises(InputError, match="a file; expected a run folder") as caught:
        RunFolder.open(run / "steps.csv")
    assert str(run) in caught.value.hint


@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_broken_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="manifest.json"):
        RunFolder.open(tmp_path)


def test_a_run_whose_process_is_gone_was_interrupted(tmp_path):
    code = (
        "import sys; from testbed.measurement.run_folder import RunFolder\n"
        "print(RunFolder.create(sys.argv[1], 'x').path)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    folder = RunFolder.open(done.stdout.strip())
    assert folder.manifest["status"] == "running"
    assert folder.status == "interrupted"
    assert RunFolder.create(tmp_path, "ours").status == "running"


def test_a_crashed_run_can_be_derived(tmp_path):
    path = write_run(tmp_path, SMALL, status=None)
    assert not (path / "steps.csv").exists()
    folder = RunFolder.open(path)
    assert folder.verdict().label == "VALID"
    folder.derive()
    assert len(pd.read_csv(path / "steps.csv")) == 4
    assert (path / "timeline.json").exists()


def test_events_are_there_while_the_run_goes_on(tmp_path):
    folder = RunFolder.create(tmp_path, "x")
    folder.recorder.append({"t": 1.0, "node": "h1", "event": "churn", "action": "leave"})
    assert folder.events()["action"].tolist() == ["leave"]
    folder.finish("interrupted", error="by SIGINT")
    manifest = RunFolder.open(folder.path).manifest
    assert (manifest["status"], manifest["error"]) == ("interrupted", "by SIGINT")


def test_an_unknown_status_is_a_bug(tmp_path):
    with pytest.raises(ValueError, match="expected one of running"):
        RunFolder.create(tmp_path, "x").write_manifest(status="done")


def test_no_timeline_when_the_experiment_wants_none(tmp_path):
    folder = RunFolder.create(tmp_path, "x")
    folder.write_manifest(experiment={"outputs": {"timeline": False}})
    folder.finish()
    assert not (folder.path / "timeline.json").exists()
    assert (folder.path / "steps.csv").exists()


@pytest.mark.parametrize(("number", "text"), [(28, "No space left"), (13, "Permission denied"), (30, "Read-only")])
def test_a_folder_that_can_not_be_written_says_why(tmp_path, monkeypatch, number, text):
    folder = RunFolder.create(tmp_path, "x")

    def refuse(*_, **__):
        raise OSError(number, "refused")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(TestbedError, match=text) as caught:
        folder.write_manifest(status="failed")
    assert "--out" in caught.value.hint
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(TestbedError, match=text):
        RunFolder.create(tmp_path, "y")


def test_a_base_that_is_a_file(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(TestbedError, match="can't write"):
        RunFolder.create(tmp_path / "runs", "x")


def test_a_nearly_full_disk_is_refused(tmp_path):
    check_space(tmp_path, 1)
    with pytest.raises(TestbedError, match="a run needs"):
        check_space(tmp_path, 1e20)
    with pytest.raises(TestbedError, match="a run needs"):
        check_space(tmp_path / "not" / "yet", 1e20)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value"), [("status", ["complete"]), ("name", 5), ("experiment", "x"), ("process", [])]
)
def test_a_manifest_of_other_types_is_refused(tmp_path, key, value):
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "a", "status": "complete", key: value}))
    with pytest.raises(InputError, match=f"manifest.json, {key}: .*expected"):
        RunFolder.open(tmp_path)


def test_a_name_that_no_system_takes_is_refused():
    with pytest.raises(InputError, match="File name too long"):
        RunFolder.open("x" * 400)


def test_events_without_a_time_are_left_out(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        '{"t": "x", "node": "h1", "event": "step"}\n{"node": "h1", "event": "step"}\n{"t": 1, "node": "h1", "event": "e"}\n'
    )
    assert RunFolder.open(tmp_path).events()["t"].tolist() == [1.0]
