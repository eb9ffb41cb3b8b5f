"""What the loss of a device costs, strategy by strategy: the step in which it happens against the same step without.

Each pair is two runs of one experiment, with its departures and without. A step's time is from the moment at which
training first got past the step before to the moment at which it first got past this one, so steps that have to be
done again for it are in it. A device that leaves when it has done its part of a step is missed in the next one, so
the steps up to the one in which the loss was made good count, in both runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed.errors import InputError
from testbed.measurement.events import select
from testbed.measurement.recorder import read_events
from testbed.measurement.run_folder import RunFolder
from testbed.measurement.steps import attempts, recoveries
from testbed.report.repeats import Estimate, estimate


@dataclass(frozen=True)
class Loss:
    """One pair of runs. Seconds; `detection_s`: from the departure to the server's noticing.

    step, last: the steps from the departure's to the one in which the loss was made good.
    extra_s = disturbed_s - calm_s, of which detection is a part; lost_steps: complete ones that were done again.
    """

    device: str
    step: int
    last: int
    detection_s: float
    calm_s: float
    disturbed_s: float
    lost_steps: float
    valid: bool

    @property
    def extra_s(self) -> float:
        return self.disturbed_s - self.calm_s

    @property
    def after_detection_s(self) -> float:
        return self.extra_s - self.detection_s


@dataclass(frozen=True)
class Row:
    """A strategy's losses, with intervals over the pairs."""

    name: str
    losses: list[Loss]
    detection_s: Estimate
    calm_s: Estimate
    disturbed_s: Estimate
    extra_s: Estimate
    after_detection_s: Estimate
    lost_steps: Estimate

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def step_spans(events: pd.DataFrame) -> pd.DataFrame:
    """begin and end [s] of each step: training first got past the step before, and past this one."""
    done = attempts(events)
    ends = done.groupby("step")["end_s"].min().sort_index().cummax()
    first = float(done["start_s"].min()) if len(done) else 0.0
    return pd.DataFrame({"begin": [first, *ends.to_list()[:-1]], "end": ends}, index=ends.index)


def loss_of(disturbed: str | Path, calm: str | Path) -> Loss:
    """The first departure of the run `disturbed` that training noticed, against the same step of the run `calm`.

    Raises:
        InputError: no departure was noticed before the end, or the runs don't have the step.
    """
    events = read_events(disturbed)
    churn = select(events, "churn")
    leaves = churn[churn["action"] == "leave"]
    members = select(events, "member")
    left = members[(members["kind"] == "left") & (members["node"] == "server")]
    spans = step_spans(events)
    for _, leave in leaves.iterrows():
        device = leave["peer"] if isinstance(leave.get("peer"), str) else leave["node"]
        noticed = left[(left["peer"] == device) & (left["t"] >= leave["t"])]
        inside = spans[(spans["begin"] <= leave["t"]) & (spans["end"] > leave["t"])]
        if noticed.empty or inside.empty:
            continue
        back = recoveries(events)
        mine = back[(back["peer"] == device) & (back["kind"] != "join")]
        over = max([float(noticed["t"].iloc[0]), *mine["end_s"].to_list()])
        until = spans[spans["end"] >= over - 1e-6]
        if until.empty:
            continue
        step, last = int(inside.index[0]), int(until.index[0])
        usual = step_spans(read_events(calm))
        if last not in usual.index:
            raise InputError(str(calm), f"does not get to step {last}, in which the loss of {device} is made good")
        return Loss(
            device, step, last, float(noticed["t"].iloc[0] - leave["t"]),
            float(usual["end"][last] - usual["begin"][step]), float(spans["end"][last] - spans["begin"][step]),
            float(mine["lost_steps"].max()) if len(mine) else 0.0,
            all(RunFolder.open(run).manifest.get("verdict") in ("VALID", "SIMULATED") for run in (disturbed, calm)),
        )  # fmt: skip
    raise InputError(str(disturbed), "no departure was noticed while training went on; expected one")


def row(name: str, pairs: Sequence[tuple[str | Path, str | Path]]) -> Row:
    """A strategy's row from its pairs of run folders (disturbed, calm). Raises InputError."""
    losses = [loss_of(disturbed, calm) for disturbed, calm in pairs]

    def over(field: str) -> Estimate:
        return estimate([getattr(loss, field) for loss in losses])

    fields = ("detection_s", "calm_s", "disturbed_s", "extra_s", "after_detection_s", "lost_steps")
    return Row(name, losses, **{field: over(field) for field in fields})


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table for the docs: means with 95 % intervals, seconds."""
    head = ("strategy", "steps concerned", "without the loss", "with it", "extra", "of it detection",
            "of it after detection", "steps done again", "pairs")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for r in rows:
        valid = sum(loss.valid for loss in r.losses)
        pairs = f"{len(r.losses)}" if valid == len(r.losses) else f"{len(r.losses)}, {valid} of them valid"
        cells = [_seconds(e) for e in (r.calm_s, r.disturbed_s, r.extra_s, r.detection_s, r.after_detection_s)]
        concerned = f"{np.mean([loss.last - loss.step + 1 for loss in r.losses]):.2g}"
        lines.append("| " + " | ".join([r.name, concerned, *cells, f"{r.lost_steps.mean:.2g}", pairs]) + " |")
    return "\n".join(lines) + "\n"


def _seconds(e: Estimate) -> str:
    if e.mean is None or not np.isfinite(e.mean):
        return "–"
    return f"{e.mean:.2f} s" if e.half_width is None else f"{e.mean:.2f} ± {e.half_width:.2f} s"
