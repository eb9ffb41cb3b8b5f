"""What each device did when: computing, waiting, sending, receiving, absent; merged to what can be drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd

from testbed.measurement.events import select
from testbed.measurement.steps import absences

STATES = ("compute", "wait", "send", "receive", "offline")
COLUMNS = ("node", "state", "start", "end", "label")


def device_intervals(events: pd.DataFrame, end_s: float) -> pd.DataFrame:
    """Columns node, state, start, end, label. A device sends until the last byte arrived at the other end.

    Args:
        end_s: closes absences that the run did not see the end of [emulated s].
    """
    compute, wait, send, transfer = (select(events, k) for k in ("compute", "wait", "send", "transfer"))
    away = absences(events)
    parts = [
        _part(compute["node"], "compute", compute["start"], compute["end"], compute["label"]),
        _part(wait["node"], "wait", wait["start"], wait["end"], wait["tag"]),
        _part(send["node"], "send", send["start"], send["end"], send["tag"]),
        _part(transfer["peer"], "send", transfer["start"], transfer["end"], transfer["tag"]),
        _part(transfer["node"], "receive", transfer["start"], transfer["end"], transfer["tag"]),
        _part(away["node"], "offline", away["leave_s"].fillna(0), away["return_s"].fillna(end_s), away["mode"]),
    ]
    table = pd.concat(parts, ignore_index=True)
    table = table[table["node"].notna() & (table["end"] >= table["start"])]
    return table.reset_index(drop=True)


def _part(node, state, start, end, label) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "node": node.astype(object),
            "state": state,
            "start": start.astype(float),
            "end": end.astype(float),
            "label": label.astype(object),
        }
    )


def merge(intervals: pd.DataFrame, gap_s: float = 0.0) -> pd.DataFrame:
    """Join a device's intervals of one state that overlap or are at most gap_s apart; `count`: how many."""
    parts = []
    for (node, state), group in intervals.groupby(["node", "state"], sort=True):
        group = group.sort_values("start", kind="stable")
        start, end = group["start"].to_numpy(), group["end"].to_numpy()
        reach = np.maximum.accumulate(end)
        first = np.flatnonzero(np.r_[True, start[1:] > reach[:-1] + gap_s])
        parts.append(
            pd.DataFrame(
                {
                    "node": node,
                    "state": state,
                    "start": start[first],
                    "end": reach[np.r_[first[1:] - 1, len(end) - 1]],
                    "label": group["label"].to_numpy()[first],
                    "count": np.diff(np.r_[first, len(end)]),
                }
            )
        )
    if not parts:
        return pd.DataFrame({c: pd.Series(dtype=object) for c in (*COLUMNS, "count")})
    return pd.concat(parts, ignore_index=True)


def fit(intervals: pd.DataFrame, duration_s: float, most: int = 12_000) -> tuple[pd.DataFrame, float]:
    """Merge until at most `most` intervals are left.

    Returns:
        The intervals, and the gap [s] up to which neighbours were joined (0: none were).
    """
    if len(intervals) <= most:
        return intervals.assign(count=1), 0.0
    gap_s = max(duration_s, 1e-9) / 2000
    while True:
        merged = merge(intervals, gap_s)
        if len(merged) <= most or gap_s > duration_s:
            return merged, gap_s
        gap_s *= 2


def shares(events: pd.DataFrame, end_s: float) -> pd.DataFrame:
    """Seconds that each device spent in each state, overlaps counted once: index node, a column a state.

    A device that computes does not wait, though a message is being waited for at the same time.
    """
    own = device_intervals(events, end_s)
    if not len(own):
        return pd.DataFrame(columns=list(STATES), dtype=float)
    both = own[own["state"].isin(["compute", "wait"])]
    merged = merge(pd.concat([own[own["state"] != "wait"], both.assign(state="wait")]))
    seconds = (merged["end"] - merged["start"]).groupby([merged["node"], merged["state"]]).sum().unstack(fill_value=0.0)
    seconds = seconds.reindex(columns=list(STATES), fill_value=0.0)
    seconds["wait"] -= seconds["compute"]
    return seconds
