"""What `testbed plan` shows: a runner's plan for an experiment, with whatever more the runner can explain.

A runner may have a method `explain(plan)` that returns more than what its plan says, JSON-like: numbers, and lists of
objects, which are shown as tables. For others, what each device adds is found by planning without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.errors import InputError
from testbed.experiment.loading import LoadedExperiment, load_experiment
from testbed.experiment.setup import RunSetup, run_setup, run_setups
from testbed.measurement.run_folder import json_text

MOST_ADDS = 64  # devices up to which a runner plans again without each


@dataclass(frozen=True)
class PlanView:
    """A plan and its explanation: single values, and tables by name."""

    setup: RunSetup
    notes: list[str]
    values: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        plan = self.setup.plan
        return {
            "experiment": self.setup.loaded.experiment.name, "runner": plan.runner,
            "devices_planned_for": [d.name for d in plan.cluster.devices],
            "warnings": self.setup.warnings, "notes": self.notes,
            "predicted": json.loads(json_text(plan))["predicted"], **self.values, **self.tables,
        }  # fmt: skip


def load_for_runner(
    name: str, overrides: tuple[str, ...] = (), *, seed: int | None = None, runner: str | None = None
) -> tuple[LoadedExperiment, list[str]]:
    """The experiment with another runner, and a note on what was left out.

    The runner's own options in the file belong to the file's runner: with another one only those of --set are kept.

    Raises:
        InputError: as load_experiment.
    """
    loaded = load_experiment(name, overrides, seed=seed)
    if runner is None or runner == loaded.experiment.training.runner:
        return loaded, []
    before = loaded.experiment.training
    set_here = {item.partition("=")[0].strip().removeprefix("training.") for item in overrides}
    dropped = [key for key in before.options if key not in set_here]
    loaded = load_experiment(name, (*overrides, f"training.runner={json.dumps(runner)}"), seed=seed)
    experiment, data = loaded.experiment.model_copy(deep=True), deepcopy(loaded.data)
    for key in dropped:
        (experiment.training.model_extra or {}).pop(key, None)
        data["training"].pop(key, None)
    notes = [f"left out, being options of {before.runner}: {', '.join(dropped)}"] if dropped else []
    if experiment.sweep:
        notes.append(f"left out, being planned with {before.runner}: its sweep of {len(experiment.sweep)} runs")
        experiment.sweep, data["sweep"] = [], []
    return replace(loaded, experiment=experiment, data=data), notes


def plan_view(loaded: LoadedExperiment, notes: Sequence[str] = ()) -> PlanView:
    """Plan and explain. Raises InputError for whatever `testbed run` would refuse, of its sweep's runs, too."""
    setup = run_setup(loaded)
    if loaded.experiment.sweep:
        run_setups(loaded)
    plan, explain = setup.plan, getattr(setup.runner, "explain", None)
    content: Mapping[str, Any] = explain(plan) if explain else plan.data
    values, tables = {}, {}
    for key, value in content.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            tables[key] = value
        elif isinstance(value, (str, int, float, bool, type(None))):
            values[key] = value
    if explain is None and 1 < len(plan.cluster.devices) <= MOST_ADDS and "step_time_s" in plan.predicted:
        tables["devices"] = list(_adds(setup))
    return PlanView(setup, [*notes, *plan.notes], values, tables)


def _adds(setup: RunSetup) -> Iterator[dict[str, Any]]:
    """What each device adds: how much longer a step is predicted to take without it; None when no plan is left."""
    plan = setup.plan
    names = [d.name for d in plan.cluster.devices]
    for device in plan.cluster.devices:
        row = {
            "device": device.name,
            "flops": device.flops,
            "memory_bytes": device.memory_bytes,
            "downlink_bps": device.link.downlink_bps,
            "uplink_bps": device.link.uplink_bps,
        }
        try:
            without = setup.runner.plan(
                plan.cluster.only(n for n in names if n != device.name), plan.model, plan.training
            )
            yield {**row, "adds_s": without.predicted["step_time_s"] - plan.predicted["step_time_s"]}
        except InputError:
            yield {**row, "adds_s": None}
