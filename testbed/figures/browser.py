"""Figures and pages for a browser: one HTML file that needs nothing else, made from templates that escape all text."""

from __future__ import annotations

from functools import cache
from typing import Any

import plotly.graph_objects as go
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from testbed.figures import colours
from testbed.figures.style import visible

_IN_SCRIPTS = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}  # what could end a script, or break one


@cache
def environment(package: str = "testbed.figures") -> Environment:
    """Templates of a package's folder `templates`, which can extend page.html."""
    loaders = [PackageLoader(name) for name in dict.fromkeys((package, "testbed.figures"))]
    found = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        extensions=["jinja2.ext.do"], finalize=_finalize,
    )  # fmt: skip
    found.globals |= {"plotly_js": _plotly_js, "dark": colours.DARK}
    found.filters["figure_json"] = figure_json
    return found


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def figure_json(figure: go.Figure) -> Markup:
    """A figure as JSON that can stand in a script element, whatever its texts contain."""
    return Markup((figure.to_json() or "").translate(_IN_SCRIPTS))  # noqa: S704  nothing is left in it that HTML reads


def page(figure: go.Figure, title: str) -> str:
    """One figure as an HTML document."""
    return environment().get_template("figure.html").render(figure=figure, title=title)


def _plotly_js() -> Markup:
    return Markup(get_plotlyjs())  # noqa: S704
