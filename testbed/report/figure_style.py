"""How the browser's figures look."""

from __future__ import annotations

import plotly.graph_objects as go

from testbed.report import colours

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def dress(figure: go.Figure, height: int, x: str, y: str = "") -> go.Figure:
    figure.update_layout(
        height=height,
        template="plotly_white",
        font={"family": _FONT, "size": 13, "color": colours.INK},
        margin={"l": 64, "r": 16, "t": 60, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "xanchor": "left"},
        hovermode="closest",
        hoverlabel={"font": {"family": _FONT}},
    )
    figure.update_xaxes(gridcolor=colours.GRID, zeroline=False, title_text=x)
    figure.update_yaxes(gridcolor=colours.GRID, zeroline=False)
    if y:
        figure.update_yaxes(title_text=y)
    return figure
