"""Figures as files for papers and slides: matplotlib draws what a plotly figure describes; no browser is needed.

Of plotly it knows what the figures here use: scatter (lines, markers, text, fills, error bars) and grouped bars, on
linear, logarithmic and category axes in a grid of panels, with captions, level lines, one legend and a title.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from testbed.figures import colours
from testbed.figures.ticks import log_ticks

_STYLE: Any = {
    "font.size": 9,
    "text.color": colours.INK,
    "axes.labelcolor": colours.INK,
    "xtick.color": colours.SET,
    "ytick.color": colours.SET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": colours.SET,
    "grid.color": colours.GRID,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.parse_math": False,
    "svg.hashsalt": "testbed",  # the same bytes each time
    "pdf.fonttype": 42,
}
_PIXELS = 100  # of plotly make an inch
_POINTS = 72 / _PIXELS
_DASHES = {"dot": ":", "dash": "--", "dashdot": "-."}
_SYMBOLS = {
    "circle": "o", "circle-open": "o", "square": "s", "triangle-up": "^", "triangle-down": "v", "diamond": "D",
    "pentagon": "p", "x": "x",
}  # fmt: skip
_UNDATED = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def save(figure: go.Figure, path: Path, *, width: int = 1000, stamp: str = "", dpi: int = 150) -> Path:
    """Write a figure as `path`'s ending says: .png, .svg or .pdf.

    Args:
        width: pixels of 1/100 inch; the height is the figure's own.
        stamp: a warning for its corner, since it may travel alone.

    Raises:
        OSError: it can't be written.
    """
    with matplotlib.rc_context(_STYLE):
        drawn = draw(figure, width)
        if stamp:
            box: dict[str, Any] = {"color": "white", "backgroundcolor": colours.LEAVE, "size": 8, "weight": "bold"}
            drawn.text(0.998, 0.995, stamp, ha="right", va="top", **box)
        drawn.savefig(path, dpi=dpi, metadata=_UNDATED.get(path.suffix.lower()))
    return path


def draw(figure: go.Figure, width: int = 1000) -> Figure:
    """The figure in matplotlib."""
    layout = figure.layout
    drawn = Figure(figsize=(width / _PIXELS, min(layout.height or 400, 2400) / _PIXELS), layout="constrained")
    panels = _panels(drawn, layout)
    handles: dict[str, Any] = {}
    below: dict[str, Any] = {}  # the trace before, to which 'tonexty' fills
    bars = [t for t in figure.data if t.type == "bar"]
    categories = {name: _categories(figure, name) for name in panels}
    for trace in figure.data:
        name = (trace.xaxis or "x") + (trace.yaxis or "y")
        axes = panels[name]
        x = _numbers(trace.x, categories[name])
        if trace.type == "bar":
            handle = _bar(axes, trace, x, bars)
        else:
            handle = _scatter(axes, trace, x, below.get(name))
        below[name] = (x, trace.y)
        if trace.name and trace.showlegend is not False and handle is not None:
            handles.setdefault(_plain(trace.name), handle)
    for name, axes in panels.items():
        x_name, y_name = re.findall(r"[xy]\d*", name)
        _axis(axes, "x", layout[x_name.replace("x", "xaxis")], categories[name], width / _PIXELS)
        _axis(axes, "y", layout[y_name.replace("y", "yaxis")], [], width / _PIXELS)
    for note in layout.annotations:
        axes = panels[next(n for n in panels if n.startswith(note.xref.split()[0] + "y"))]
        axes.annotate(
            _plain(note.text), (note.x, 1), (0, 2), xycoords="axes fraction", textcoords="offset points",
            ha=note.xanchor, va="bottom", color=note.font.color, fontsize=8,
        )  # fmt: skip
    for shape in layout.shapes:
        panels["xy"].axhline(shape.y0, color=shape.line.color, lw=0.7, zorder=0)
    if handles and (layout.showlegend is not False) and (len(handles) > 1 or layout.showlegend):
        longest = max(len(h) for h in handles) * 6 + 50
        drawn.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper right" if layout.title.text else "outside upper left",
            ncols=max(1, min(6, width // longest)),
        )
    if layout.title.text:
        drawn.suptitle(_plain(layout.title.text), fontsize=10, fontweight="bold", x=0.01, ha="left")
    return drawn


def _panels(drawn: Figure, layout: go.Layout) -> dict[str, Axes]:
    """A panel a pair of axes ('xy', 'x2y2', …), where plotly's domains put it."""
    boxes = {}
    for key in sorted((k for k in layout if re.fullmatch(r"yaxis\d*", k)), key=lambda k: (len(k), k)):
        y = layout[key]
        anchor = y.anchor or "x"
        x = layout[anchor.replace("x", "xaxis")]
        boxes[anchor + key.replace("yaxis", "y")] = (*(x.domain or (0, 1)), *(y.domain or (0, 1)))
    if not boxes:
        boxes = {"xy": (0, 1, 0, 1)}
    lefts, tops = sorted({b[0] for b in boxes.values()}), sorted({b[3] for b in boxes.values()}, reverse=True)
    widths = [min(b[1] - b[0] for b in boxes.values() if b[0] == left) for left in lefts]
    heights = [min(b[3] - b[2] for b in boxes.values() if b[3] == top) for top in tops]
    grid = drawn.add_gridspec(len(tops), len(lefts), width_ratios=widths, height_ratios=heights)
    panels: dict[str, Axes] = {}
    for name, (left, right, low, top) in boxes.items():
        row, col = tops.index(top), lefts.index(left)
        last_row = row + sum(low < t < top for t in tops)
        last_col = col + sum(left < at < right for at in lefts)
        shared = layout[re.sub(r"y\d*$", "", name).replace("x", "xaxis")].matches
        other = next((a for n, a in panels.items() if shared and n.startswith(shared + "y")), None)
        panels[name] = drawn.add_subplot(grid[row : last_row + 1, col : last_col + 1], sharex=other)
    return panels


