"""Simulated against emulated, a dot a case."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.measurement.recorder import write_error
from testbed.report import colours
from testbed.report.compare_engines import Case, Validation
from testbed.report.pngs import STYLE
from testbed.ticks import log_ticks

_MARKS = ("o", "s", "^", "D", "v", "P")
_COLOURS = ("#1f6fb4", "#b5651d", "#1b9e77", "#7b3fa0", "#c79a00", "#6b7280")
PANELS = {"step_time_s": ("step time [s]", 0.10), "outage_s": ("loss to recovery [s]", 0.25)}  # and the band drawn


def scatter(v: Validation) -> Figure:
    """One panel for step time, one for recovery where there were losses; logarithmic, with the band asked for."""
    panels = [m for m in PANELS if any(m in c.errors for c in v.cases)] or ["step_time_s"]
    figure = Figure(figsize=(4.6 * len(panels), 4.4), layout="constrained")
    runners = sorted({c.runner for c in v.cases})
    for axes, metric in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels):
        _panel(axes, metric, [c for c in v.cases if metric in c.errors and c.simulated[metric].mean], runners)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4)
    return figure


def _panel(axes: Axes, metric: str, cases: list[Case], runners: list[str]) -> None:
    title, band = PANELS[metric]
    values = [x for c in cases for x in (c.emulated[metric].mean, c.simulated[metric].mean)] or [1.0]
    low, high = min(values) / 1.6, max(values) * 1.6
    line = np.array([low, high])
    axes.fill_between(line, line * (1 - band), line * (1 + band), color=colours.GRID, label=f"± {100 * band:.0f} %")
    axes.plot(line, line, color=colours.SET, lw=1)
    for runner in runners:
        i = runners.index(runner)
        own = [c for c in cases if c.runner == runner]
        for c in own:
            real = c.emulated[metric]
            if real.low is not None:
                axes.plot(
                    [max(real.low, low), min(real.high, high)],
                    [c.simulated[metric].mean] * 2,
                    lw=0.9,
                    color=_COLOURS[i % len(_COLOURS)],
                )
        for doubtful in (False, True):
            some = [c for c in own if c.valid is not doubtful]
            if some:
                axes.plot(
                    [c.emulated[metric].mean for c in some],
                    [c.simulated[metric].mean for c in some],
                    _MARKS[i % len(_MARKS)],
                    color=_COLOURS[i % len(_COLOURS)],
                    mfc="none" if doubtful else None,
                    label=f"{runner}, not VALID" if doubtful else runner,
                )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        aspect="equal",
        xlabel=f"emulated {title}",
        ylabel=f"simulated {title}",
    )
    for axis in (axes.xaxis, axes.yaxis):
        log_ticks(axis, low, high)


def write_scatter(v: Validation, folder: Path, stem: str = "validation") -> list[Path]:
    """STEM.png and STEM.svg. Raises TestbedError: a file can't be written."""
    written = []
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "validation"}):
        figure = scatter(v)
        for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            path = folder / f"{stem}.{ending}"
            try:
                figure.savefig(path, dpi=150, metadata=metadata)
            except OSError as error:
                raise write_error(path, error) from None
            written.append(path)
    return written
