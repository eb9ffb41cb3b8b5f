"""Numbers behind the other figures, thinned to what a figure can show."""

from __future__ import annotations

import numpy as np
import pandas as pd

from testbed.measurement.rates import WIRE_PER_GOODPUT
from testbed.report.run_data import RunData

MOST_LINKS = 12
MOST_POINTS = 400


def shown_links(data: RunData) -> list[str]:
    """The nodes whose links are drawn: all, or the twelve that moved most bytes, in natural order."""
    known = set(data.select("link")["node"].unique()) | set(data.windows["node"].unique())
    with_link = [n for n in data.nodes if n in known]
    if len(with_link) <= MOST_LINKS:
        return with_link
    moved = data.bytes.sum(axis=1).reindex(with_link).fillna(0.0)
    top = set(moved.sort_values(ascending=False, kind="stable").index[:MOST_LINKS])
    return [n for n in with_link if n in top]


def set_rate(data: RunData, node: str, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Times [s] and set rates [bit/s] of a link, to be drawn as steps; the last value is held to the end."""
    own = data.select("link")
    own = own[own["node"] == node]
    rates = own[f"{direction}_bps"].to_numpy()
    if not len(rates):
        return np.array([]), np.array([])
    return np.r_[own["t"].to_numpy(), data.end_s], np.r_[rates, rates[-1]]


def measured_rate(data: RunData, node: str, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Window ends [s] and rates [bit/s] without headers, as set rates are; means of neighbours
    where there are more windows than a figure can show."""
    own = data.windows[(data.windows["node"] == node) & (data.windows["direction"] == direction)]
    if not len(own):
        return np.array([]), np.array([])
    group = np.arange(len(own)) // max(1, -(-len(own) // MOST_POINTS))
    size = own["bytes"].groupby(group).sum().to_numpy()
    start = own["start_s"].groupby(group).min().to_numpy()
    end = own["end_s"].groupby(group).max().to_numpy()
    return end, size * 8 / np.maximum(end - start, 1e-9) / WIRE_PER_GOODPUT


def probed_rate(data: RunData, node: str, direction: str) -> float | None:
    """What the probe before training measured [bit/s]."""
    probes = data.select("probe")
    own = probes[(probes["node"] == node) & (probes["quantity"] == f"rate_{direction}")]["measured"].dropna()
    return float(own.iloc[-1]) if len(own) else None


def events_per_line(data: RunData) -> dict[str, pd.DataFrame]:
    """Moments to mark in figures over time: 'leave' and 'return' of devices, with columns t and node."""
    churn = data.churn
    left = churn[churn["leave_s"].notna()]
    back = churn[churn["return_s"].notna()]
    return {
        "leave": pd.DataFrame({"t": left["leave_s"].to_numpy(), "node": left["node"].to_numpy()}),
        "return": pd.DataFrame({"t": back["return_s"].to_numpy(), "node": back["node"].to_numpy()}),
    }


def thinned(table: pd.DataFrame, most: int = 4000) -> pd.DataFrame:
    """Every n-th row, and the last one, of a table that is longer than a figure needs."""
    if len(table) <= most:
        return table
    keep = np.unique(np.r_[np.arange(0, len(table), -(-len(table) // most)), len(table) - 1])
    return table.iloc[keep]