def _scatter(axes: Axes, trace: go.Scatter, x: np.ndarray, before: Any) -> Any:
    y = np.array([np.nan if v is None else v for v in trace.y], dtype=float)
    mode, colour = trace.mode or "lines", trace.line.color or trace.marker.color
    step = trace.line.shape == "hv"
    handle = None
    if trace.fill == "toself":
        handle = _areas(axes, x, y, trace)
    elif trace.fill:
        base = 0.0 if trace.fill == "tozeroy" else np.asarray(before[1], dtype=float)
        axes.fill_between(x, base, y, step="post" if step else None, color=_colour(trace.fillcolor), lw=0)
    if "lines" in mode and trace.line.width != 0 and trace.fill != "toself":
        (handle,) = axes.plot(
            x, y, color=_colour(colour), lw=(trace.line.width or 2) * _POINTS, ls=_DASHES.get(trace.line.dash, "-"),
            drawstyle="steps-post" if step else "default", alpha=trace.opacity, solid_capstyle="butt",
        )  # fmt: skip
    if "markers" in mode:
        points = _markers(axes, trace, x, y, colour)
        handle = handle or points
    for bars, is_y in ((trace.error_y, True), (trace.error_x, False)):
        if bars.array is not None:
            reach = [np.asarray(bars.arrayminus if bars.arrayminus is not None else bars.array), np.asarray(bars.array)]
            axes.errorbar(
                x, y, yerr=reach if is_y else None, xerr=None if is_y else reach, fmt="none", ecolor=_colour(colour),
                elinewidth=1, capsize=2,
            )  # fmt: skip
    if "text" in mode:
        for at, height, text in zip(x, y, trace.text):
            axes.text(at, height, _plain(text), color=trace.textfont.color, fontsize=6.5, ha="center", va="center")
    return handle


def _areas(axes: Axes, x: np.ndarray, y: np.ndarray, trace: go.Scatter) -> Any:
    """Closed outlines, parted by NaN."""
    parts = np.split(np.c_[x, y], np.flatnonzero(np.isnan(x) | np.isnan(y)))
    outlines = [p[~np.isnan(p).any(axis=1)] for p in parts]
    collection = PolyCollection(
        [o for o in outlines if len(o) > 2], facecolors=[_colour(trace.fillcolor)],
        edgecolors=[_colour(trace.line.color or trace.fillcolor)], linewidths=(trace.line.width or 0) * _POINTS,
    )  # fmt: skip
    axes.add_collection(collection)
    return collection


