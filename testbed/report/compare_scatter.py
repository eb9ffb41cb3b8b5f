"""Simulated against emulated, a dot a case."""

from __future__ import annotations

from math import log10
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from testbed.figures import colours, paper
from testbed.figures.style import dress, label
from testbed.measurement.recorder import write_error
from testbed.report.compare_engines import Case, Validation

_MARKS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon")
PANELS = {"step_time_s": ("step time [s]", 0.10), "outage_s": ("loss to recovery [s]", 0.25)}  # and the band drawn


def scatter(v: Validation) -> go.Figure:
    """One panel for step time, one for recovery where there were losses; logarithmic, with the band asked for."""
    panels = [m for m in PANELS if any(m in c.errors for c in v.cases)] or ["step_time_s"]
    figure = make_subplots(rows=1, cols=len(panels), horizontal_spacing=0.12)
    dress(figure, 480, alt=f"Simulated against emulated times of {len(v.cases)} cases")
    runners = sorted({c.runner for c in v.cases})
    for col, metric in enumerate(panels, 1):
        cases = [c for c in v.cases if metric in c.errors and c.simulated[metric].mean]
        _panel(figure, col, metric, cases, runners)
    return figure


def _panel(figure: go.Figure, col: int, metric: str, cases: list[Case], runners: list[str]) -> None:
    title, band = PANELS[metric]
    at = {"row": 1, "col": col}
    values = [x for c in cases for x in (c.emulated[metric].mean, c.simulated[metric].mean)] or [1.0]
    low, high = min(values) / 1.6, max(values) * 1.6
    figure.add_scatter(
        x=[low, high, high, low, low],
        y=[low * (1 - band), high * (1 - band), high * (1 + band), low * (1 + band), low * (1 - band)],
        mode="lines", fill="toself", fillcolor=colours.GRID, line={"width": 0}, name=f"± {100 * band:.0f} %", **at,
    )  # fmt: skip
    figure.add_scatter(
        x=[low, high], y=[low, high], mode="lines", line={"color": colours.SET, "width": 1}, showlegend=False, **at
    )
    for i, runner in enumerate(runners):
        for valid in (True, False):
            some = [c for c in cases if c.runner == runner and c.valid is valid]
            if not some:
                continue
            real = [c.emulated[metric] for c in some]
            figure.add_scatter(
                x=[e.mean for e in real], y=[c.simulated[metric].mean for c in some], mode="markers",
                name=label(runner if valid else f"{runner}, not VALID"), legendgroup=f"{runner} {valid}",
                showlegend=col == 1, text=[label(c.name) for c in some],
                marker={"symbol": _MARKS[i % len(_MARKS)] if valid else "circle-open", "size": 9,
                        "color": colours.SERIES[i % len(colours.SERIES)]},
                error_x={"type": "data", "symmetric": False,
                         "array": [0 if e.high is None else min(e.high, high) - e.mean for e in real],
                         "arrayminus": [0 if e.low is None else e.mean - max(e.low, low) for e in real]}, **at,
            )  # fmt: skip
    scale = {"type": "log", **at}
    figure.update_xaxes(title_text=f"emulated {title}", range=_decades(low, high), **scale)
    figure.update_yaxes(title_text=f"simulated {title}", range=_decades(low, high), **scale)
    figure.update_yaxes(scaleanchor=f"x{col if col > 1 else ''}", **at)


def _decades(low: float, high: float) -> list[float]:
    return [log10(low), log10(high)]


def write_scatter(v: Validation, folder: Path, stem: str = "validation") -> list[Path]:
    """STEM.png and STEM.svg. Raises TestbedError: a file can't be written."""
    figure = scatter(v)
    written = []
    for path in (folder / f"{stem}.png", folder / f"{stem}.svg"):
        try:
            written.append(paper.save(figure, path, width=480 * len(list(figure.select_xaxes()))))
        except OSError as error:
            raise write_error(path, error) from None
    return written
