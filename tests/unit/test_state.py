"""A run's state file."""

from __future__ import annotations

import json
import os
import threading

import pytest

from testbed.emulation import cleanup, state
from testbed.emulation.state import RunState, process_value
from testbed.errors import CapabilityError, InputError


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "STATE_DIR", tmp_path / "testbed")
    return tmp_path / "testbed"


def test_objects_are_in_the_file_as_soon_as_they_are_recorded(tmp_path):
    run = RunState.create(tmp_path, command="testbed run x")
    run.record("netns", run.netns("h1"))
    run.record_many("path", ["/a/b", "/a/c"])
    run.record("netns", run.netns("h1"))  # twice
    run.forget("path", "/a/b")
    run.forget("path", "/never/there")
    again = RunState.load(run.path)
    assert again.run_id == run.run_id
    assert again.values("netns") == [f"tb-{run.run_id}-h1"]
    assert again.values("path") == ["/a/c"]
    assert again.owner == process_value(os.getpid())
    assert (again.command, again.run_dir) == ("testbed run x", tmp_path)


def test_close_removes_the_file_and_the_last_one_the_directory(directory):
    one, two = RunState.create(), RunState.create()
    one.close()
    assert not one.path.exists()
    assert two.path.exists()
    two.close()
    assert not directory.exists()
    two.forget("netns", "x")  # late: must not bring the file back
    with pytest.raises(RuntimeError, match="never be removed"):
        two.record("netns", "x")
    assert not directory.exists()


def test_run_ids_differ(directory, monkeypatch):
    ids = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(state.names, "new_run_id", lambda: next(ids))
    assert [RunState.create().run_id, RunState.create().run_id] == ["aaaaaa", "bbbbbb"]
    assert sorted(os.listdir(directory)) == ["aaaaaa.json", "bbbbbb.json"]


def test_many_threads_record_at_once():
    run = RunState.create()
    threads = [
        threading.Thread(target=lambda i=i: [run.record("path", f"/p/{i}/{k}") for k in range(20)]) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(RunState.load(run.path).values("path")) == 160


def test_an_unknown_kind_is_a_bug():
    with pytest.raises(ValueError, match="netns, cgroup"):
        RunState.create().record("file", "/x/y")


def test_without_permission_the_error_says_what_to_do(monkeypatch, directory):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(directory), "mkdir", refuse)
    with pytest.raises(CapabilityError, match="needs root") as error:
        RunState.create()
    assert "sudo" in error.value.hint


def test_runs_lists_valid_files_only(directory):
    run = RunState.create()
    (directory / "abcdef.json").write_text("{}")
    (directory / "notes.json").write_text("{}")
    (directory / "123456.json").write_text("")
    assert [found.run_id for found in cleanup.runs()] == [run.run_id]


def test_an_unknown_run_id_names_the_nearest():
    run = RunState.create()
    wrong = run.run_id[:-1] + ("0" if run.run_id[-1] != "0" else "1")
    with pytest.raises(InputError) as error:
        cleanup.clean(wrong)
    assert run.run_id in str(error.value)
    run.close()
    with pytest.raises(InputError, match="none to clean"):
        cleanup.clean(wrong)


def test_a_living_run_is_skipped():
    run = RunState.create()
    assert cleanup.clean(run.run_id).skipped == [run.run_id]
    assert run.path.exists()


def test_a_file_that_was_being_written_when_its_run_died_is_removed(directory):
    living = RunState.create()
    (directory / "aaaaaa.tmp").write_text(json.dumps({"owner": "1:0"}))
    (directory / "bbbbbb.tmp").write_text(json.dumps({"owner": process_value(os.getpid())}))
    cleanup.clean(living.run_id)
    assert not (directory / "aaaaaa.tmp").exists()
    assert (directory / "bbbbbb.tmp").exists()


def test_a_process_is_known_by_pid_and_start_time():
    here = process_value(os.getpid())
    assert cleanup.is_running(here)
    assert not cleanup.is_running(f"{os.getpid()}:1")
    assert not cleanup.is_running("4194999:1")
    assert state.start_time(4194999) is None
