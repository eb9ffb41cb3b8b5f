"""How figures look, and what can be said of all of them."""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go

from testbed.figures import colours

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


# What turns the direction of the text after it, with which a name can pose as another
_TURNS = {
    ord(c): f"[U+{ord(c):04X}]" for c in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
}


def visible(text: str) -> str:
    """Text with its invisible marks of direction as '[U+202E]'."""
    return text.translate(_TURNS)


def label(text: Any) -> str:
    """Text that plotly's HTML-like labels show as it is; quotes it would show as &quot;."""
    return html.escape(visible(str(text)), quote=False)


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
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "xanchor": "left", "traceorder": "normal"},
        hovermode="closest",
        hoverlabel={"font": {"family": _FONT}},
    )
    axis = {
        "gridcolor": colours.GRID,
        "linecolor": colours.GRID,
        "zeroline": False,
        "automargin": True,
        "title_font_size": 13,
    }
    figure.update_xaxes(**axis, title_text=x or None, autotickangles=[0, 90])
    figure.update_yaxes(**axis, title_text=y or None)
    return figure


def caption(figure: go.Figure, text: str, row: int, col: int, *, right: bool = False) -> None:
    """A line above one panel, which stays with it where panels are put below one another."""
    figure.update_layout(legend={"yref": "container", "y": 1, "yanchor": "top"}, margin_t=84)  # above the captions
    figure.add_annotation(
        text=label(text), row=row, col=col, xref="x domain", yref="y domain", x=1 if right else 0, y=1,
        xanchor="right" if right else "left", yanchor="bottom", showarrow=False,
        font={"size": 12, "color": colours.SET if right else colours.INK},
    )  # fmt: skip
