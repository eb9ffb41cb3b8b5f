"""The main figures as PNG files, for papers and slides; the same numbers as in the HTML report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from testbed.measurement.recorder import write_error
from testbed.report import colours, series
from testbed.report.figures import needs_log
from testbed.report.gantt import NAMES, Gantt, gantt, label_fits, typical_step
from testbed.report.run_data import RunData
from testbed.ticks import log_ticks

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": colours.SET,
    "axes.grid": True,
    "grid.color": colours.GRID,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.parse_math": False,
}


def write_pngs(data: RunData, folder: Path) -> list[Path]:
    """Draw what the run has data for. Raises TestbedError: a file can't be written."""
    drawings: dict[str, tuple[bool, Callable[[RunData], Figure]]] = {
        "loss.png": (len(data.steps) > 0 and data.summary.final_loss is not None, loss),
        "step_times.png": (len(data.steps) > 0, step_times),
        "timeline.png": (len(data.intervals) > 0, lambda d: timeline(gantt(d, most=40_000))),
        "step.png": (typical_step(data) is not None and len(data.intervals) > 0, _one_step),
        "links.png": (bool(series.shown_links(data)), links),
        "bytes.png": (bool(data.devices) and data.bytes[["sent", "received"]].notna().any(axis=None), device_bytes),
    }
    written = []
    with matplotlib.rc_context(STYLE):
        for name, (has_data, draw) in drawings.items():
            path = folder / name
            if not has_data:
                path.unlink(missing_ok=True)  # of an earlier report
                continue
            try:
                figure = draw(data)
                if data.verdict.label != "VALID":  # the figure may travel without the report
                    figure.text(
                        0.998,
                        0.995,
                        data.verdict.label,
                        color="white",
                        backgroundcolor=colours.LEAVE,
                        size=8,
                        weight="bold",
                        ha="right",
                        va="top",
                    )
                figure.savefig(path, dpi=150)
            except OSError as error:
                raise write_error(path, error) from None
            written.append(path)
    return written


def _one_step(data: RunData) -> Figure:
    step = typical_step(data)
    return timeline(gantt(data, step["start_s"], step["end_s"]), labelled=True)


def loss(data: RunData) -> Figure:
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    counted, redone = data.steps[data.steps["counts"]].sort_values("step"), data.steps[~data.steps["counts"]]
    known = np.isfinite(counted["loss"])
    axes.plot(
        counted["step"], counted["loss"].where(known), color=colours.MEASURED, marker=".", markersize=4, label="counts"
    )
    if len(redone):
        axes.plot(redone["step"], redone["loss"], "o", mfc="none", color=colours.REDONE, label="lost in a rollback")
    if (~known).any():
        top = counted["loss"][known].max() if known.any() else 1.0
        axes.plot(
            counted["step"][~known], np.full((~known).sum(), top), "x", color=colours.LEAVE, label="not a finite number"
        )
    if needs_log(data.steps["loss"]):
        axes.set_yscale("log")
        log_ticks(axes.yaxis, *axes.get_ylim())
    axes.set(xlabel="step", ylabel="loss")
    if len(redone) or (~known).any():
        axes.legend()
    return figure


def step_times(data: RunData) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    counted, redone = data.steps[data.steps["counts"]], data.steps[~data.steps["counts"]]
    for i, row in enumerate(data.select("recovery").itertuples()):
        axes.axvspan(row.start, row.end, color=colours.RECOVERY, label="recovery" if i == 0 else None)
    marks = series.events_per_line(data)
    for kind, colour, style in (("leave", colours.LEAVE, "-"), ("return", colours.RETURN, "--")):
        for i, t in enumerate(marks[kind]["t"]):
            axes.axvline(t, color=colour, ls=style, lw=1, label=f"a device {kind}s" if i == 0 else None)
    axes.plot(counted["end_s"], counted["step_time_s"], color=colours.MEASURED, marker=".", lw=1, label="step time")
    if len(redone):
        axes.plot(
            redone["end_s"], redone["step_time_s"], "o", mfc="none", color=colours.REDONE, label="lost in a rollback"
        )
    if data.summary.step_time_median_s is not None:
        axes.axhline(data.summary.step_time_median_s, color=colours.SET, ls=":", lw=1, label="median")
    axes.set(
        xlabel="emulated time [s]",
        ylabel="step time [s]",
        ylim=(0, _top(data.steps["step_time_s"])),
        xlim=(0, max(data.end_s, 1e-3)),
    )
    figure.legend(loc="outside upper left", ncols=6)
    return figure


