"""Ticks of logarithmic axes in PNG figures, as plain numbers."""

from __future__ import annotations

from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


def log_ticks(axis: Axis, low: float, high: float, *, decades: int = 12) -> None:
    """At decades, of which `decades` at most have one; within two decades at 2 and 5 as well."""
    subs = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=decades if len(subs) == 1 else 12))
    axis.set_major_formatter(FuncFormatter(plain))
    axis.set_minor_formatter(NullFormatter())


def plain(value: float, _position: int | None) -> str:
    return f"{value:g}"
