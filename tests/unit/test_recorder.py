import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest

from testbed.errors import TestbedError
from testbed.measurement import recorder as recorder_module
from testbed.measurement.events import FIELDS, NESTED_FIELDS, TEXT_FIELDS, frame, select
from testbed.measurement.recorder import EventRecorder, read_events


def _event(i, **fields):
    return {"t": float(i), "node": "h1", "event": "send", "bytes": i, **fields}


def test_what_is_appended_is_read_back_from_either_file(tmp_path):
    with EventRecorder(tmp_path) as recorder:
        recorder.append({"t": 0, "node": "testbed", "event": "plan", "devices": ["h1", "h2"], "note": None})
        recorder.append({"t": 1.5, "node": "server", "event": "step", "loss": float("nan"), "devices": 2, "step": 0})
        recorder.append({"t": 2, "node": "server", "event": "step", "loss": float("inf"), "step": np.int64(1)})
        recorder.append({"t": 2, "node": "ünï\n", "event": "mine", "own": {"a": [1, None]}, "peer": "1"})
    from_parquet = read_events(tmp_path)
    (tmp_path / "events.parquet").unlink()
    from_lines = read_events(tmp_path)
    pd.testing.assert_frame_equal(from_parquet, from_lines)
    assert list(from_parquet["event"]) == ["plan", "step", "step", "mine"]
    assert from_parquet["devices"].tolist() == [["h1", "h2"], 2, None, None]
    assert from_parquet["own"].iloc[3] == {"a": [1, None]}
    assert np.isnan(from_parquet["loss"].iloc[1])
    assert from_parquet["loss"].iloc[2] == np.inf
    assert from_parquet["peer"].tolist() == [None, None, None, "1"]  # a name, whatever it looks like


def test_many_threads_lose_nothing_and_keep_their_order(tmp_path):
    with EventRecorder(tmp_path, flush_every_s=0.01) as recorder:

        def write(thread):
            for i in range(500):
                recorder.append({"t": float(i), "node": f"h{thread}", "event": "send"})

        threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    events = read_events(tmp_path)
    assert len(events) == 3000
    for _, own in events.groupby("node"):
        assert own["t"].tolist() == [float(i) for i in range(500)]


def test_a_killed_process_leaves_all_but_the_last_second(tmp_path):
    code = (
        "import sys, time; from testbed.measurement.recorder import EventRecorder\n"
        "r = EventRecorder(sys.argv[1])\n"
        "[r.append({'t': float(i), 'node': 'h1', 'event': 'send'}) for i in range(100)]\n"
        "time.sleep(1.1); print('ready', flush=True)\n"
        "while True: r.append({'t': 1e3, 'node': 'h1', 'event': 'late'}); time.sleep(0.001)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert not (tmp_path / "events.parquet").exists()
    assert (read_events(tmp_path)["event"] == "send").sum() == 100


@pytest.mark.parametrize("rest", [b'{"t": 3.0, "no', b"\xff\x00", b"[1, 2]\n", b"\n", b"null\n"])
def test_lines_that_are_no_events_are_left_out(tmp_path, rest):
    lines = [json.dumps(_event(i)).encode() for i in range(3)]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n" + rest)
    assert read_events(tmp_path)["bytes"].tolist() == [0, 1, 2]


def test_a_broken_parquet_file_falls_back_on_the_lines(tmp_path):
    with EventRecorder(tmp_path) as recorder:
        recorder.append(_event(7))
    parquet = tmp_path / "events.parquet"
    parquet.write_bytes(parquet.read_bytes()[:-20])
    assert read_events(tmp_path)["bytes"].tolist() == [7]


def test_no_files_no_events(tmp_path):
    events = read_events(tmp_path)
    assert len(events) == 0
    assert {"t", "node", "event"} <= set(events.columns)
    assert len(select(events, "step")) == 0
    assert "loss" in select(events, "step").columns


def test_a_value_that_is_no_json_is_refused_at_once_and_named(tmp_path):
    with EventRecorder(tmp_path) as recorder:
        with pytest.raises(TypeError, match="'send', field 'what'"):
            recorder.append(_event(0, what=object()))
        recorder.append(_event(1))
    assert len(read_events(tmp_path)) == 1


def test_a_closed_recorder_refuses_events(tmp_path):
    recorder = EventRecorder(tmp_path)
    recorder.close()
    recorder.close()
    with pytest.raises(RuntimeError, match="closed"):
        recorder.append(_event(0))


def test_a_full_disk_is_told_and_no_line_is_torn(tmp_path):
    """A real limit on the file's size: the kernel writes half a batch, then refuses."""
    code = (
        "import resource, signal, sys; from testbed.errors import TestbedError\n"
        "from testbed.measurement.recorder import EventRecorder\n"
        "r = EventRecorder(sys.argv[1], flush_every_s=60)\n"
        "event = {'t': 0.0, 'node': 'h1', 'event': 'send', 'tag': 'x' * 100}\n"
        "[r.append(event) for _ in range(10)]; r.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "[r.append(event) for _ in range(100)]\n"
        "try: r.flush()\n"
        "except TestbedError as e: print('flush:', e.message)\n"
        "try: r.append(event)\n"
        "except TestbedError as e: print('append:', e.message)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1)); r.flush(); r.append(event); r.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert "flush: can't write" in done.stdout
    assert "append: can't write" in done.stdout
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 112  # nothing lost, nothing twice
    assert all(json.loads(line)["tag"] == "x" * 100 for line in lines)


def test_no_space_says_what_to_do(tmp_path, monkeypatch):
    recorder = EventRecorder(tmp_path, flush_every_s=60)
    recorder.append(_event(0))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder_module.os, "write", full)
    with pytest.raises(TestbedError, match="No space left") as caught:
        recorder.close()
    assert "--out" in caught.value.hint


def test_numbers_are_numbers_and_names_are_text():
    table = frame([{"t": 0, "node": 1, "event": "churn", "late": None}, {"t": 1, "node": "h", "event": "x", "late": 2}])
    assert table["node"].tolist() == ["1", "h"]
    assert table["late"].dtype == float
    assert select(table, "churn")["late"].isna().all()


def test_the_fields_of_each_kind_are_those_in_the_docs(request):
    """docs/events.md and events.FIELDS say the same."""
    documented = {}
    for line in (request.config.rootpath / "docs" / "events.md").read_text().splitlines():
        cells = [c.strip() for c in line.split("|")]
        if len(cells) >= 4 and cells[1].strip("`") in FIELDS:
            names = "".join(_outside_brackets(cells[2])).split(",")
            documented[cells[1].strip("`")] = {n.strip() for n in names}
    assert documented == {kind: set(fields) for kind, fields in FIELDS.items()}
    known = {f for fields in FIELDS.values() for f in fields} | {"node", "event"}
    assert known >= TEXT_FIELDS | NESTED_FIELDS


def _outside_brackets(text):
    depth = 0
    for letter in text:
        depth += letter == "("
        if depth == 0:
            yield letter
        depth -= letter == ")"


def test_kinds_and_fields_of_ones_own_are_kept():
    table = frame([{"t": 0, "node": "a", "event": "mine", "start": 1, "own": 2}, _event(1, mine=3, loss=None)])
    assert set(select(table, "mine").columns) == {"t", "node", "event", "start", "own"}
    assert select(table, "send")["mine"].tolist() == [3]
