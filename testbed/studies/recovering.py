"""Pairs of experiments, with their departures and without, for each entry of a sweep over strategies."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from testbed.errors import InputError
from testbed.experiment.loading import LoadedExperiment, validated
from testbed.experiment.setup import RunSetup, run_setup, run_setups

_TELLING = ("reduce", "schedule", "recovery", "all_reduce")  # options by which strategies of one runner are told apart


@dataclass(frozen=True)
class Pair:
    """name: of the strategy, for people."""

    name: str
    disturbed: RunSetup
    calm: RunSetup


def pairs(loaded: LoadedExperiment) -> list[Pair]:
    """One for each entry of the experiment's sweep. Raises InputError, also where nobody leaves."""
    found = []
    for disturbed in run_setups(loaded):
        point = disturbed.loaded
        if not any(action == "leave" for _, _, action in disturbed.churn):
            raise InputError(loaded.where("availability"), "no device leaves within the time limit; expected a trace "
                                                           "by which one does")  # fmt: skip
        data = copy.deepcopy(point.data)
        data.pop("availability")
        data["name"] = f"{data['name']}-calm"
        calm = run_setup(validated(data, point.path, point.lines))
        found.append(Pair(_name(point), disturbed, calm))
    return found


def _name(point: LoadedExperiment) -> str:
    training = point.experiment.training
    chosen = [str(training.options[key]) for key in _TELLING if key in training.options]
    return f"{training.runner} ({', '.join(chosen)})" if chosen else training.runner
