"""Traces on paper: rates over time and distributions; availability as a raster with its daily curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.ticker import FuncFormatter, MultipleLocator, NullFormatter

from testbed.ticks import log_ticks, plain
from testbed.traces import plot_data, summary
from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace

DOWN, UP, RTT, JITTER, LOSS, ON = "#1f6fb4", "#e08214", "#1b9e77", "#7b5ea7", "#c0392b", "#1b9e77"
INK, GRID, MUTED = "#1f2937", "#e5e7eb", "#6b7280"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "lines.linewidth": 1.1,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.hashsalt": "testbed",
}


def save(traces: Mapping, path: Path, title: str) -> None:
    """Write the figure of these traces to `path` (PNG, PDF or SVG by its suffix)."""
    with plt.rc_context(STYLE):
        first = next(iter(traces.values()))
        figure = _links(traces, title) if isinstance(first, LinkTrace) else _availability(traces, title)
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
        plt.close(figure)


def _links(traces: Mapping[str, LinkTrace], title: str):
    quantities = [
        ("rtt_s", "RTT", "ms", 1e3, RTT),
        ("jitter_s", "jitter", "ms", 1e3, JITTER),
        ("loss", "loss", "%", 1e2, LOSS),
    ]
    measured = [q for q in quantities if not plot_data.is_constant(traces, q[0])]
    figure = plt.figure(figsize=(7.2, 5.2), layout="constrained")
    figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    over_time, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    down, up = over_time.subplots(2, 1, sharex=True)
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    for axes, field, name, colour in ((down, "down_bps", "download", DOWN), (up, "up_bps", "upload", UP)):
        _over_time(axes, traces, field, span, axis, colour)
        axes.set_ylabel(f"{name}\nMbit/s")
        _rate_scale(axes, traces, field)
        axes.margins(x=0)
    up.set_xlabel(f"time [{axis.unit}]")
    _time_ticks(up, span, axis)
    panels = below.subplots(1, 1 + len(measured), sharey=True, squeeze=False)[0]
    _rates(panels[0], traces)
    for axes, (field, name, unit, factor, colour) in zip(panels[1:], measured):
        values, share = plot_data.distribution(traces, field)
        axes.step(values * factor, share, where="post", color=colour)
        axes.set_xlabel(f"{name} [{unit}]")
        if values[0] > 0 and values[-1] / values[0] > 30:
            _log(axes, values * factor)
        elif field == "loss" and values[-1] > 0:
            axes.set_xscale("symlog", linthresh=max(1e-3, float(values[values > 0].min()) * factor))
            axes.xaxis.set_major_formatter(FuncFormatter(plain))
            axes.xaxis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("share of samples")
    panels[0].set_ylim(0, 1.02)
    return figure


def _over_time(axes, traces, field, span, axis, colour) -> None:
    if len(traces) <= plot_data.HOMES:
        alpha = max(0.5, 1 - 0.06 * len(traces))
        broken = False
        for trace in traces.values():
            times, values = plot_data.steps(trace, field, span)
            values, held = plot_data.gaps(times, values)
            broken = broken or bool(held)
            axes.plot(times / axis.seconds, values / 1e6, drawstyle="steps-post", color=colour, alpha=alpha, lw=0.9)
            for a, b, value in held:
                axes.plot((a / axis.seconds, b / axis.seconds), [value / 1e6] * 2, ":", color=colour, lw=0.8)
        label = f"{len(traces)} homes" if len(traces) > 1 else ""
        if broken:
            label += ("; " if label else "") + "dotted: nothing measured, the value before is held"
        axes.text(1, 1.02, label, transform=axes.transAxes, ha="right", fontsize=7, color=MUTED)
        return
    times, (low, middle, high) = plot_data.spread(traces, field, span)
    axes.fill_between(times / axis.seconds, low / 1e6, high / 1e6, step="post", color=colour, alpha=0.2, lw=0)
    axes.plot(times / axis.seconds, middle / 1e6, drawstyle="steps-post", color=colour)
    axes.text(
        1,
        1.02,
        f"median and quartiles of {len(traces)} homes",
        transform=axes.transAxes,
        ha="right",
        fontsize=7,
        color=MUTED,
    )


def _rate_scale(axes, traces, field) -> None:
    values, _ = plot_data.distribution(traces, field)
    if values[-1] / values[max(0, len(values) // 100)] > 30:
        axes.set_yscale("log")
        log_ticks(axes.yaxis, *axes.get_ylim(), decades=4)
    else:
        axes.set_ylim(bottom=0)


def _rates(axes, traces) -> None:
    lowest, highest = [], []
    for field, name, colour in (("down_bps", "download", DOWN), ("up_bps", "upload", UP)):
        values, share = plot_data.distribution(traces, field)
        axes.step(values / 1e6, share, where="post", color=colour, label=name)
        lowest.append(values[0])
        highest.append(values[-1])
    axes.set_xlabel("rate [Mbit/s]")
    if max(highest) / min(lowest) > 10:
        _log(axes, (min(lowest), max(highest)))
    axes.legend(loc="upper left", handlelength=1.2, borderaxespad=0.2)


def _log(axes, values) -> None:
    axes.set_xscale("log")
    log_ticks(axes.xaxis, values[0], values[-1], decades=4)


def _time_ticks(axes, span: float, unit: plot_data.TimeAxis) -> None:
    """Hours in steps of 1, 2, 4, 6 or 12, so that a day's end has a tick."""
    if unit.unit == "h":
        step = next((s for s in (1, 2, 4, 6, 12) if span / 3600 / s <= 8), 24)
        axes.xaxis.set_major_locator(MultipleLocator(step))


