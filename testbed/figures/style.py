"""How figures look, and what can be said of all of them."""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go

from testbed.figures import colours

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def label(text: Any) -> str:
    """Text that plotly's HTML-like labels show as it is; quotes it would show as &quot;."""
    return html.escape(str(text), quote=False)


def dress(figure: go.Figure, height: int, x: str = "", y: str = "", *, alt: str) -> go.Figure:
    """The common look of a figure of `height` pixels.

    Args:
        x, y: titles of all its axes of that kind.
        alt: what it shows, in words, for those who can't see it.
    """
    figure.update_layout(
        height=height,
        meta={"alt": alt},
        template="none",
        font={"family": _FONT, "size": 13, "color": colours.INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 64, "r": 16, "t": 60, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "xanchor": "left"},
        hovermode="closest",
        hoverlabel={"font": {"family": _FONT}},
    )
    axis = {"gridcolor": colours.GRID, "linecolor": colours.GRID, "zeroline": False, "automargin": True}
    figure.update_xaxes(**axis, title_text=x or None)
    figure.update_yaxes(**axis, title_text=y or None)
    return figure


def caption(figure: go.Figure, text: str, row: int, col: int, *, right: bool = False) -> None:
    """A line above one panel, which stays with it where panels are put below one another."""
    figure.add_annotation(
        text=label(text), row=row, col=col, xref="x domain", yref="y domain", x=1 if right else 0, y=1,
        xanchor="right" if right else "left", yanchor="bottom", showarrow=False,
        font={"size": 12, "color": colours.SET if right else colours.INK},
    )  # fmt: skip