def _markers(axes: Axes, trace: go.Scatter, x: np.ndarray, y: np.ndarray, colour: Any) -> Any:
    """Points; one handle for the legend, of the first kind among them."""
    symbols = trace.marker.symbol or "circle"
    each = np.broadcast_to(np.asarray(symbols, dtype=object), len(x))
    handle = None
    for symbol in dict.fromkeys(each):
        chosen = each == symbol
        filled = _colour(trace.marker.color or colour)
        (drawn,) = axes.plot(
            x[chosen], y[chosen], _SYMBOLS[symbol], color=filled, ls="none", ms=(trace.marker.size or 6) * _POINTS,
            mfc="none" if symbol.endswith("-open") else filled, clip_on=trace.cliponaxis is not False, zorder=3,
        )  # fmt: skip
        handle = handle or drawn
    return handle


def _bar(axes: Axes, trace: go.Bar, x: np.ndarray, bars: list[go.Bar]) -> Any:
    beside = [b for b in bars if (b.xaxis, b.yaxis) == (trace.xaxis, trace.yaxis)]
    width = 0.85 / len(beside)
    at = x + (beside.index(trace) - (len(beside) - 1) / 2) * width
    return axes.bar(at, trace.y, width, color=_colour(trace.marker.color))


def _axis(axes: Axes, way: Literal["x", "y"], axis: Any, categories: list[str], inches: float) -> None:
    is_x = way == "x"
    own = axes.xaxis if is_x else axes.yaxis
    limit = axes.set_xlim if is_x else axes.set_ylim
    if axis.type == "log":
        (axes.set_xscale if is_x else axes.set_yscale)("log")
    if axis.range is not None:
        limit(*(10.0 ** np.asarray(axis.range, dtype=float) if axis.type == "log" else axis.range))
    elif axis.rangemode == "tozero" and axis.type != "log":
        limit(0, None)
    if axis.type == "log":
        room = axes.get_position().width * inches / 0.6 if is_x else 5
        log_ticks(own, *(axes.get_xlim() if is_x else axes.get_ylim()), decades=max(2, min(6, int(room))))
    if axis.scaleanchor:
        axes.set_aspect("equal")
    if categories:
        own.set_ticks(range(len(categories)), categories)
        if sum(map(len, categories)) * 0.09 > inches:
            axes.tick_params(axis=way, labelrotation=60)
    elif axis.tickvals is not None:
        own.set_ticks(list(axis.tickvals), [_plain(t) for t in axis.ticktext or map("{:g}".format, axis.tickvals)])
        own.set_ticks([], minor=True)
    elif axis.dtick and axis.type != "log":
        own.set_major_locator(MultipleLocator(float(axis.dtick)))
    if axis.showticklabels is False:
        axes.tick_params(axis=way, **({"labelbottom": False} if is_x else {"labelleft": False}))
    if axis.showgrid is not False:
        axes.grid(visible=True, axis=way)
    if axis.title.text:
        own.set_label_text(_plain(axis.title.text))


def _categories(figure: go.Figure, panel: str) -> list[str]:
    """Texts on a panel's x axis, in the order in which they appear."""
    found: dict[str, None] = {}
    for trace in figure.data:
        if (trace.xaxis or "x") + (trace.yaxis or "y") == panel and trace.x is not None:
            found |= dict.fromkeys(v for v in trace.x if isinstance(v, str))
    return list(found)


def _numbers(values: Any, categories: list[str]) -> np.ndarray:
    if categories:
        return np.array([categories.index(v) for v in values], dtype=float)
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _colour(text: Any) -> Any:
    """A colour as matplotlib takes it: plotly has 'rgba(r,g,b,a)' as well."""
    if not (isinstance(text, str) and text.startswith("rgba")):
        return text
    red, green, blue, opacity = (float(v) for v in text[5:-1].split(","))
    return to_rgba((red / 255, green / 255, blue / 255), opacity)


def _plain(text: str) -> str:
    """plotly's HTML-like text without its marks."""
    return html.unescape(re.sub(r"</?(b|i|sub|sup)>", "", str(text).replace("<br>", "\n")))
