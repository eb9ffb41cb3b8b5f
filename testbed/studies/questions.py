"""Questions: sweeps of one experiment over strategies and the values of one setting, as points to simulate.

A questions file (experiments/results/questions.yaml):

    base: base.yaml                              # beside the file; an experiment that runs as it is
    strategies:
      cleave: {title: Cleave, set: {training.runner: cleave}}
    questions:
      devices:
        title: …
        set: {model.name: opt-1.3b}              # for all points of the question
        axis: {title: Devices, values: {32: {devices.count: 32}, …}}
        strategies: {cleave: [32, 64], …}        # or a list: all values
        loses: 1.5                               # optional: a device that is used goes after so many steps
        churn_h: {…}                             # optional, instead: value -> mean hours that a device stays
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import yaml_text
from testbed.errors import InputError, unknown

_KEYS = ("base", "strategies", "questions")
_QUESTION_KEYS = ("title", "about", "set", "axis", "strategies", "loses", "churn_h", "figures")


@dataclass(frozen=True)
class Strategy:
    name: str
    title: str
    settings: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Point:
    """One simulation. loses: device lost after so many undisturbed steps; churn_h: mean hours until a device goes."""

    question: str
    strategy: str
    value: str
    settings: dict[str, Any]
    loses: float | None = None
    churn_h: float | None = None

    @property
    def name(self) -> str:
        return f"{self.question}-{self.strategy}-{self.value}".replace(" ", "-").replace("/", "-").replace(":", "-")

    @property
    def overrides(self) -> tuple[str, ...]:
        """As --set takes them."""
        return tuple(f"{key}={json.dumps(value)}" for key, value in self.settings.items())


@dataclass(frozen=True)
class Question:
    name: str
    title: str
    about: str
    axis: str
    values: tuple[str, ...]
    numeric: bool
    strategies: tuple[str, ...]
    points: tuple[Point, ...]
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Questions:
    base: Path
    strategies: dict[str, Strategy]
    questions: dict[str, Question] = field(default_factory=dict)


def load_questions(path: Path) -> Questions:
    """Read a questions file. Raises InputError."""
    data, _ = yaml_text.read(path)
    _known(str(path), data, _KEYS)
    strategies = {
        name: Strategy(name, entry.get("title", name), entry.get("set", {}))
        for name, entry in data["strategies"].items()
    }
    questions = {
        name: _question(f"{path}, questions.{name}", name, entry, strategies)
        for name, entry in data["questions"].items()
    }
    return Questions(path.parent / data["base"], strategies, questions)


def _known(where: str, data: Any, keys: Sequence[str]) -> None:
    if not isinstance(data, dict):
        raise InputError(where, f"expected {', '.join(keys)}")
    for key in data:
        if key not in keys:
            raise unknown(where, "key", str(key), keys)


def _question(where: str, name: str, entry: Mapping[str, Any], strategies: Mapping[str, Strategy]) -> Question:
    _known(where, entry, _QUESTION_KEYS)
    values: dict[str, dict[str, Any]] = {str(v): s or {} for v, s in entry["axis"]["values"].items()}
    wanted = entry["strategies"]
    if isinstance(wanted, list):
        wanted = dict.fromkeys(wanted)
    churn = {str(v): hours for v, hours in (entry.get("churn_h") or {}).items()}
    points = []
    for strategy, only in wanted.items():
        if strategy not in strategies:
            raise unknown(where, "strategy", strategy, strategies)
        for value in map(str, only or values):
            if value not in values:
                raise unknown(where, "value", value, values)
            settings = {**entry.get("set", {}), **values[value], **strategies[strategy].settings}
            points.append(Point(name, strategy, value, settings, entry.get("loses"), churn.get(value)))
    numeric = all(_number(v) is not None for v in values)
    return Question(
        name,
        entry["title"],
        " ".join(entry.get("about", "").split()),
        entry["axis"]["title"],
        tuple(values),
        numeric,
        tuple(wanted),
        tuple(points),
        tuple(entry.get("figures", ["step_time_s"])),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
