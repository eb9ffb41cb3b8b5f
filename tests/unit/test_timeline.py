"""The trace that Perfetto opens: valid, complete, and no slices of a track overlap."""

import json
from collections import defaultdict

import pytest
from synthetic_run import Synthetic, events_of

from testbed.measurement.events import frame
from testbed.measurement.timeline import trace_json

EVENTS = events_of(Synthetic(homes=3, steps=6, micro_batches=3, churn=((6.0, 1, 6.0),)))


@pytest.fixture(scope="module")
def trace():
    return json.loads(trace_json(frame(EVENTS)))["traceEvents"]


def _named(trace, kind):
    return {(e["pid"], e.get("tid")): e["args"]["name"] for e in trace if e["ph"] == "M" and e["name"] == kind}


def test_a_process_a_device_with_its_tracks(trace):
    processes = {name: pid for (pid, _), name in _named(trace, "process_name").items()}
    assert list(processes) == ["training", "server", "h1", "h2", "h3"]
    threads = defaultdict(set)
    for (pid, _), name in _named(trace, "thread_name").items():
        threads[pid].add(name)
    assert {"compute", "network up", "network down", "status"} <= threads[processes["h2"]]
    used = {(e["pid"], e["tid"]) for e in trace if e["ph"] == "X"}
    assert used == set(_named(trace, "thread_name"))


def test_slices_of_a_track_do_not_overlap(trace):
    tracks = defaultdict(list)
    for e in trace:
        if e["ph"] == "X":
            tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    assert len(tracks) > 12
    for slices in tracks.values():
        slices.sort()
        assert all(a[1] <= b[0] + 0.01 for a, b in zip(slices, slices[1:]))  # times are rounded to nanoseconds


def test_every_computation_and_message_is_there_once(trace):
    count = defaultdict(int)
    for e in trace:
        if e["ph"] == "X":
            count[e["cat"]] += 1
    kinds = defaultdict(int)
    for e in EVENTS:
        kinds[e["event"]] += 1
    assert count["compute"] == kinds["compute"]
    assert count["network down"] == kinds["transfer"]
    assert count["network up"] == kinds["send"]  # those that arrived until their last byte, the others as sent
    assert count["steps"] == kinds["step"]
    offline = [e for e in trace if e["ph"] == "X" and e["name"].startswith("offline")]
    assert [round(e["dur"] / 1e6, 3) for e in offline] == [6.0]


def test_times_are_microseconds(trace):
    step = next(e for e in EVENTS if e["event"] == "step")
    shown = next(e for e in trace if e["name"] == f"step {step['step']}")
    assert shown["ts"] == pytest.approx(step["start"] * 1e6, abs=0.01)
    assert shown["dur"] == pytest.approx((step["end"] - step["start"]) * 1e6, abs=0.01)
    assert shown["args"]["loss"] == pytest.approx(step["loss"])


def test_it_is_strict_json_whatever_the_numbers():
    odd = [
        {"t": 1.0, "node": "h1", "event": "step", "step": 0, "loss": float("nan"), "start": 0.0, "end": 1.0},
        {"t": 1.0, "node": "h1", "event": "compute"},
        {"t": 2.0, "node": 'a"b\n', "event": "link", "down_bps": float("inf")},
    ]
    text = trace_json(frame(odd))

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(text, parse_constant=refuse)["traceEvents"]


def test_an_empty_run_is_an_empty_trace():
    assert all(e["ph"] == "M" for e in json.loads(trace_json(frame([])))["traceEvents"])
