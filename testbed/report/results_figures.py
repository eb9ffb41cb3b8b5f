"""The figures of docs/results.md: one metric over a question's axis, a line a strategy."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from testbed.measurement.recorder import write_error
from testbed.report.compare_figures import METRICS
from testbed.report.pngs import STYLE
from testbed.report.results import Results, Table, drawable, figure_name
from testbed.ticks import log_ticks

_LOOK = {"cleave": ("#1f6fb4", "o"), "1f1b": ("#b5651d", "s"), "gpipe": ("#e0a458", "v"),
         "parameter-server": ("#1b9e77", "D"), "tensor": ("#7b3fa0", "^"), "gpu": ("#6b7280", "P")}  # fmt: skip


def draw(t: Table, results: Results, metric: str) -> Figure:
    """Logarithmic: the strategies are orders of magnitude apart. A strategy with one value is a level line."""
    figure = Figure(figsize=(6.2, 3.4), layout="constrained")
    axes = figure.subplots()
    places = {v: float(v) if t.numeric else i for i, v in enumerate(t.values)}
    for strategy in t.strategies:
        colour, mark = _LOOK.get(strategy, ("#111827", "x"))
        points = [
            (places[v], c.value(metric))
            for v in t.values
            if (c := t.cells.get((strategy, v))) is not None and c.value(metric)
        ]
        if len(points) == 1 and strategy == "gpu" and len(t.values) > 1:
            axes.axhline(points[0][1], color=colour, ls="--", lw=1, label=results.titles[strategy])
        elif points:
            axes.plot(*zip(*points), marker=mark, ms=5, lw=1.3, color=colour, label=results.titles[strategy])
    axes.set(yscale="log", xlabel=t.axis, ylabel=f"{METRICS[metric].title} [{METRICS[metric].unit}]")
    if t.numeric:
        axes.set_xscale("log")
    axes.set_xticks(list(places.values()), list(places))
    axes.minorticks_off()
    log_ticks(axes.yaxis, *axes.get_ylim())
    figure.legend(loc="outside upper left", ncols=3)
    return figure


def write_figures(results: Results, folder: Path) -> list[Path]:
    """All figures as PNG. Raises TestbedError: a file can't be written."""
    written = []
    with matplotlib.rc_context(STYLE):
        for t in results.tables:
            for metric in t.figures:
                if drawable(t, metric):
                    path = folder / figure_name(t.name, metric)
                    try:
                        draw(t, results, metric).savefig(path, dpi=110, metadata={"Software": None})
                    except OSError as error:
                        raise write_error(path, error) from None
                    written.append(path)
    return written