def _top(values: pd.Series) -> float:
    top = values[np.isfinite(values)].max() if np.isfinite(values).any() else 0.0
    return 1.08 * top if top > 0 else 1.0


def timeline(chart: Gantt, labelled: bool = False) -> Figure:
    rows = len(chart.rows)
    figure = Figure(figsize=(10, min(1.2 + 0.36 * max(rows, 2), 14)), layout="constrained")
    axes = figure.subplots()
    handles = []
    for state in ("offline", "wait", "compute", "send", "receive"):
        boxes = chart.boxes[chart.boxes["state"] == state]
        if not len(boxes):
            continue
        x0, x1, y0, y1 = (boxes[c].to_numpy(dtype=float) for c in ("start", "end", "low", "high"))
        corners = np.stack([np.c_[x0, y0], np.c_[x1, y0], np.c_[x1, y1], np.c_[x0, y1]], axis=1)
        outline = {"edgecolors": "white", "linewidths": 0.6} if labelled and state == "compute" else {"linewidths": 0}
        axes.add_collection(PolyCollection(corners, facecolors=colours.STATE[state], **outline))
        handles.append(Patch(color=colours.STATE[state], label=NAMES[state]))
        if labelled and state == "compute" and len(boxes) <= 500:
            for b in boxes[label_fits(boxes, chart)].itertuples():
                axes.text(
                    (b.start + b.end) / 2,
                    (b.low + b.high) / 2,
                    str(b.label)[:8],
                    color="white",
                    fontsize=6.5,
                    ha="center",
                    va="center",
                )
    for row in chart.rows.values():
        axes.axhline(row, color=colours.GRID, lw=0.7, zorder=0)
    axes.set_yticks([r + 0.5 for r in chart.rows.values()], list(chart.rows))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set(
        xlim=(chart.start_s, max(chart.end_s, chart.start_s + 1e-3)), ylim=(0, max(rows, 1)), xlabel="emulated time [s]"
    )
    figure.legend(handles=handles, loc="outside upper left", ncols=5)
    return figure


def links(data: RunData) -> Figure:
    nodes = series.shown_links(data)
    figure = Figure(figsize=(10, 0.8 + 1.25 * len(nodes)), layout="constrained")
    grid = figure.subplots(len(nodes), 2, sharex=True, squeeze=False)
    for i, node in enumerate(nodes):
        for j, direction in enumerate(("down", "up")):
            axes = grid[i][j]
            t, rate = series.measured_rate(data, node, direction)
            if len(t):
                axes.fill_between(t, rate / 1e6, color=colours.MEASURED, alpha=0.3, lw=0, label="measured")
                axes.plot(t, rate / 1e6, color=colours.MEASURED, lw=0.8)
            t, rate = series.set_rate(data, node, direction)
            if len(t):
                axes.step(t, rate / 1e6, where="post", color=colours.SET, lw=1.3, label="set")
            probed = series.probed_rate(data, node, direction)
            if probed is not None:
                axes.plot(
                    [0],
                    [probed / 1e6],
                    "D",
                    color=colours.PROBED,
                    ms=4,
                    clip_on=False,
                    zorder=5,
                    label="probed before training",
                )
            axes.set_title(f"{node} {'↓ down' if direction == 'down' else '↑ up'}", fontsize=9, loc="left")
            axes.set(ylim=(0, None), xlim=(0, max(data.end_s, 1e-3)))
        grid[i][0].set_ylabel("Mbit/s")
    for axes in grid[-1]:
        axes.set_xlabel("emulated time [s]")
    handles = {label: h for axes in grid.flat for h, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=3)
    return figure


def device_bytes(data: RunData) -> Figure:
    table = data.bytes.reindex(data.devices).fillna(0.0)
    many = len(table) > 40
    if many:
        table = table.sort_values("received", ascending=False, kind="stable")
    figure = Figure(figsize=(7 if len(table) <= 20 else 10, 3.2), layout="constrained")
    axes = figure.subplots()
    x = np.arange(len(table))
    axes.bar(x - 0.2, table["received"] / 1e6, 0.4, color=colours.STATE["receive"], label="received")
    axes.bar(x + 0.2, table["sent"] / 1e6, 0.4, color=colours.STATE["send"], label="sent")
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("MB")
    if many:
        axes.set(xticks=[], xlabel="devices, by bytes received")
    else:
        axes.set_xticks(x, list(table.index), rotation=0 if len(table) <= 12 else 60)
    axes.legend()
    return figure
