"""What the timeline figures show: which devices, rows and lanes, and which step is worth a closer look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from testbed.report.intervals import STATES, fit
from testbed.report.run_data import RunData

MOST_DEVICES = 32  # more rows can't be told apart on a laptop
LANES = {  # state -> bottom and top of its strip within a device's row of height 1
    "offline": (0.05, 0.93),
    "wait": (0.50, 0.90),
    "compute": (0.50, 0.90),
    "send": (0.29, 0.46),
    "receive": (0.09, 0.26),
}
NAMES = {
    "compute": "computes",
    "wait": "waits for a message",
    "send": "sends",
    "receive": "receives",
    "offline": "offline",
}


@dataclass(frozen=True)
class Gantt:
    """What to draw. boxes: rectangles, with columns state, start, end, low, high, label, node, count.

    rows: node -> height of its row's bottom, first row on top. merged_s: gap up to which neighbours were
    joined. left_out: devices not shown.
    """

    boxes: pd.DataFrame
    rows: dict[str, int]
    merged_s: float
    left_out: int
    start_s: float
    end_s: float


def gantt(data: RunData, start_s: float = 0.0, end_s: float | None = None, most: int = 12_000) -> Gantt:
    """The timeline of all devices (of many, the first 32, those with churn before others) over a span."""
    end_s = data.end_s if end_s is None else end_s
    active = set(data.intervals["node"].unique())
    busy = [n for n in data.nodes if n in active]
    shown = busy
    if len(busy) > MOST_DEVICES:
        churned = set(data.churn["node"].dropna())
        first = sorted(busy, key=lambda n: (n != "server", n not in churned))[:MOST_DEVICES]
        shown = [n for n in busy if n in set(first)]
    rows = {node: len(shown) - 1 - i for i, node in enumerate(shown)}
    part = data.intervals[data.intervals["node"].isin(shown)]
    part = part[(part["end"] > start_s) & (part["start"] < end_s)]
    part = part.assign(start=part["start"].clip(lower=start_s), end=part["end"].clip(upper=end_s))
    boxes, merged_s = fit(part, end_s - start_s, most)
    row = boxes["node"].map(rows).astype(float)
    boxes = boxes.assign(
        low=row + boxes["state"].map({s: LANES[s][0] for s in STATES}).astype(float),
        high=row + boxes["state"].map({s: LANES[s][1] for s in STATES}).astype(float),
    )
    return Gantt(boxes, rows, merged_s, len(busy) - len(shown), start_s, end_s)


def typical_step(data: RunData) -> pd.Series | None:
    """The step of most usual length, if possible after the first and with nobody away; None without steps."""
    steps = data.steps[data.steps["counts"] & data.steps["step_time_s"].gt(0)]
    if not len(steps):
        return None
    calm = steps["step"] > steps["step"].min()
    for _, gone in data.churn.iterrows():
        start = 0.0 if np.isnan(gone["leave_s"]) else gone["leave_s"]
        end = data.end_s if np.isnan(gone["return_s"]) else gone["return_s"]
        calm &= (steps["end_s"] < start) | (steps["start_s"] > end)
    usable = steps[calm] if calm.any() else steps
    return usable.loc[(usable["step_time_s"] - usable["step_time_s"].median()).abs().idxmin()]


def label_fits(boxes: pd.DataFrame, chart: Gantt) -> pd.Series:
    """Which boxes are wide enough for their label, at about 1000 pixels for the span and 6 a character."""
    width = (boxes["end"] - boxes["start"]) / max(chart.end_s - chart.start_s, 1e-9) * 1000
    return boxes["label"].notna() & (width >= 6.2 * boxes["label"].map(lambda v: min(len(str(v)), 8)))
