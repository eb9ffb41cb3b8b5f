"""The table of what losses cost, from run folders with known times."""

import json

import pytest

from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.report.recovery import loss_of, markdown, row
from testbed.studies.recovering import pairs


def write(folder, steps, extra=()):
    """A run folder with (step, start, end, attempt) and further events."""
    folder.mkdir()
    events = [
        {"t": end, "node": "server", "event": "step", "step": s, "loss": 1.0, "start": start, "end": end, "samples": 8,
         "attempt": attempt, "devices": 2}
        for s, start, end, attempt in steps
    ]  # fmt: skip
    lines = sorted([*events, *extra], key=lambda e: e["t"])
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in lines))
    (folder / "manifest.json").write_text(json.dumps({"name": folder.name, "verdict": "VALID", "status": "complete"}))
    return folder


def lost(at, noticed, over, step, lost_steps=0):
    return [
        {"t": at, "node": "h2", "event": "churn", "action": "leave", "mode": "kill", "late": 0.0, "cause": "trace"},
        {"t": noticed, "node": "server", "event": "member", "kind": "left", "peer": "h2", "generation": 1, "detection": 1.0},
        {"t": over, "node": "server", "event": "recovery", "kind": "replan", "peer": "h2", "detected": 1.0, "start": noticed,
         "end": over, "restored": over, "step": step, "lost_steps": lost_steps},
    ]  # fmt: skip


CALM = [(s, 2.0 * s, 2.0 * s + 2, 1) for s in range(6)]


def test_a_step_that_waits_for_a_rollback(tmp_path):
    calm = write(tmp_path / "calm", CALM)
    steps = [*CALM[:3], (1, 8.5, 10.5, 2), (2, 10.5, 12.5, 2), (3, 12.5, 15.0, 2), (4, 15.0, 17.0, 1)]
    disturbed = write(tmp_path / "disturbed", steps, lost(6.5, 7.75, 12.5, 3, lost_steps=2))
    found = loss_of(disturbed, calm)
    assert (found.step, found.last, found.lost_steps, found.valid) == (3, 3, 2, True)
    assert found.detection_s == pytest.approx(1.25)
    assert found.disturbed_s == pytest.approx(9.0)  # from 6, when step 2 had been got past, to 15
    assert found.extra_s == pytest.approx(7.0)
    assert found.after_detection_s == pytest.approx(5.75)


def test_a_device_that_is_missed_in_the_next_step(tmp_path):
    calm = write(tmp_path / "calm", CALM)
    steps = [(0, 0, 2, 1), (1, 2, 4, 1), (2, 4, 7.5, 1), (3, 7.5, 9.5, 1)]
    disturbed = write(tmp_path / "disturbed", steps, lost(3.5, 4.5, 7.5, 2))
    found = loss_of(disturbed, calm)
    assert (found.step, found.last) == (1, 2)
    assert found.extra_s == pytest.approx(1.5)


def test_table_with_intervals(tmp_path):
    made = []
    for i, late in enumerate((0.0, 0.5, 1.0)):
        calm = write(tmp_path / f"calm{i}", CALM)
        steps = [(0, 0, 2, 1), (1, 2, 6 + late, 1), (2, 6 + late, 8 + late, 1)]
        made.append((write(tmp_path / f"disturbed{i}", steps, lost(3.0, 4.0, 5.0, 1)), calm))
    found = row("ring", made)
    assert found.extra_s.mean == pytest.approx(2.5)
    assert found.extra_s.half_width == pytest.approx(4.3027 * 0.5 / 3**0.5, rel=1e-3)  # t with 2 degrees of freedom
    text = markdown([found])
    assert (
        "| ring | 1 | 2.00 ± 0.00 s | 4.50 ± 1.24 s | 2.50 ± 1.24 s | 1.00 ± 0.00 s | 1.50 ± 1.24 s | 0 | 3 |" in text
    )


def test_no_departure_is_an_error(tmp_path):
    calm = write(tmp_path / "calm", CALM)
    with pytest.raises(InputError, match="no departure was noticed"):
        loss_of(calm, calm)


def test_pairs_of_the_ready_made_experiment():
    found = pairs(load_experiment("recovery"))
    assert [p.name for p in found] == [
        "cleave", "pipeline (1f1b, replan)", "data_parallel (ps)", "data_parallel (ring)", "tensor_parallel"
    ]  # fmt: skip
    assert all(any(action == "leave" for _, _, action in p.disturbed.churn) and not p.calm.churn for p in found)
    with pytest.raises(InputError, match="no device leaves"):
        pairs(load_experiment("smoke"))
