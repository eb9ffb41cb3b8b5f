"""The report's tables: texts, which a template escapes and lays out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from testbed.measurement.checks import shown
from testbed.report import text
from testbed.report.flows import HEAD as FLOW_HEAD
from testbed.report.flows import row as flow_row
from testbed.report.intervals import STATES
from testbed.report.run_data import RunData
from testbed.report.text import DASH, missing

_MOST_ROWS = 200
_NUMBER_STARTS = tuple("0123456789.-+−±" + DASH)


@dataclass(frozen=True)
class Table:
    """Texts in rows. numeric: which columns are of numbers, and stand on the right.

    marks: row number -> CSS class. left_out: rows beyond those shown.
    """

    head: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    marks: Mapping[int, str]
    left_out: int


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], marks: Mapping[int, str] | None = None) -> Table:
    """A table of the first 200 rows; what is missing is a dash."""
    cells = [[DASH if missing(v) or v == "" else str(v) for v in row] for row in rows]
    shown = cells[:_MOST_ROWS]
    numeric = [i > 0 and all(row[i].startswith(_NUMBER_STARTS) for row in shown) for i in range(len(head))]
    return Table(list(head), shown, numeric, marks or {}, len(cells) - len(shown))


def churn(data: RunData) -> Table:
    """Absences, and what followed from each."""
    head = ["device", "how", "left at", "detected after", "recovery", "state in place after", "back after",
            "steps redone", "cost", "returned at", "taken in after"]  # fmt: skip
    return table(head, [_absence(r) for _, r in data.churn.iterrows()])


def _absence(r: pd.Series) -> list[str]:
    how = " ".join(str(v) for v in (r["mode"], f"({r['cause']})" if r["cause"] else None) if v)
    meaning = text.below_zero([r["extra_s"]])
    return [
        r["node"],
        how or "not away, only lost from view",
        _at(r["leave_s"]),
        text.seconds(r["detected_after_s"]),
        r["recovery"],
        text.seconds(r["restored_s"]),
        text.seconds(r["recovery_s"]),
        text.number(r["lost_steps"]),
        text.seconds(r["extra_s"]) + (meaning and f" ({meaning})"),
        _at(r["return_s"]),
        text.seconds(r["taken_in_s"]),
    ]


def _at(seconds: float) -> str:
    return DASH if missing(seconds) else f"{seconds:.1f} s"


def links(data: RunData) -> Table:
    """Each link's settings at the start and their range over the run."""
    head = ["link", "down, at start (range)", "up, at start (range)", "RTT (range)", "jitter", "loss", "changes"]
    settings = data.select("link")
    rows = []
    for node in data.nodes:
        own = settings[settings["node"] == node]
        if len(own):
            first = own.iloc[0]
            rows.append(
                [
                    node,
                    _range(own["down_bps"], text.rate),
                    _range(own["up_bps"], text.rate),
                    _range(own["rtt_s"], text.seconds),
                    text.seconds(first["jitter_s"]),
                    text.percent(first["loss"]),
                    len(own) - 1,
                ]
            )
    return table(head, rows)


def cross_traffic(data: RunData) -> Table:
    """Other traffic in the homes: a row a home and direction, with its mean rate from its first event on."""
    head = ["link", "direction", "mean rate", "highest rate", "sent", "changes", "latest change"]
    changes = data.select("cross_traffic")
    rows = []
    for node in data.nodes:
        for direction in ("down", "up"):
            own = changes[(changes["node"] == node) & (changes["direction"] == direction)]
            if len(own):
                until = np.append(own["t"].to_numpy()[1:], max(data.end_s, own["t"].iloc[-1]))
                bits = float(((until - own["t"]) * own["rate_bps"]).sum())
                seconds = until[-1] - own["t"].iloc[0]
                mean = text.rate(bits / seconds) if seconds > 0 else DASH
                rows.append([
                    node, direction, mean, text.rate(own["rate_bps"].max()), text.size(bits / 8), len(own),
                    text.seconds(own["late"].max()),
                ])  # fmt: skip
    return table(head, rows)


