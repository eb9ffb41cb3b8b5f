"""Who was away when, when others noticed, and how long training took to get back."""

from __future__ import annotations

import numpy as np
import pandas as pd

from testbed.measurement.events import select
from testbed.measurement.steps import recoveries

COLUMNS = (
    "node", "mode", "cause", "leave_s", "return_s", "detected_after_s", "recovery", "restored_s",
    "recovery_s", "extra_s", "lost_steps", "step",
)  # fmt: skip


def absences(events: pd.DataFrame) -> pd.DataFrame:
    """One row an absence: node, mode, cause, leave_s, return_s (NaN when it did not return)."""
    rows, open_ = [], {}
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


def churn_table(events: pd.DataFrame) -> pd.DataFrame:
    """Absences with what followed from them, in time order; recoveries without an absence have no leave_s.

    detected_after_s: from the departure to the server's detector giving up on the device.
    """
    away, back = absences(events), recoveries(events)
    members = select(events, "member")
    left = members[(members["kind"] == "left") & (members["node"] == "server")]
    used: set[int] = set()
    rows = []
    for gone in away.itertuples():
        row = dict.fromkeys(COLUMNS, None) | gone._asdict()
        until = gone.return_s if np.isfinite(gone.return_s) else np.inf
        if np.isfinite(gone.leave_s):
            seen = left[(left["peer"] == gone.node) & (left["t"] >= gone.leave_s)]
            following = away[(away["node"] == gone.node) & (away["leave_s"] > gone.leave_s)]["leave_s"].min()
            before = min(following, np.inf) if np.isfinite(following) else np.inf
            seen = seen[seen["t"] <= before]
            if len(seen):
                row["detected_after_s"] = seen["t"].iloc[0] - gone.leave_s
            hit = back[(back["peer"] == gone.node) & (back["start_s"].between(gone.leave_s, before))]
            hit = hit[~hit.index.isin(used)]
            if len(hit):
                used.add(hit.index[0])
                row |= _recovery(hit.iloc[0])
        row["return_s"] = gone.return_s if np.isfinite(until) else np.nan
        rows.append(row)
    for i, other in back.iterrows():
        if i not in used:
            row = dict.fromkeys(COLUMNS, None) | {
                "node": other["peer"],
                "detected_after_s": other["detection_s"],
            }
            rows.append(row | _recovery(other) | {"_at": other["start_s"]})
    rows.sort(key=lambda r: r.get("_at") or (r["leave_s"] if _known(r["leave_s"]) else r["return_s"]) or 0.0)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = [c for c in COLUMNS if c.endswith("_s") or c in ("lost_steps", "step")]
    return table.astype(dict.fromkeys(numbers, float))


def _known(value) -> bool:
    return value is not None and np.isfinite(value)


def _recovery(row: pd.Series) -> dict:
    return {
        "recovery": row["kind"],
        "restored_s": row["restored_s"],
        "recovery_s": row["recovery_s"],
        "extra_s": row["extra_s"],
        "lost_steps": row["lost_steps"],
        "step": row["step"],
    }
