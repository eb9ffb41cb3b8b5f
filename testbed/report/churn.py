"""Who was away when, when others noticed, and how long training took to get back."""

from __future__ import annotations

import numpy as np
import pandas as pd

from testbed.measurement.events import select
from testbed.measurement.steps import absences, recoveries

COLUMNS = (
    "node", "mode", "cause", "leave_s", "return_s", "detected_after_s", "recovery", "restored_s",
    "recovery_s", "extra_s", "lost_steps", "step", "taken_in_s",
)  # fmt: skip


def churn_table(events: pd.DataFrame) -> pd.DataFrame:
    """Absences with what followed, in time order; recoveries without an absence have no leave_s.

    detected_after_s: from the departure to the server's detector giving up on the device. taken_in_s: how
    long training took to take the device in again, where the runner does so (recovery kind 'join').
    """
    away, back = absences(events), recoveries(events)
    members = select(events, "member")
    left = members[(members["kind"] == "left") & (members["node"] == "server")]
    joins = back[back["kind"] == "join"]
    failures = back[back["kind"] != "join"]
    rows = []
    for gone in away.itertuples():
        row = {"_at": gone.leave_s if np.isfinite(gone.leave_s) else gone.return_s} | gone._asdict()
        later = away[(away["node"] == gone.node) & (away["leave_s"] > row["_at"])]["leave_s"]
        until = later.min() if len(later) else np.inf  # what comes after its next departure belongs to that one
        if np.isfinite(gone.leave_s):
            found = _first(left[left["peer"] == gone.node], "t", gone.leave_s, until)
            if found is not None:
                row["detected_after_s"] = found["t"] - gone.leave_s
            failure = _first(failures[failures["peer"] == gone.node], "start_s", gone.leave_s, until)
            if failure is not None:
                row |= _recovery(failure)
                failures = failures.drop(index=failure.name)
        if np.isfinite(gone.return_s):
            join = _first(joins[joins["peer"] == gone.node], "start_s", gone.return_s, until)
            row["taken_in_s"] = None if join is None else join["recovery_s"]
        rows.append(row)
    for _, other in failures.iterrows():
        row = {"_at": other["start_s"], "node": other["peer"], "detected_after_s": other["detection_s"]}
        rows.append(row | _recovery(other))
    rows.sort(key=lambda r: r["_at"])
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype(object)
    table = table.where(table.notna(), None)
    numbers = [c for c in COLUMNS if c.endswith("_s") or c in ("lost_steps", "step")]
    return table.astype(dict.fromkeys(numbers, float))


def _first(rows: pd.DataFrame, column: str, start: float, end: float) -> pd.Series | None:
    """The first row with start <= column < end."""
    hit = rows[(rows[column] >= start) & (rows[column] < end)]
    return hit.iloc[0] if len(hit) else None


def _recovery(row: pd.Series) -> dict:
    return {
        "recovery": row["kind"],
        "restored_s": row["restored_s"],
        "recovery_s": row["recovery_s"],
        "extra_s": row["extra_s"],
        "lost_steps": row["lost_steps"],
        "step": row["step"],
    }
