"""The figures of docs/results.md: one metric over a question's axis, a line a strategy."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from testbed.figures import paper
from testbed.figures.style import dress, label
from testbed.measurement.recorder import write_error
from testbed.report.compare_figures import METRICS
from testbed.report.results import Results, Table, drawable, figure_name

_LOOK = {"cleave": ("#1f6fb4", "circle"), "1f1b": ("#b5651d", "square"), "gpipe": ("#e0a458", "triangle-down"),
         "parameter-server": ("#1b9e77", "diamond"), "tensor": ("#7b3fa0", "triangle-up"),
         "gpu": ("#6b7280", "pentagon")}  # fmt: skip


def draw(t: Table, results: Results, metric: str) -> go.Figure:
    """Logarithmic: the strategies are orders of magnitude apart. A strategy with one value is a level line."""
    figure = go.Figure()
    places = {v: float(v) if t.numeric else float(i) for i, v in enumerate(t.values)}
    for strategy in t.strategies:
        colour, mark = _LOOK.get(strategy, ("#111827", "x"))
        points = [
            (places[v], c.value(metric))
            for v in t.values
            if (c := t.cells.get((strategy, v))) is not None and c.value(metric)
        ]
        level = len(points) == 1 and strategy == "gpu" and len(t.values) > 1
        if level:
            points = [(at, points[0][1]) for at in places.values()]
        if points:
            x, y = zip(*points)
            figure.add_scatter(
                x=x, y=y, name=label(results.titles[strategy]), mode="lines" if level else "lines+markers",
                line={"color": colour, "width": 1.8, "dash": "dash" if level else "solid"},
                marker={"symbol": mark, "size": 7},
            )  # fmt: skip
    title = f"{METRICS[metric].title} [{METRICS[metric].unit}]"
    dress(figure, 340, t.axis, title, alt=f"{title} by {t.axis}, of {len(t.strategies)} strategies")
    figure.update_yaxes(type="log")
    figure.update_xaxes(
        type="log" if t.numeric else "linear", tickvals=list(places.values()), ticktext=[str(v) for v in places]
    )
    return figure


def write_figures(results: Results, folder: Path) -> list[Path]:
    """All figures as PNG. Raises TestbedError: a file can't be written."""
    written = []
    for t in results.tables:
        for metric in t.figures:
            if drawable(t, metric):
                path = folder / figure_name(t.name, metric)
                try:
                    written.append(paper.save(draw(t, results, metric), path, width=620, dpi=110))
                except OSError as error:
                    raise write_error(path, error) from None
    return written