def flows(data: RunData) -> Table:
    """The flows of the run's captures, those with most bytes first."""
    found = data.flows.table.sort_values("bytes", ascending=False)
    return table(["seen at", *FLOW_HEAD], [[r.capture, *flow_row(r)] for r in found.itertuples()])


def moved(data: RunData) -> Table:
    """What each step moved, by kind of message."""
    rows = [[r.step, r.kind, r.messages, text.size(r.bytes)] for r in data.flows.moved.itertuples()]
    return table(["step", "kind of message", "messages", "bytes"], rows)


def probes(data: RunData) -> Table:
    """What the probes before training found, with the deviation from what was set."""
    head = ["link", "down", "deviation", "up", "deviation", "RTT", "deviation"]
    found = data.select("probe")
    rows = []
    for node in data.nodes:
        own = found[found["node"] == node]
        if len(own):
            rows.append([node, *(cell for q in ("rate_down", "rate_up", "rtt") for cell in _probed(own, q))])
    return table(head, rows)


def _range(values: pd.Series, show: Callable[[float], str]) -> str:
    """'49.8 Mbit/s (33.3–66.4)': the first value, and the range where it changes."""
    first = show(values.iloc[0])
    low, high = show(values.min()), show(values.max())
    if low == high:
        return first
    units = {v.rpartition(" ")[2] for v in (first, low, high)}
    if len(units) == 1:
        low, high = low.rpartition(" ")[0], high.rpartition(" ")[0]
        return f"{first} ({low}–{high})"
    return f"{first} ({low} – {high})"


def _probed(probes: pd.DataFrame, quantity: str) -> tuple[str, str]:
    own = probes[probes["quantity"] == quantity]
    if not len(own):
        return DASH, DASH
    p = own.iloc[-1]
    show = text.seconds if quantity == "rtt" else text.rate
    if missing(p["set"]) or missing(p["measured"]) or p["set"] <= 0:
        return show(p["measured"]), DASH
    if quantity == "rtt":
        return show(p["measured"]), f"{1e3 * (p['measured'] - p['set']):+.2f} ms"
    return show(p["measured"]), f"{100 * (p['measured'] / p['set'] - 1):+.1f} %"


def devices(data: RunData) -> Table:
    """Each device's computer, bytes, and where its time went."""
    described = {d.get("name"): d for d in (data.plan.get("cluster") or {}).get("devices", [])}
    server = (data.plan.get("cluster") or {}).get("server")
    if server:
        described["server"] = server
    head = [
        "node",
        "profile",
        "speed",
        "memory",
        "sent",
        "received",
        "on the wire ↑",
        "on the wire ↓",
        *(f"{s} (time)" for s in STATES),
    ]
    rows = []
    for node in data.nodes:
        d = described.get(node, {})
        moved = data.bytes.loc[node]
        share = data.shares.loc[node] if node in data.shares.index else dict.fromkeys(STATES, 0.0)
        rows.append(
            [
                node,
                d.get("profile") or DASH,
                text.speed(d.get("flops")),
                text.size(d.get("memory_bytes")),
                *(text.size(moved[c]) for c in ("sent", "received", "wire_up", "wire_down")),
                *(text.percent(share[s] / data.end_s, 2) if data.end_s > 0 else DASH for s in STATES),
            ]
        )
    return table(head, rows)


def fidelity(data: RunData) -> Table:
    """Every check: the measured number beside its threshold."""
    head = ["check", "measured", "threshold", "", "where and how"]
    rows, marks = [], {}
    for i, c in enumerate(data.verdict.checks):
        sign = {True: "✓ ok", False: "✗ failed", None: "not measured"}[c.ok]
        bound = "at least " if c.name == "host_coverage" else ""
        where = c.text + (
            "" if c.at_s is None else f" (first at {c.at_s:.1f} s)" if c.at_s > 0 else " (from the start)"
        )
        rows.append([c.title, shown(c.measured, c.unit), bound + shown(c.threshold, c.unit), sign, where])
        marks[i] = {True: "ok", False: "bad", None: "dim"}[c.ok]
    return table(head, rows, marks)


