"""Links over time: the rates that were set, those that the bottleneck queues let through, and the probes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from testbed.measurement.events import select

# Set rates are TCP goodput, as speed tests report them; the queues count Ethernet frames. For a full-size
# packet: 1500 bytes of IP + 14 of Ethernet against 1500 - 20 (IPv4) - 20 (TCP) - 12 (timestamps option) of
# payload.
WIRE_PER_GOODPUT = 1514 / 1448

SETTINGS = {"down_bps": "rate_down", "up_bps": "rate_up", "rtt_s": "rtt", "jitter_s": "jitter", "loss": "loss"}
WINDOW_COLUMNS = ("node", "direction", "start_s", "end_s", "bytes", "rate_bps", "drops", "backlog")


def rate_windows(events: pd.DataFrame, least_s: float = 0.0) -> pd.DataFrame:
    """What each bottleneck queue let through, a row a window, from `throughput` events.

    Args:
        least_s: neighbouring windows are joined until they are at least this long [emulated s].

    Returns:
        Columns node, direction ('up' or 'down'), start_s, end_s, bytes, rate_bps (on the wire: frames with
        headers), drops, backlog (largest, bytes).
    """
    rows = select(events, "throughput")
    rows = rows[rows["seconds"] > 0]
    if rows.empty:
        return pd.DataFrame({c: pd.Series(dtype=float) for c in WINDOW_COLUMNS})
    keys = ["node", "direction"]
    seconds, window = rows["seconds"].to_numpy(), np.zeros(len(rows), dtype=np.int64)
    for own in rows.groupby(keys).indices.values():
        window[own] = _join(seconds[own].tolist(), least_s)
    # all links at once: a simulation has thousands
    joined = pd.DataFrame(
        {
            "node": rows["node"],
            "direction": rows["direction"],
            "window": window,
            "start_s": rows["t"] - rows["seconds"],
            "end_s": rows["t"],
            "bytes": rows["bytes"].fillna(0),
            "seconds": rows["seconds"],
            "drops": rows["drops"].fillna(0),
            "backlog": rows["backlog"].fillna(0),
        }
    )
    joined = joined.groupby([*keys, "window"], sort=True, as_index=False).agg(
        {"start_s": "min", "end_s": "max", "bytes": "sum", "seconds": "sum", "drops": "sum", "backlog": "max"}
    )
    joined["rate_bps"] = joined["bytes"] * 8 / joined["seconds"]
    return joined[list(WINDOW_COLUMNS)]


def _join(lengths_s: list[float], least_s: float) -> np.ndarray:
    """Which joined window each window goes to; a short rest at the end joins the one before it."""
    numbers, number, total_s = [], 0, 0.0
    for length_s in lengths_s:
        numbers.append(number)
        total_s += length_s
        if total_s >= least_s:
            number, total_s = number + 1, 0.0
    return np.minimum(numbers, max(number - 1, 0))


def highest_setting(events: pd.DataFrame, windows: pd.DataFrame, slack_s: float = 0.0) -> pd.Series:
    """The highest rate [bit/s, as set] that held at any moment of each window, give or take slack_s.

    NaN where the link had no setting.
    """
    links = select(events, "link")
    highest = pd.Series(np.nan, index=windows.index)
    for (node, direction), group in windows.groupby(["node", "direction"]):
        own = links[links["node"] == node]
        rates, times = own[f"{direction}_bps"].to_numpy(), own["t"].to_numpy()
        if len(times) == 0:
            continue
        first = np.maximum(np.searchsorted(times, group["start_s"] - slack_s, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(times, group["end_s"] + slack_s, side="right") - 1, 0)
        highest[group.index] = [np.fmax.reduce(rates[a : b + 1]) for a, b in zip(first, last)]
    return highest


def links_table(events: pd.DataFrame, end_s: float | None = None) -> pd.DataFrame:
    """The content of links.parquet: a row for each setting, measured window and probe of each link.

    Columns: node; source ('set', 'measured', 'probe'); quantity ('rate_down', 'rate_up', 'rtt', 'jitter',
    'loss'); start_s, end_s (a setting holds until the next one); value [bit/s, s or probability]; set (a
    probe's set value). Set and probed rates are TCP goodput; measured ones count Ethernet frames with their
    headers.
    """
    if end_s is None:
        end_s = float(events["t"].max()) if len(events) else 0.0
    parts = []
    links = select(events, "link")
    if len(links):
        until = links.groupby("node")["t"].shift(-1).fillna(end_s)
        for field, quantity in SETTINGS.items():
            parts.append(
                pd.DataFrame(
                    {
                        "node": links["node"],
                        "source": "set",
                        "quantity": quantity,
                        "start_s": links["t"],
                        "end_s": until,
                        "value": links[field],
                    }
                )
            )
    windows = rate_windows(events)
    if len(windows):
        parts.append(
            windows.assign(source="measured", quantity="rate_" + windows["direction"], value=windows["rate_bps"])
        )
    probes = select(events, "probe")
    if len(probes):
        parts.append(
            probes.assign(
                source="probe",
                start_s=probes["t"] - probes["seconds"].fillna(0),
                end_s=probes["t"],
                value=probes["measured"],
            )
        )
    columns = ["node", "source", "quantity", "start_s", "end_s", "value", "set"]
    if not parts:
        return pd.DataFrame({c: pd.Series(dtype=object if c in columns[:3] else float) for c in columns})
    table = pd.concat([p.reindex(columns=columns) for p in parts], ignore_index=True)
    return table.sort_values(["node", "quantity", "source", "start_s"], kind="stable").reset_index(drop=True)
