"""The same plots for a browser: one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from testbed.traces import plot_data, summary
from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace

DOWN, UP, RTT, JITTER, LOSS, ON = "#1f6fb4", "#e08214", "#1b9e77", "#7b5ea7", "#c0392b", "#1b9e77"
INK, GRID = "#1f2937", "#e5e7eb"


def save(traces: Mapping, path: Path, title: str) -> None:
    """Write the figure of these traces as an HTML page with all it needs in itself."""
    first = next(iter(traces.values()))
    figure = _links(traces) if isinstance(first, LinkTrace) else _availability(traces)
    figure.update_layout(
        title={"text": f"<b>{_escaped(title)}</b>", "x": 0.01},
        template="plotly_white",
        height=820,
        font={"color": INK, "size": 13},
        margin={"l": 70, "r": 30, "t": 70, "b": 60},
        hovermode="closest",
        legend={"orientation": "h", "y": 1.04, "x": 1, "xanchor": "right"},
    )
    figure.update_xaxes(gridcolor=GRID)
    figure.update_yaxes(gridcolor=GRID)
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    for row in (1, 2):
        hours = {"dtick": 4} if axis.unit == "h" and span <= 2 * 86400 else {}
        figure.update_xaxes(range=[0, span / axis.seconds], row=row, col=1, **hours)
    page = figure.to_html(
        include_plotlyjs=True, full_html=True, div_id="traces", config={"displaylogo": False, "responsive": True}
    )
    path.write_text(page.replace("<head>", f"<head><title>{_escaped(title)}</title>", 1), encoding="utf-8")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _links(traces: Mapping[str, LinkTrace]) -> go.Figure:
    quantities = [
        ("rtt_s", "RTT", "ms", 1e3, RTT),
        ("jitter_s", "jitter", "ms", 1e3, JITTER),
        ("loss", "loss", "%", 1e2, LOSS),
    ]
    measured = [q for q in quantities if not plot_data.is_constant(traces, q[0])]
    columns = 1 + len(measured)
    figure = make_subplots(
        rows=3,
        cols=columns,
        row_heights=(0.3, 0.3, 0.4),
        vertical_spacing=0.09,
        specs=[[{"colspan": columns}, *[None] * (columns - 1)]] * 2 + [[{}] * columns],
    )
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    for row, field, name, colour in ((1, "down_bps", "download", DOWN), (2, "up_bps", "upload", UP)):
        _over_time(figure, traces, field, name, colour, row, span, axis)
        figure.update_yaxes(title_text=f"{name} [Mbit/s]", rangemode="tozero", row=row, col=1)
        values, share = plot_data.distribution(traces, field)
        figure.add_scatter(
            x=values / 1e6,
            y=share,
            line={"shape": "hv", "color": colour},
            name=name,
            row=3,
            col=1,
            hovertemplate=f"{name} %{{x:.4g}} Mbit/s<br>%{{y:.1%}} of samples<extra></extra>",
        )
    figure.update_xaxes(matches="x", row=2, col=1, title_text=f"time [{axis.unit}]")
    figure.update_xaxes(title_text="rate [Mbit/s]", type="log", row=3, col=1)
    figure.update_yaxes(title_text="share of samples", row=3, col=1)
    for k, (field, name, unit, factor, colour) in enumerate(measured, 2):
        values, share = plot_data.distribution(traces, field)
        figure.add_scatter(
            x=values * factor,
            y=share,
            line={"shape": "hv", "color": colour},
            showlegend=False,
            row=3,
            col=k,
            hovertemplate=f"{name} %{{x:.4g}} {unit}<br>%{{y:.1%}}<extra></extra>",
        )
        log = values[0] > 0 and values[-1] / values[0] > 30
        figure.update_xaxes(title_text=f"{name} [{unit}]", type="log" if log else "linear", row=3, col=k)
    return figure


def _over_time(figure, traces, field, name, colour, row, span, axis) -> None:
    if len(traces) <= plot_data.HOMES:
        for home, trace in traces.items():
            times, values = plot_data.steps(trace, field, span)
            values, _ = plot_data.gaps(times, values)
            figure.add_scatter(
                x=times / axis.seconds,
                y=values / 1e6,
                line={"shape": "hv", "color": colour, "width": 1.3},
                opacity=0.75,
                name=home,
                showlegend=False,
                row=row,
                col=1,
                hovertemplate=f"{_escaped(home)}<br>%{{x:.4g}} {axis.unit}<br>%{{y:.4g}} Mbit/s<extra></extra>",
            )
        return
    times, (low, middle, high) = plot_data.spread(traces, field, span)
    common = {"x": times / axis.seconds, "showlegend": False, "row": row, "col": 1}
    figure.add_scatter(y=high / 1e6, line={"width": 0, "shape": "hv"}, hoverinfo="skip", **common)
    figure.add_scatter(
        y=low / 1e6,
        line={"width": 0, "shape": "hv"},
        fill="tonexty",
        hoverinfo="skip",
        fillcolor=_faint(colour),
        **common,
    )
    figure.add_scatter(
        y=middle / 1e6,
        line={"color": colour, "shape": "hv", "width": 1.8},
        hovertemplate=f"median of {len(traces)} homes<br>%{{x:.4g}} {axis.unit}<br>%{{y:.4g}} Mbit/s<extra></extra>",
        **common,
    )


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"


def _availability(traces: Mapping[str, Availability]) -> go.Figure:
    figure = make_subplots(
        rows=3,
        cols=2,
        row_heights=(0.5, 0.18, 0.32),
        vertical_spacing=0.09,
        specs=[[{"colspan": 2}, None], [{"colspan": 2}, None], [{}, {}]],
    )
    span = max(t.span_s for t in traces.values())
    axis = plot_data.time_axis(span)
    rows = plot_data.raster_order(traces)
    x, y, names = [], [], []
    for i, trace in enumerate(rows):
        for a, b in trace.intervals_s.tolist():
            x += [a / axis.seconds, b / axis.seconds, None]
            y += [i, i, None]
            names += [_escaped(trace.device)] * 3
    figure.add_scatter(
        x=x,
        y=y,
        text=names,
        mode="lines",
        connectgaps=False,
        showlegend=False,
        row=1,
        col=1,
        line={"color": ON, "width": max(1.0, 240 / max(len(rows), 1))},
        hovertemplate=f"%{{text}}<br>%{{x:.4g}} {axis.unit}<extra></extra>",
    )
    figure.update_yaxes(
        title_text=f"{len(rows)} of {len(traces)} devices", showticklabels=False, showgrid=False, row=1, col=1
    )
    times, fraction = plot_data.share_over_time(traces, span)
    figure.add_scatter(
        x=times / axis.seconds,
        y=fraction,
        line={"color": ON, "shape": "hv"},
        fill="tozeroy",
        fillcolor=_faint(ON),
        showlegend=False,
        row=2,
        col=1,
        hovertemplate=f"%{{x:.4g}} {axis.unit}<br>%{{y:.1%}} available<extra></extra>",
    )
    figure.update_yaxes(title_text="share", range=[0, 1], row=2, col=1)
    figure.update_xaxes(title_text=f"time [{axis.unit}]", matches="x", row=2, col=1)
    sessions, gaps = plot_data.lengths(traces)
    scale = plot_data.time_axis(max((v[-1] for v in (sessions, gaps) if len(v)), default=1.0))
    for values, name, colour in ((sessions, "sessions", ON), (gaps, "gaps between", LOSS)):
        if len(values):
            figure.add_scatter(
                x=values / scale.seconds,
                y=[(i + 1) / len(values) for i in range(len(values))],
                line={"shape": "hv", "color": colour},
                mode="lines",
                name=name,
                row=3,
                col=1,
                hovertemplate=f"%{{x:.4g}} {scale.unit}<br>%{{y:.1%}} of {name}<extra></extra>",
            )
    figure.update_xaxes(title_text=f"length [{scale.unit}]", type="log", row=3, col=1)
    figure.update_yaxes(title_text="share at most as long", row=3, col=1)
    hours = summary.by_hour(traces)
    if hours is not None:
        figure.add_bar(
            x=[h + 0.5 for h in range(24)],
            y=hours,
            marker_color=ON,
            showlegend=False,
            row=3,
            col=2,
            hovertemplate="hour %{x:.0f}<br>%{y:.1%} available<extra></extra>",
        )
        figure.update_xaxes(title_text="hour of the day", range=[0, 24], dtick=4, row=3, col=2)
        figure.update_yaxes(title_text="share available", range=[0, 1], row=3, col=2)
    else:
        shares = sorted(t.fraction() for t in traces.values())
        figure.add_scatter(
            x=shares,
            y=[(i + 1) / len(shares) for i in range(len(shares))],
            showlegend=False,
            line={"shape": "hv", "color": ON},
            row=3,
            col=2,
        )
        figure.update_xaxes(title_text="share of time available", range=[0, 1], row=3, col=2)
        figure.update_yaxes(title_text="share of devices", row=3, col=2)
    return figure
