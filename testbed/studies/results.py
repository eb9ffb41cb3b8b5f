"""docs/results.md in one go: simulate the questions, keep the numbers, write the page and its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import InputError, unknown
from testbed.measurement.run_folder import write_file
from testbed.report.results import markdown, results_of
from testbed.report.results_figures import write_figures
from testbed.studies.answering import Answer, answer_all, cores, from_json, to_json
from testbed.studies.questions import load_questions


def make_results(
    file: Path,
    names: Sequence[str],
    out: Path,
    runs: Path,
    *,
    workers: int | None = None,
    limit_s: float = 150.0,
    budget_s: float = math.inf,
    draw_only: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Simulate (all, or the named questions), then write OUT/results.md and OUT/results/.

    Raises:
        InputError: a bad questions file, an unknown question, or nothing to draw from.
    """
    questions = load_questions(file)
    for name in names:
        if name not in questions.questions:
            raise unknown("QUESTION", "question", name, questions.questions)
    data = out / "results" / "results.json"
    data.parent.mkdir(parents=True, exist_ok=True)
    asked = {(p.question, p.strategy, p.value) for q in questions.questions.values() for p in q.points}
    kept = from_json(data.read_text()) if data.is_file() else []
    fresh = [] if draw_only else list(names or questions.questions)
    answers = [a for a in kept if a.question not in fresh and (a.question, a.strategy, a.value) in asked]
    if draw_only and not answers:
        raise InputError(str(data), "holds no results; expected those of `testbed results`")
    points = [p for name in fresh for p in questions.questions[name].points]
    order = {
        (p.question, p.strategy, p.value): i
        for i, p in enumerate(p for q in questions.questions.values() for p in q.points)
    }

    def write(more: list[Answer]) -> list[Path]:
        """The numbers first, so that an interrupted run keeps what it has."""
        everything = sorted([*answers, *more], key=lambda a: order[a.question, a.strategy, a.value])
        write_file(data, to_json(everything))
        found = results_of(questions, from_json(data.read_text()), questions.base.read_text())
        write_file(out / "results.md", markdown(found))
        return [out / "results.md", data, *write_figures(found, data.parent)]

    more = answer_all(
        questions, points, runs, workers=workers or cores(), limit_s=limit_s, budget_s=budget_s, say=say, keep=write
    )
    return write(more)
