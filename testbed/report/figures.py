"""Figures of training: loss, step times, and what each device did when."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from testbed.figures import colours
from testbed.figures.style import dress, label
from testbed.report import series, text
from testbed.report.gantt import NAMES, Gantt, label_fits
from testbed.report.run_data import RunData


def needs_log(values: pd.Series) -> bool:
    """Losses over more than three decades are drawn on a logarithmic axis."""
    known = values[np.isfinite(values)]
    return bool(len(known) and known.min() > 0 and known.max() / known.min() > 1e3)


def loss(data: RunData) -> go.Figure:
    """Loss by step; attempts lost in a rollback are hollow, losses that are no number crosses."""
    steps = series.thinned(data.steps)
    counted, redone = steps[steps["counts"]].sort_values("step"), steps[~steps["counts"]]
    figure = go.Figure()
    mode = "lines+markers" if len(counted) <= 200 else "lines"
    hover = "step %{x}<br>loss %{y:.5g}<br>at %{customdata:.1f} s<extra></extra>"
    figure.add_scatter(
        x=counted["step"],
        y=_finite(counted["loss"]),
        customdata=counted["end_s"],
        mode=mode,
        name="counts",
        line={"color": colours.MEASURED, "width": 2},
        marker={"size": 5},
        hovertemplate=hover,
    )
    if len(redone):
        figure.add_scatter(
            x=redone["step"],
            y=_finite(redone["loss"]),
            customdata=redone["end_s"],
            mode="markers",
            name="lost in a rollback",
            hovertemplate=hover,
            marker={"symbol": "circle-open", "size": 9, "color": colours.REDONE},
        )
    broken = counted[~np.isfinite(counted["loss"])]
    if len(broken):
        known = steps["loss"][np.isfinite(steps["loss"])]
        figure.add_scatter(
            x=broken["step"],
            y=np.full(len(broken), known.max() if len(known) else 1.0),
            mode="markers",
            name="not a finite number",
            marker={"symbol": "x", "size": 9, "color": colours.LEAVE},
            text=[text.loss(v) for v in broken["loss"]],
            hovertemplate="step %{x}<br>loss %{text}<extra></extra>",
        )
    shown = [text.loss(v) for v in counted["loss"]] or [text.DASH]
    dress(figure, 340, "step", "loss", alt=f"Loss of {len(data.steps)} steps, from {shown[0]} to {shown[-1]}")
    if needs_log(steps["loss"]):
        figure.update_yaxes(type="log")
    if len(steps) and steps["step"].max() - steps["step"].min() < 12:
        figure.update_xaxes(dtick=1)
    figure.update_layout(showlegend=len(figure.data) > 1)
    return figure


def step_times(data: RunData) -> go.Figure:
    """Step time against time, with departures, returns and recoveries."""
    steps = series.thinned(data.steps)
    counted, redone = steps[steps["counts"]], steps[~steps["counts"]]
    median, predicted = data.summary.step_time_median_s, data.summary.step_time_predicted_s
    top = 1.08 * max([v for v in (*steps["step_time_s"], predicted) if v is not None and v > 0], default=1.0)
    figure = go.Figure()
    _recoveries(figure, data, 0.0, top)
    _marks(figure, data, 0.0, top)
    mode = "lines+markers" if len(counted) <= 400 else "lines"
    hover = "step %{customdata[0]:.0f}, attempt %{customdata[1]:.0f}<br>%{y:.4g} s, at %{x:.1f} s<extra></extra>"
    figure.add_scatter(
        x=counted["end_s"],
        y=counted["step_time_s"],
        customdata=counted[["step", "attempt"]],
        mode=mode,
        name="step time",
        line={"color": colours.MEASURED, "width": 1.5},
        marker={"size": 5},
        hovertemplate=hover,
    )
    if len(redone):
        figure.add_scatter(
            x=redone["end_s"],
            y=redone["step_time_s"],
            customdata=redone[["step", "attempt"]],
            mode="markers",
            name="lost in a rollback",
            hovertemplate=hover,
            marker={"symbol": "circle-open", "size": 9, "color": colours.REDONE},
        )
    for value, name, dash in ((median, "median", "dot"), (predicted, "planned", "dash")):
        if value is not None:
            figure.add_scatter(
                x=[0, data.end_s],
                y=[value, value],
                mode="lines",
                name=f"{name} {text.seconds(value)}",
                line={"color": colours.SET, "width": 1.2, "dash": dash},
                hoverinfo="skip",
            )
    alt = (
        f"Step times over {text.seconds(data.end_s)}, median {text.seconds(median)}, {len(data.churn)} absences marked"
    )
    dress(figure, 360, "emulated time [s]", "step time [s]", alt=alt)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(range=[0, max(data.end_s, 1e-3)])
    return figure


def _marks(figure: go.Figure, data: RunData, low: float, high: float) -> None:
    styles = {
        "leave": (colours.LEAVE, "solid", "a device leaves"),
        "return": (colours.RETURN, "dash", "a device returns"),
    }
    for kind, moments in series.events_per_line(data).items():
        if len(moments):
            colour, dash, name = styles[kind]
            t = moments["t"].to_numpy()
            x = np.c_[t, t, np.full(len(t), np.nan)].ravel()
            y = np.tile([low, high, np.nan], len(t))
            labels = np.repeat([label(n) for n in moments["node"]], 3)
            figure.add_scatter(
                x=x,
                y=y,
                mode="lines",
                name=name,
                text=labels,
                line={"color": colour, "width": 1.4, "dash": dash},
                hovertemplate=f"%{{text}}: {kind} at %{{x:.1f}} s<extra></extra>",
            )


def _recoveries(figure: go.Figure, data: RunData, low: float, high: float) -> None:
    back = data.select("recovery")
    if len(back):
        start, end = back["start"].to_numpy(), back["end"].to_numpy()
        gap = np.full(len(back), np.nan)
        x = np.c_[start, end, end, start, start, gap].ravel()
        y = np.tile([low, low, high, high, low, np.nan], len(back))
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            fill="toself",
            fillcolor=colours.RECOVERY,
            line={"width": 0.5, "color": colours.RECOVERY},
            name="recovery",
            hoverinfo="skip",
        )


def timeline(chart: Gantt, labelled: bool = False) -> go.Figure:
    """One row a device: computing or waiting above, sending and receiving below, absences behind.

    Args:
        labelled: write each computation's label into its box.
    """
    figure = go.Figure()
    for state in ("offline", "wait", "compute", "send", "receive"):
        boxes = chart.boxes[chart.boxes["state"] == state]
        if not len(boxes):
            continue
        start, end, low, high = (boxes[c].to_numpy(dtype=float) for c in ("start", "end", "low", "high"))
        gap = np.full(len(boxes), np.nan)
        colour = colours.STATE[state]
        figure.add_scatter(
            x=np.c_[start, end, end, start, start, gap].ravel(),
            y=np.c_[low, low, high, high, low, gap].ravel(),
            mode="lines",
            fill="toself",
            fillcolor=colour,
            name=NAMES[state],
            legendgroup=state,
            hoverinfo="skip",
            line={
                "width": 0.8 if labelled and state == "compute" else 0.4,
                "color": "white" if labelled and state == "compute" else colour,
            },
        )
        names = [
            label(v or "") + (f" (+{n - 1} more)" if n > 1 else "") for v, n in zip(boxes["label"], boxes["count"])
        ]
        figure.add_scatter(
            x=(start + end) / 2,
            y=(low + high) / 2,
            mode="lines",
            line={"width": 0, "color": "rgba(0,0,0,0)"},
            legendgroup=state,
            showlegend=False,
            text=names,
            customdata=np.c_[start, end],
            hovertemplate="%{text}<br>%{customdata[0]:.3f} to %{customdata[1]:.3f} s<extra>"
            + NAMES[state]
            + "</extra>",
        )
    if labelled:
        boxes = chart.boxes[(chart.boxes["state"] == "compute")]
        boxes = boxes[label_fits(boxes, chart)]
        if 0 < len(boxes) <= 500:
            figure.add_scatter(
                x=(boxes["start"] + boxes["end"]) / 2,
                y=(boxes["low"] + boxes["high"]) / 2,
                mode="text",
                text=[label(str(v)[:8]) for v in boxes["label"]],
                showlegend=False,
                hoverinfo="skip",
                textfont={"color": "white", "size": 10},
            )
    alt = f"What {len(chart.rows)} nodes did from {text.seconds(chart.start_s)} to {text.seconds(chart.end_s)}"
    height = 110 + (38 if len(chart.rows) <= 16 else 26) * max(len(chart.rows), 2)
    dress(figure, height, "emulated time [s]", alt=alt)
    figure.update_yaxes(
        tickvals=[r + 0.5 for r in chart.rows.values()],
        ticktext=[label(text.short(n)) for n in chart.rows],
        range=[0, max(len(chart.rows), 1)],
        showgrid=False,
        fixedrange=True,
    )
    figure.update_xaxes(range=[chart.start_s, max(chart.end_s, chart.start_s + 1e-3)])
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "layer": "below", "line": {"color": colours.GRID}}
    figure.update_layout(shapes=[{**line, "y0": row, "y1": row} for row in chart.rows.values()])
    return figure


def _finite(values: pd.Series) -> pd.Series:
    return values.where(np.isfinite(values))