def _availability(traces: Mapping[str, Availability], title: str):
    figure = plt.figure(figsize=(7.2, 5.2), layout="constrained")
    figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    hours = summary.by_hour(traces)
    grid = figure.add_gridspec(3, 2, height_ratios=(1.9, 0.55, 1))
    raster = figure.add_subplot(grid[0, :])
    share = figure.add_subplot(grid[1, :], sharex=raster)
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    rows = plot_data.raster_order(traces)
    segments = [
        ((a / axis.seconds, i), (b / axis.seconds, i))
        for i, trace in enumerate(rows)
        for a, b in trace.intervals_s.tolist()
    ]
    height = 1.9 / 3.45 * figure.get_figheight() * 0.78 * 72 / max(len(rows), 1)
    raster.add_collection(LineCollection(segments, colors=ON, linewidths=max(0.4, 0.8 * height), capstyle="butt"))
    raster.set(xlim=(0, span / axis.seconds), ylim=(-0.7, len(rows) - 0.3), ylabel="devices")
    raster.grid(visible=False)
    raster.tick_params(labelbottom=False, left=len(rows) <= 30, labelleft=False)
    shown = f"{len(rows)} of {len(traces)} devices" if len(rows) < len(traces) else f"{len(traces)} devices"
    raster.set_title(f"available, {shown}, least available below", fontsize=8, fontweight="normal", color=MUTED)
    _time_ticks(share, span, axis)
    times, fraction = plot_data.share_over_time(traces, span)
    share.fill_between(times / axis.seconds, 0, fraction, step="post", color=ON, alpha=0.25, lw=0)
    share.plot(times / axis.seconds, fraction, drawstyle="steps-post", color=ON, lw=1)
    share.set(ylim=(0, _top(fraction)), ylabel="share\navailable", xlabel=f"time [{axis.unit}]")
    _sessions(figure.add_subplot(grid[2, 0]), traces)
    axes = figure.add_subplot(grid[2, 1])
    if hours is not None:
        axes.bar([h + 0.5 for h in range(24)], hours, width=0.9, color=ON, alpha=0.8)
        zone = "UTC" if next(iter(traces.values())).start_epoch_s is not None else "of the trace"
        axes.set(xlim=(0, 24), ylim=(0, _top(hours)), xlabel=f"hour of the day ({zone})", ylabel="share available")
        axes.set_xticks(range(0, 25, 4))
    else:
        shares = sorted(t.fraction() for t in traces.values())
        axes.step(shares, [(i + 1) / len(shares) for i in range(len(shares))], where="post", color=ON)
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="share of time available", ylabel="share of devices")
    return figure


def _top(shares) -> float:
    """The end of an axis of shares: 1, unless all of them are small."""
    return 1.0 if max(shares) > 0.4 or max(shares) <= 0 else 1.2 * max(shares)


def _sessions(axes, traces) -> None:
    sessions, gaps = plot_data.lengths(traces)
    longest = max((x[-1] for x in (sessions, gaps) if len(x)), default=1.0)
    axis = plot_data.time_axis(longest)
    for values, name, colour in ((sessions, "sessions", ON), (gaps, "gaps between", LOSS)):
        if len(values):
            axes.step(
                values / axis.seconds,
                [(i + 1) / len(values) for i in range(len(values))],
                where="post",
                color=colour,
                label=name,
            )
    if len(sessions) and longest / sessions[0] > 30:
        _log(axes, (sessions[0], longest))
    axes.set(ylim=(0, 1.02), xlabel=f"length [{axis.unit}]", ylabel="share at most as long")
    axes.legend(loc="upper left", handlelength=1.2, borderaxespad=0.2)
