"""A wrong place for results is bad input: refused with 2 and the reason, before anything starts, by every verb."""

import os
import tempfile
import threading
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from testbed.cli import cli, main
from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.measurement.run_folder import RunFolder, write_file
from testbed.outputs import check_file, check_folder
from testbed.report import build_report

TRACE = str(Path(__file__).resolve().parents[2] / "traces" / "links" / "quickstart.csv")
FOLDERS = [  # no experiment of theirs exists: the place is looked at first
    ["simulate", "gone", "--out"],
    ["recovery", "gone", "--out"],
    ["verify", "gone", "--out"],
    ["validate", "gone", "--output"],
    ["validate", "gone", "--runs"],
    ["results", "gone", "--output"],
    ["results", "gone", "--runs"],
]
FILES = [
    ["compare", "gone", "--html"],
    ["traces", "convert", "gone", "--out"],
    ["traces", "plot", "gone", "--out"],
    ["traces", "sample", "gone", "--homes", "1", "--out"],
    ["traces", "splice", "gone", "--out"],
    ["traces", "scale", "gone", "--out"],
    ["traces", "generate", "links", "--out"],
    ["traces", "generate", "availability", "--preset", "evening", "--out"],
]


def refusal(args, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    return said


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Names below an empty working directory, with what keeps them from being written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "nowhere").symlink_to("missing/target")
    return tmp_path


@pytest.mark.parametrize("args", FOLDERS, ids=" ".join)
def test_a_folder_that_can_not_be(args, places, capsys):
    assert "file: can't be written: file is no folder" in refusal([*args, "file"], capsys)
    assert "file is no folder" in refusal([*args, "file/below/it"], capsys)
    assert "nowhere is no folder" in refusal([*args, "nowhere"], capsys)
    assert "/proc/x/y: can't be written: " in refusal([*args, "/proc/x/y"], capsys)
    assert "File name too long" in refusal([*args, "x" * 300], capsys)
    assert "gone: no such experiment" in refusal([*args, "new/one"], capsys) or args[0] == "results"
    assert sorted(p.name for p in places.iterdir()) == ["file", "nowhere"]


@pytest.mark.parametrize("args", FILES, ids=" ".join)
def test_a_file_that_can_not_be(args, places, capsys):
    assert "no folder gone; expected one that exists" in refusal([*args, "gone/x.png"], capsys)
    assert "no folder file;" in refusal([*args, "file/x.png"], capsys)
    assert "/proc/x.png: can't be written: " in refusal([*args, "/proc/x.png"], capsys)
    assert "File name too long" in refusal([*args, "x" * 300], capsys)
    if "plot" not in args:
        assert "is a folder; expected the name of a file" in refusal([*args, "."], capsys)
    assert sorted(p.name for p in places.iterdir()) == ["file", "nowhere"]


def test_a_plots_name_is_one_of_files(places, capsys):
    (places / "x.html").mkdir()
    assert "x.html: can't be written: is a folder" in refusal(["traces", "plot", TRACE, "--out", "x"], capsys)
    assert "--out .: can't be written: is a folder" in refusal(["traces", "plot", TRACE, "--out", "."], capsys)


def test_run_and_rerun_look_before_they_start(places, capsys, monkeypatch):
    for name in ("capable", "check_kernel"):  # what only root may, and only some kernels can, comes first
        monkeypatch.setattr(f"testbed.studies.running.{name}", lambda *_: None)
    monkeypatch.setattr("testbed.studies.running.preflight", lambda *_: pytest.fail("the machine was measured first"))
    folder = RunFolder.create(places / "runs", "x")
    folder.write_experiment(yaml.safe_dump(load_experiment("smoke", ("engine=simulation",)).data))
    for args in (["run", "smoke"], ["run", "smoke", "--set", "engine=simulation"], ["rerun", folder.path]):
        assert "file is no folder" in refusal([*args, "--out", "file"], capsys)
        assert "/proc/x: can't be written: " in refusal([*args, "--out", "/proc/x"], capsys)
    assert sorted(p.name for p in places.iterdir()) == ["file", "nowhere", "runs"]
    assert CliRunner().invoke(cli, ["run", "smoke", "--dry-run", "--out", "file"]).exit_code == 0  # writes nothing


def test_report_looks_first(places, capsys, monkeypatch):
    run = RunFolder.create(places / "runs", "x").path
    before = sorted(run.rglob("*"))

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert f"{run}: can't be written: Permission denied" in refusal(["report", run], capsys)
    with pytest.raises(InputError):
        build_report(run)
    assert sorted(run.rglob("*")) == before


def test_good_places_are_left_as_they_are(tmp_path):
    for path in (tmp_path, tmp_path / "a" / "b"):
        check_folder(path)
    (tmp_path / "old").write_text("kept")
    for path in (tmp_path / "old", tmp_path / "new", "/dev/null"):
        check_file(path)
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "kept"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_file(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()