def measured_compute_s(data: RunData) -> dict[str, float]:
    """Median over steps of the seconds that each device computed in it; steps without any are left out."""
    compute = data.select("compute")
    steps = data.steps[data.steps["counts"]].sort_values("start_s")
    if not len(compute) or not len(steps):
        return {}
    at = np.searchsorted(steps["start_s"].to_numpy(), compute["start"].to_numpy(), side="right") - 1
    inside = (at >= 0) & (compute["start"].to_numpy() < steps["end_s"].to_numpy()[np.maximum(at, 0)])
    took = (compute["end"] - compute["start"])[inside]
    per_step = took.groupby([compute["node"][inside], at[inside]]).sum()
    return per_step.groupby(level=0).median().to_dict() if len(per_step) else {}


@dataclass(frozen=True)
class Plan:
    """notes: sentences. tables: with titles, which may be empty. nested: titles and JSON of what is no table."""

    notes: list[str]
    tables: list[tuple[str, Table]]
    nested: list[tuple[str, str]]


def plan(data: RunData) -> Plan:
    """The runner's plan: what it predicted against what was measured, and its data as tables."""
    out: list[tuple[str, Table]] = []
    predicted = data.plan.get("predicted") or {}
    measured = {"step_time_s": data.summary.step_time_median_s}
    if predicted:
        rows = [
            [
                text.titled(k),
                text.quantity(k, v),
                text.quantity(k, measured.get(k)),
                f"{100 * (measured[k] / v - 1):+.3g} %" if v and measured.get(k) else DASH,
            ]
            for k, v in predicted.items()
        ]
        out.append(("", table(["predicted by the planner", "predicted", "measured (median)", "difference"], rows)))
    content = data.plan.get("data") or {}
    tables = {k: v for k, v in content.items() if isinstance(v, list) and v and all(isinstance(r, dict) for r in v)}
    nested = {k: v for k, v in content.items() if k not in tables and isinstance(v, (dict, list)) and _long(v)}
    others = {k: v for k, v in content.items() if k not in tables and k not in nested and k not in predicted}
    scalars = [[text.titled(k), text.quantity(k, v)] for k, v in others.items()]
    if scalars:
        out.append(("", table(["setting", "value"], scalars)))
    micro_batches = (data.plan.get("training") or {}).get("micro_batches")
    compute = measured_compute_s(data)
    out += [(text.titled(k).capitalize(), _records(rows, compute, micro_batches)) for k, rows in tables.items()]
    shown = [(text.titled(k), json.dumps(v, indent=1, ensure_ascii=False)[:50_000]) for k, v in nested.items()]
    return Plan(list(data.plan.get("notes") or []), out, shown)


def _long(value: Any) -> bool:
    return len(json.dumps(value)) > 120


def _records(rows: list[dict[str, Any]], compute: dict[str, float], micro_batches: int | None) -> Table:
    """Rows of the plan; those that name a device get its predicted and measured compute time a step."""
    columns = list(dict.fromkeys(k for r in rows for k in r))
    head = ["", *(text.titled(c) for c in columns)]
    body = [[str(i), *(text.quantity(c, r.get(c)) for c in columns)] for i, r in enumerate(rows)]
    if "device" in columns:
        if micro_batches and {"forward_s", "backward_s"} <= set(columns):
            head.append("computes a step, predicted")
            for line, r in zip(body, rows):
                line.append(text.seconds(micro_batches * ((r.get("forward_s") or 0) + (r.get("backward_s") or 0))))
        head.append("computes a step, measured (median)")
        for line, r in zip(body, rows):
            line.append(text.seconds(compute.get(r.get("device"))))
    return table(head, body)


def facts(content: Mapping[str, Any]) -> Table:
    """Nested settings as a table of dotted names and values."""
    return table(["", "value"], list(_flat("", content)))


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for k, v in value.items():
            yield from _flat(f"{prefix}.{k}" if prefix else str(k), v)
    else:
        yield prefix, text.quantity(prefix.rpartition(".")[2], value)
