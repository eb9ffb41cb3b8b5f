"""Figures of traces: rates over time and distributions; availability as a raster with its daily curve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from testbed.figures import browser, paper
from testbed.figures.colours import faint
from testbed.figures.style import caption, dress, label
from testbed.traces import plot_data, summary
from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace

DOWN, UP, RTT, JITTER, LOSS, ON = "#1f6fb4", "#e08214", "#1b9e77", "#7b3fa0", "#c0392b", "#1b9e77"
_RATES = (("down_bps", "download", DOWN), ("up_bps", "upload", UP))
_OTHERS = (
    ("rtt_s", "RTT", "ms", 1e3, RTT),
    ("jitter_s", "jitter", "ms", 1e3, JITTER),
    ("loss", "loss", "%", 1e2, LOSS),
)
_HEIGHT = 820


def save(traces: Mapping, path: Path, title: str) -> None:
    """Write the figure as the file's ending says: .png, .pdf, .svg, or an HTML page with all it needs in itself.

    Raises:
        OSError: it can't be written.
    """
    made = figure(traces)
    if path.suffix.lower() == ".html":
        path.write_text(browser.page(made, title), encoding="utf-8")
        return
    made.update_layout(title_text=f"<b>{label(title)}</b>", height=0.8 * _HEIGHT)
    paper.save(made, path, dpi=200, width=900)


def figure(traces: Mapping) -> go.Figure:
    """The figure of these traces, links or availability."""
    is_links = isinstance(next(iter(traces.values())), LinkTrace)
    made = _links(traces) if is_links else _availability(traces)
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    hours = next((h for h in (1, 2, 4, 6, 12) if span / 3600 / h <= 8), 24)  # so that a day's end has a tick
    for row in (1, 2):
        made.update_xaxes(range=[0, span / axis.seconds], dtick=hours if axis.unit == "h" else None, row=row, col=1)
    made.update_xaxes(showticklabels=False, row=1, col=1)
    made.update_xaxes(matches="x", title_text=f"time [{axis.unit}]", row=2, col=1)
    return made


def _links(traces: Mapping[str, LinkTrace]) -> go.Figure:
    measured = [q for q in _OTHERS if not plot_data.is_constant(traces, q[0])]
    columns = 1 + len(measured)
    made = make_subplots(
        rows=3, cols=columns, row_heights=(0.3, 0.3, 0.4), vertical_spacing=0.09,
        specs=[[{"colspan": columns}, *[None] * (columns - 1)]] * 2 + [[{}] * columns],
    )  # fmt: skip
    dress(made, _HEIGHT, alt=f"Rates of {len(traces)} homes over time, and distributions of what was measured")
    ends = []
    for row, (field, name, colour) in enumerate(_RATES, 1):
        _over_time(made, traces, field, colour, row)
        values, share = plot_data.distribution(traces, field)
        wide = values[-1] / values[max(0, len(values) // 100)] > 30
        made.update_yaxes(
            title_text=f"{name}<br>[Mbit/s]", type="log" if wide else "linear", rangemode="tozero", row=row, col=1
        )
        _steps(made, values / 1e6, share, colour, (3, 1), f"{name} %{{x:.4g}} Mbit/s", name=name, showlegend=True)
        ends += [values[0], values[-1]]
    _scale(made, min(ends), max(ends), 10, (3, 1), "rate [Mbit/s]")
    made.update_yaxes(range=[0, 1.02], title_text="share of samples", row=3, col=1)
    for col, (field, name, unit, factor, colour) in enumerate(measured, 2):
        values, share = plot_data.distribution(traces, field)
        _steps(made, values * factor, share, colour, (3, col), f"{name} %{{x:.4g}} {unit}")
        _scale(made, values[0], values[-1], 30, (3, col), f"{name} [{unit}]")
        made.update_yaxes(range=[0, 1.02], row=3, col=col)
    return made


def _steps(
    made: go.Figure, x: Sequence | np.ndarray, share: Iterable, colour: str, at: tuple[int, int], hover: str, **more
) -> None:
    """A distribution: shares at or below each value."""
    made.add_scatter(
        x=x, y=list(share), mode="lines", line={"shape": "hv", "color": colour, "width": 1.6}, row=at[0], col=at[1],
        hovertemplate=hover + "<br>%{y:.1%}<extra></extra>", **{"showlegend": False, **more},
    )  # fmt: skip


def _scale(made: go.Figure, low: float, high: float, ratio: float, at: tuple[int, int], title: str) -> None:
    """An x axis is logarithmic where its values are far apart."""
    log = low > 0 and high / low > ratio
    decades = 1 if log and high / low > 100 else None
    made.update_xaxes(type="log" if log else "linear", dtick=decades, title_text=title, row=at[0], col=at[1])


def _over_time(made: go.Figure, traces: Mapping[str, LinkTrace], field: str, colour: str, row: int) -> None:
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    common = {"showlegend": False, "row": row, "col": 1, "mode": "lines"}
    line = {"shape": "hv", "color": colour}
    if len(traces) > plot_data.HOMES:
        times, (low, middle, high) = plot_data.spread(traces, field, span)
        common["x"] = times / axis.seconds
        edge = {**common, "line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip"}
        made.add_scatter(y=high / 1e6, **edge)
        made.add_scatter(y=low / 1e6, fill="tonexty", fillcolor=faint(colour), **edge)
        hover = f"median of {len(traces)} homes<br>%{{x:.4g}} {axis.unit}<br>%{{y:.4g}} Mbit/s<extra></extra>"
        made.add_scatter(y=middle / 1e6, line={**line, "width": 1.8}, hovertemplate=hover, **common)
        caption(made, f"median and quartiles of {len(traces)} homes", row, 1, right=True)
        return
    broken = []
    for home, trace in traces.items():
        times, values = plot_data.steps(trace, field, span)
        values, held = plot_data.gaps(times, values)
        broken += held
        made.add_scatter(
            x=times / axis.seconds, y=values / 1e6, line={**line, "width": 1.3}, opacity=0.75, name=label(home),
            hovertemplate=f"{label(home)}<br>%{{x:.4g}} {axis.unit}<br>%{{y:.4g}} Mbit/s<extra></extra>", **common,
        )  # fmt: skip
    notes = [f"{len(traces)} homes"] if len(traces) > 1 else []
    if broken:
        made.add_scatter(
            x=[v for a, b, _ in broken for v in (a / axis.seconds, b / axis.seconds, None)],
            y=[v for _, _, rate in broken for v in (rate / 1e6, rate / 1e6, None)],
            line={"color": colour, "dash": "dot", "width": 1}, hoverinfo="skip", **common,
        )  # fmt: skip
        notes.append("dotted: nothing measured, the value before is held")
    if notes:
        caption(made, "; ".join(notes), row, 1, right=True)


def _availability(traces: Mapping[str, Availability]) -> go.Figure:
    made = make_subplots(
        rows=3, cols=2, row_heights=(0.5, 0.18, 0.32), vertical_spacing=0.09, horizontal_spacing=0.12,
        specs=[[{"colspan": 2}, None], [{"colspan": 2}, None], [{}, {}]],
    )  # fmt: skip
    dress(made, _HEIGHT, alt=f"When {len(traces)} devices were available, and for how long")
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    rows = plot_data.raster_order(traces)
    x, y, names = [], [], []
    for i, trace in enumerate(rows):
        for a, b in trace.intervals_s.tolist():
            x += [a / axis.seconds, b / axis.seconds, None]
            y += [i, i, None]
            names += [label(trace.device)] * 3
    made.add_scatter(
        x=x, y=y, text=names, mode="lines", connectgaps=False, showlegend=False, row=1, col=1,
        line={"color": ON, "width": max(1.0, 240 / max(len(rows), 1))},
        hovertemplate=f"%{{text}}<br>%{{x:.4g}} {axis.unit}<extra></extra>",
    )  # fmt: skip
    made.update_yaxes(
        title_text="devices", showticklabels=False, showgrid=False, range=[-0.7, len(rows) - 0.3], row=1, col=1
    )
    shown = f"{len(rows)} of {len(traces)}" if len(rows) < len(traces) else f"{len(traces)}"
    caption(made, f"available, {shown} devices, least available below", 1, 1, right=True)
    times, fraction = plot_data.share_over_time(traces, span)
    made.add_scatter(
        x=times / axis.seconds, y=fraction, mode="lines", line={"color": ON, "shape": "hv", "width": 1.4},
        fill="tozeroy", fillcolor=faint(ON), showlegend=False, row=2, col=1,
        hovertemplate=f"%{{x:.4g}} {axis.unit}<br>%{{y:.1%}} available<extra></extra>",
    )  # fmt: skip
    made.update_yaxes(title_text="share<br>available", range=[0, _top(fraction)], row=2, col=1)
    sessions, gaps = plot_data.lengths(traces)
    longest = max((v[-1] for v in (sessions, gaps) if len(v)), default=1.0)
    scale = plot_data.time_axis(longest)
    for values, name, colour in ((sessions, "sessions", ON), (gaps, "gaps between", LOSS)):
        if len(values):
            hover = f"%{{x:.4g}} {scale.unit} of {name}"
            _steps(made, values / scale.seconds, _shares(values), colour, (3, 1), hover, name=name, showlegend=True)
    _scale(made, sessions[0] if len(sessions) else 0.0, longest, 30, (3, 1), f"length [{scale.unit}]")
    made.update_yaxes(title_text="share at most as long", range=[0, 1.02], row=3, col=1)
    hours = summary.by_hour(traces)
    if hours is not None:
        made.add_bar(
            x=[h + 0.5 for h in range(24)], y=hours, marker_color=ON, showlegend=False, row=3, col=2,
            hovertemplate="hour %{x:.0f}<br>%{y:.1%} available<extra></extra>",
        )  # fmt: skip
        zone = "UTC" if next(iter(traces.values())).start_epoch_s is not None else "of the trace"
        made.update_xaxes(title_text=f"hour of the day ({zone})", range=[0, 24], dtick=4, row=3, col=2)
        made.update_yaxes(title_text="share available", range=[0, _top(hours)], row=3, col=2)
    else:
        shares = sorted(t.fraction() for t in traces.values())
        _steps(made, shares, _shares(shares), ON, (3, 2), "%{x:.1%} of the time")
        made.update_xaxes(title_text="share of time available", range=[0, 1], row=3, col=2)
        made.update_yaxes(title_text="share of devices", range=[0, 1.02], row=3, col=2)
    return made


def _shares(values: Sequence | np.ndarray) -> list[float]:
    return [(i + 1) / len(values) for i in range(len(values))]


def _top(shares: Sequence | np.ndarray) -> float:
    """The end of an axis of shares: 1, unless all of them are small."""
    return 1.0 if max(shares) > 0.4 or max(shares) <= 0 else 1.2 * max(shares)
