"""Figures of links, bytes and the machine."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from testbed.figures import colours
from testbed.figures.style import caption, dress, label
from testbed.report import series, text
from testbed.report.run_data import RunData


def links(data: RunData, nodes: list[str]) -> go.Figure:
    """Set against measured rate of each link, one row a link, down on the left and up on the right."""
    rows = max(len(nodes), 1)
    figure = make_subplots(
        rows=rows, cols=2, shared_xaxes=True, horizontal_spacing=0.07, vertical_spacing=min(0.04, 0.3 / rows)
    )
    dress(figure, 130 + 128 * rows, alt=f"Set and measured rates of {len(nodes)} links, down and up, over time")
    named: set[str] = set()  # each name stands in the legend once

    def legend(name: str) -> dict:
        first = name not in named
        named.add(name)
        return {"name": name, "legendgroup": name, "showlegend": first}

    for i, node in enumerate(nodes):
        for j, direction in enumerate(("down", "up")):
            at = {"row": i + 1, "col": j + 1}
            caption(figure, f"{text.short(node)} {'↓ down' if direction == 'down' else '↑ up'}", i + 1, j + 1)
            t, rate = series.measured_rate(data, node, direction)
            if len(t):
                figure.add_scatter(
                    x=t,
                    y=rate / 1e6,
                    mode="lines",
                    fill="tozeroy",
                    **legend("measured"),
                    line={"color": colours.MEASURED, "width": 1},
                    fillcolor=colours.faint(colours.MEASURED),
                    hovertemplate="%{y:.3g} Mbit/s at %{x:.1f} s<extra>measured</extra>",
                    **at,
                )
            t, rate = series.set_rate(data, node, direction)
            if len(t):
                figure.add_scatter(
                    x=t,
                    y=rate / 1e6,
                    mode="lines",
                    **legend("set"),
                    line={"color": colours.SET, "width": 1.6, "shape": "hv"},
                    hovertemplate="%{y:.3g} Mbit/s from %{x:.1f} s<extra>set</extra>",
                    **at,
                )
            probed = series.probed_rate(data, node, direction)
            if probed is not None:
                figure.add_scatter(
                    x=[0],
                    y=[probed / 1e6],
                    mode="markers",
                    **legend("probed before training"),
                    cliponaxis=False,
                    marker={"symbol": "diamond", "size": 7, "color": colours.PROBED},
                    hovertemplate="%{y:.4g} Mbit/s<extra>probed</extra>",
                    **at,
                )
    figure.update_xaxes(range=[0, max(data.end_s, 1e-3)])
    figure.update_xaxes(title_text="emulated time [s]", row=rows)
    figure.update_yaxes(rangemode="tozero", title_text="Mbit/s", title_font={"size": 11}, col=1)
    figure.update_yaxes(rangemode="tozero", col=2)
    return figure


def device_bytes(data: RunData) -> go.Figure:
    """Message bytes that each device sent and received."""
    table = data.bytes.reindex(data.devices).fillna(0.0)
    figure = go.Figure()
    many = len(table) > 40
    if many:
        table = table.sort_values("received", ascending=False, kind="stable")
    names = [label(text.short(n)) for n in table.index]
    x = list(range(len(table))) if many else names
    for column, name, state in (("received", "received", "receive"), ("sent", "sent", "send")):
        figure.add_bar(
            x=x,
            y=table[column] / 1e6,
            name=name,
            marker={"color": colours.STATE[state]},
            text=names,
            textposition="none",
            hovertemplate="%{text}: %{y:.4g} MB<extra>" + name + "</extra>",
        )
    alt = f"Bytes that {len(table)} devices sent and received"
    dress(figure, 320, "devices, by bytes received" if many else "", "MB", alt=alt)
    figure.update_layout(barmode="group", bargap=0.25 if not many else 0)
    if many:
        figure.update_xaxes(showticklabels=False)
    else:
        figure.update_xaxes(type="category")
    return figure


def machine(data: RunData) -> go.Figure:
    """The machine that carried the run: CPU, and how late packets and threads were."""
    host = series.thinned(data.select("host"), 1500)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    figure.add_scatter(
        x=host["t"],
        y=100 * host["cpu"],
        mode="lines",
        name="CPU busy [%]",
        fill="tozeroy",
        line={"color": colours.MEASURED, "width": 1.2},
        fillcolor=colours.faint(colours.MEASURED),
        row=1,
        col=1,
    )
    lags = (
        ("delay_lag_p99", "packets late, p99 [ms]", colours.STATE["receive"]),
        ("delay_lag_max", "packets late, worst [ms]", colours.STATE["send"]),
        ("sched_delay", "wake-ups late, worst [ms]", colours.SET),
    )
    for field, name, colour in lags:
        if host[field].notna().any():
            figure.add_scatter(
                x=host["t"],
                y=1e3 * host[field],
                mode="lines",
                name=name,
                line={"color": colour, "width": 1.2},
                row=2,
                col=1,
            )
    dress(figure, 340, alt="How busy the machine was, and how late packets and threads were, over time")
    figure.update_xaxes(title_text="emulated time [s]", row=2)
    figure.update_yaxes(range=[0, 102], title_text="%", row=1)
    figure.update_yaxes(rangemode="tozero", title_text="ms (real)", row=2)
    return figure
