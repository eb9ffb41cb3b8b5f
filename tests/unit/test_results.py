"""The paper's questions: reading them, answering small ones by real simulations, and the page that is made of answers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.report.results import binding, cell_text, claims, markdown, results_of
from testbed.shipped import EXPERIMENTS
from testbed.studies.answering import Answer, answer, from_json, memory_text, to_json
from testbed.studies.questions import load_questions
from testbed.studies.results import make_results

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = EXPERIMENTS / "results" / "questions.yaml"
BASE = {
    "name": "base", "engine": "simulation", "topology": {"homes": 3},
    "links": {"download": "50 Mbit/s", "upload": "10 Mbit/s", "rtt": "20 ms"},
    "devices": {"profiles": ["volunteer"], "speed_factor": 0.03}, "model": {"layers": 3, "d_model": 32, "heads": 2},
    "training": {"runner": "pipeline", "batch": 8, "steps": 2}, "simulation": {"details": 0},
    "outputs": {"report": False, "timeline": False}, "time_limit": "10 min",
}  # fmt: skip
QUESTIONS = {
    "base": "base.yaml",
    "strategies": {"1f1b": {"title": "Pipeline", "set": {"training.schedule": "1f1b"}},
                   "gpu": {"title": "GPU", "set": {"training.runner": "single", "topology.homes": 1,
                                                   "devices.speed_factor": 1}}},
    "questions": {
        "sizes": {"title": "Sizes", "axis": {"title": "Layers", "values": {2: {"model.layers": 2}, 12: {
            "model.layers": 12, "model.d_model": 4096}}}, "strategies": ["1f1b", "gpu"]},
        "recovery": {"title": "Loss", "set": {"training.steps": 4}, "axis": {"title": "Devices", "values": {3: {}}},
                     "strategies": ["1f1b"], "loses": 1.5, "figures": []},
        "churn": {"title": "Churn", "axis": {"title": "Stay", "values": {"always": {}, "0.01": {}}},
                  "strategies": ["1f1b"], "churn_h": {"0.01": 0.01}},
        "long": {"title": "Long", "set": {"training.steps": 10**6, "time_limit": "900 d"},
                 "axis": {"title": "Devices", "values": {3: {}}}, "strategies": ["1f1b"]},
    },
}  # fmt: skip


def written(tmp_path, questions=QUESTIONS) -> Path:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    path = tmp_path / "questions.yaml"
    path.write_text(yaml.safe_dump(questions))
    return path


def test_the_shipped_questions_can_be_read_and_loaded():
    questions = load_questions(SHIPPED)
    assert {"model-size", "devices", "recovery", "ratio", "heterogeneity", "churn"} <= set(questions.questions)
    for question in questions.questions.values():
        for point in question.points:
            e = load_experiment(questions.base, point.overrides).experiment
            assert e.simulation.details == 0
            assert e.topology.homes == e.devices.count
            assert (e.topology.homes == 1) == (point.strategy == "gpu")
    devices = questions.questions["devices"]
    assert (devices.values[0], devices.values[-1], devices.numeric) == ("32", "8192", True)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda q: q["questions"]["sizes"].update(strategies=["1f1d"]), "did you mean '1f1b'?"),
        (lambda q: q["questions"]["sizes"].update(strategies={"1f1b": [3]}), "unknown value '3'"),
        (lambda q: q["questions"]["sizes"].update(titel="x"), "did you mean 'title'?"),
    ],
)  # fmt: skip
def test_bad_questions(tmp_path, change, found):
    questions = json.loads(json.dumps(QUESTIONS))
    change(questions)
    with pytest.raises(InputError) as error:
        load_questions(written(tmp_path, questions))
    assert found in str(error.value)


def test_answers_come_from_simulations(tmp_path):
    questions = load_questions(written(tmp_path))
    points = {p.name: p for q in questions.questions.values() for p in q.points}
    small = answer(questions.base, points["sizes-1f1b-2"], tmp_path / "runs")
    assert small.status == "ok", small.message
    assert small.steps == 2
    assert small.metrics["step_time_s"] > 0
    assert 0 < small.server_down < 1
    again = answer(questions.base, points["sizes-1f1b-2"], tmp_path / "again")
    assert again == small
    large = answer(questions.base, points["sizes-1f1b-12"], tmp_path / "runs")
    assert large.status == "does-not-fit"
    assert "needs" in large.message
    assert "has 16 GB" in large.message  # the server, with its checkpoints
    gpu = answer(questions.base, points["sizes-gpu-2"], tmp_path / "runs")
    assert gpu.metrics["step_time_s"] < small.metrics["step_time_s"]
    lost = answer(questions.base, points["recovery-1f1b-3"], tmp_path / "runs")
    assert lost.status == "ok", lost.message
    assert lost.metrics["recovery_s"] > 0
    assert lost.metrics["detection_s"] > 0


def test_the_whole_way_in_processes(tmp_path):
    path = written(tmp_path)
    said = []
    make_results(path, ["sizes"], tmp_path / "docs", tmp_path / "runs", workers=2, limit_s=120, say=said.append)
    page = (tmp_path / "docs" / "results.md").read_text()
    assert len(said) == 4
    assert "memory: needs" in page
    first = (tmp_path / "docs" / "results" / "results.json").read_bytes()
    make_results(path, [], tmp_path / "docs", tmp_path / "runs", draw_only=True)
    assert (tmp_path / "docs" / "results.md").read_text() == page
    assert (tmp_path / "docs" / "results" / "results.json").read_bytes() == first
    with pytest.raises(InputError, match="did you mean 'sizes'"):
        make_results(path, ["size"], tmp_path / "docs", tmp_path / "runs")


def test_a_simulation_that_takes_too_long_is_given_up(tmp_path):
    make_results(written(tmp_path), ["long"], tmp_path / "docs", tmp_path / "runs", limit_s=1)
    statuses = {a.status for a in from_json((tmp_path / "docs" / "results" / "results.json").read_text())}
    assert statuses == {"gave-up"}
    assert "not simulated" in (tmp_path / "docs" / "results.md").read_text()


def test_what_the_budget_has_no_time_for_is_left_out_and_named(tmp_path):
    make_results(written(tmp_path), ["sizes"], tmp_path / "docs", tmp_path / "runs", budget_s=1e-6)
    answers = from_json((tmp_path / "docs" / "results" / "results.json").read_text())
    assert [a.status for a in answers] == ["gave-up"] * 4
    assert "took longer than" in answers[0].message


# -- the page


def made_up(**cleave):
    """Answers with round numbers for the shipped questions; no simulation."""
    questions = load_questions(SHIPPED)
    answers = []
    for question in questions.questions.values():
        for i, point in enumerate(question.points):
            own = point.strategy == "cleave"
            n = float(point.value) if question.numeric else 32.0
            metrics = {
                "step_time_s": 10.0 if own else 50.0,
                "recovery_s": 0.5 if own else 100.0,
                "idle_fraction": 0.95,
                "detection_s": 1.0,
                "device_down_bytes": 1e9 / n,
                "device_up_bytes": 1e8 / n,
                "server_egress_bytes": 1e9 * n**0.5,
                "tokens_per_s": 1.0 + i,
            }
            answers.append(
                Answer(
                    point.question,
                    point.strategy,
                    point.value,
                    "ok",
                    None,
                    {**metrics, **(cleave if own else {})},
                    0.1,
                    0.1,
                    1,
                )
            )
    return questions, answers


def test_claims_follow_the_numbers():
    questions, answers = made_up()
    text = "\n".join(claims(results_of(questions, answers)))
    assert "Cleave's speed was 5× over" in text
    assert "The claim holds in all of these settings" in text
    assert "200× as long as Cleave's 500 ms. Reproduced." in text
    assert "as N^0.50" in text
    assert "8,192 heterogeneous devices" in text
    questions, answers = made_up(step_time_s=25.0, recovery_s=20.0)
    text = "\n".join(claims(results_of(questions, answers)))
    assert "The claim is not reproduced in these settings" in text
    assert "transfers over home links and their delays" in text
    assert "5× as long as Cleave's 20 s. Not reproduced." in text


def test_what_does_not_fit_is_said_with_its_number():
    questions, answers = made_up()
    answers = [
        replace(a, status="does-not-fit", message="needs 5.6 GB, has 4 GB", metrics={})
        if (a.question, a.strategy) == ("model-size", "1f1b")
        else a
        for a in answers
    ]
    page = markdown(results_of(questions, answers))
    assert page.count("memory: needs 5.6 GB, has 4 GB") == 4
    assert "could not run at all for want of memory: model-size opt-125m (pipeline, 1f1b)" in page


@pytest.mark.parametrize(("cost", "said"), [(-110.0, 1), (80.0, 0), (None, 0)])
def test_a_negative_cost_of_a_loss_is_explained(cost, said):
    questions, answers = made_up(recovery_extra_s=cost)
    page = markdown(results_of(questions, answers))
    assert page.count("Cost of a loss below 0: training was faster without the device that was lost.") == said
    assert page.count("| -110 s |") == said * len(questions.questions["recovery"].values)


def test_what_binds():
    questions, answers = made_up()
    cells = results_of(questions, answers).tables[0].cells
    cell = cells["cleave", "opt-125m"]
    assert "devices compute 5 % of the time" in binding(cell)
    assert "the server's link (95 % of what it sends)" in binding(replace(cell, server_up=0.95))
    assert cell_text(None, "step_time_s") == ""


def test_answers_survive_their_file():
    _, answers = made_up()
    assert len(from_json(to_json(answers))) == len(answers)
    assert to_json(from_json(to_json(answers))) == to_json(answers)


def test_memory_messages():
    assert (
        memory_text(
            "device 'h1', memory: its stage needs 5,600,000,000 bytes (5.6 GB), but it has 4,294,967,296 bytes "
            "(4.29 GB): stage 1"
        )
        == "needs 5.6 GB, has 4.29 GB"
    )
    assert memory_text("h58 needed 1.1 GB for tensors, more than its 1.07 GB of memory") == "needs 1.1 GB, has 1.07 GB"
    assert memory_text("training.stages: 9 stages") is None


def test_the_committed_page_is_that_of_the_committed_numbers():
    """No number in docs/results.md is written by hand."""
    data = ROOT / "docs" / "results" / "results.json"
    if not data.is_file():
        pytest.skip("docs/results/results.json is not there yet: make results")
    questions = load_questions(SHIPPED)
    page = markdown(results_of(questions, from_json(data.read_text()), questions.base.read_text()))
    assert (ROOT / "docs" / "results.md").read_text() == page
