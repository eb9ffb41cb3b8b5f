"""Training steps from events: which attempt counts, how long steps took, what was done in vain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from testbed.measurement.events import select

COLUMNS = ("step", "loss", "start_s", "end_s", "step_time_s", "samples", "attempt", "devices")


def attempts(events: pd.DataFrame) -> pd.DataFrame:
    """Every report of a step, in time order, with the columns of steps.csv and `counts` (bool).

    A step that is reported anew, with a higher attempt, was redone after a rollback: the last attempt counts,
    and every later step that had been reported before it was lost with the rollback, redone or not.
    """
    rows = select(events, "step")
    table = pd.DataFrame(
        {
            "step": rows["step"],
            "loss": rows["loss"],
            "start_s": rows["start"],
            "end_s": rows["end"],
            "step_time_s": rows["end"] - rows["start"],
            "samples": rows["samples"].fillna(0.0),
            "attempt": rows["attempt"].fillna(1.0),
            "devices": rows["devices"].map(_count).astype(float),
        }
    )
    table = table[table["step"].notna()].reset_index(drop=True)
    counts = np.zeros(len(table), dtype=bool)
    current: dict[float, int] = {}  # step -> row that counts so far
    for row, (step, attempt) in enumerate(zip(table["step"], table["attempt"])):
        if step in current and attempt > table["attempt"].iloc[current[step]]:
            for lost in [s for s in current if s >= step]:
                counts[current.pop(lost)] = False
        elif step in current:
            counts[current[step]] = False
        current[step] = row
        counts[row] = True
    return table.assign(counts=counts).sort_values("end_s", kind="stable").reset_index(drop=True)


def counted_steps(events: pd.DataFrame) -> pd.DataFrame:
    """One row a step that counts, by step number; the columns of steps.csv (times in emulated seconds)."""
    table = attempts(events)
    table = table[table["counts"]].sort_values("step", kind="stable").reset_index(drop=True)
    return table[list(COLUMNS)].astype({"step": int, "attempt": int})


def _count(devices: Any) -> float:
    if isinstance(devices, (list, tuple, dict)):
        return float(len(devices))
    return float(devices) if isinstance(devices, (int, float)) else np.nan


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Interval of the median by order statistics (distribution-free), or None below 6 values.

    With fewer than 6 values even (least, greatest) covers the median with less than 95 %.
    """
    ordered = np.sort(np.asarray([v for v in values if np.isfinite(v)], dtype=float))
    n = len(ordered)
    tail = (1 - confidence) / 2
    if 0.5**n >= tail:  # P(X <= 0)
        return None
    from scipy import stats  # takes half a second to load

    # ppf gives the least k with P(X <= k) >= tail; the interval [x_(k), x_(n+1-k)] leaves out P(X < k) <=
    # tail
    low = int(stats.binom.ppf(tail, n, 0.5))
    return float(ordered[low - 1]), float(ordered[n - low])


def recoveries(events: pd.DataFrame) -> pd.DataFrame:
    """A row a recovery: kind, peer, step, lost_steps, start_s, end_s and the durations
    detection_s, restored_s, recovery_s, extra_s.

    recovery_s = from detection to the moment at which training was back where it had been, lost steps redone;
    restored_s = from detection to the moment at which every device had its state again. extra_s = what the
    interrupted step took, with all that had to be redone for it, beyond the median step without a failure;
    recoveries within one step share one figure. It is negative where training was faster without the device: the
    slowest one, on which the others had waited. Kind 'join' is no failure: training took in a device that
    came (back).
    """
    rows = select(events, "recovery")
    table = pd.DataFrame(
        {
            "kind": rows["kind"],
            "peer": rows["peer"],
            "step": rows["step"],
            "lost_steps": rows["lost_steps"].fillna(0.0),
            "detection_s": rows["detected"],
            "start_s": rows["start"],
            "end_s": rows["end"],
            "restored_s": rows["restored"] - rows["start"],
            "recovery_s": rows["end"] - rows["start"],
        }
    )
    done = attempts(events)
    disturbed = [((done["start_s"] < end) & (done["end_s"] > start)) for start, end in zip(rows["start"], rows["end"])]
    calm = done[~np.logical_or.reduce(disturbed)] if disturbed else done
    usual = calm["step_time_s"].median()
    # when training first got past each step: rollbacks don't move this frontier back
    frontier = done.groupby("step")["end_s"].min().cummax().to_numpy()
    checkpoints = select(events, "checkpoint")
    extra = []
    for start in table["start_s"]:
        i = int(np.searchsorted(frontier, start, side="right"))
        if i >= len(frontier):
            extra.append(np.nan)  # the run ended before training got past it
            continue
        began = frontier[i - 1] if i else 0.0
        saved = checkpoints[(checkpoints["start"] >= began - 1e-6) & (checkpoints["end"] <= start)]["end"].max()
        extra.append(frontier[i] - (max(began, saved) if np.isfinite(saved) else began) - usual)
    return table.assign(extra_s=np.asarray(extra, dtype=float))


def absences(events: pd.DataFrame) -> pd.DataFrame:
    """One row an absence: node, mode, cause, leave_s, return_s (NaN when it did not return)."""
    rows: list[list[Any]] = []
    open_: dict[str, int] = {}
    for event in select(events, "churn").itertuples():
        if event.action == "leave" and event.node not in open_:
            open_[event.node] = len(rows)
            rows.append([event.node, event.mode, event.cause, event.t, np.nan])
        elif event.action == "return":
            if event.node in open_:
                rows[open_.pop(event.node)][4] = event.t
            else:  # it was away from the start
                rows.append([event.node, event.mode, event.cause, np.nan, event.t])
    return pd.DataFrame(rows, columns=["node", "mode", "cause", "leave_s", "return_s"]).astype(
        {"leave_s": float, "return_s": float}
    )
