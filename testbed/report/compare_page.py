"""A comparison as one HTML page: a figure a metric with intervals and single runs, then the tables."""

from __future__ import annotations

import plotly.graph_objects as go

from testbed.figures import colours
from testbed.figures.browser import environment
from testbed.figures.style import dress, label
from testbed.report import text
from testbed.report.compare import Comparison, Group
from testbed.report.compare_figures import METRICS, PARTS
from testbed.report.compare_text import head, remarks, rows, shown_metrics
from testbed.report.tables import Table


def html(comparison: Comparison) -> str:
    """One document that opens offline."""
    parts = [
        {"anchor": part, "title": title, "table": _table(comparison, part),
         "figures": [(METRICS[m], metric_figure(comparison, m)) for m in shown_metrics(comparison, part)]}
        for part, title in PARTS.items()
        if shown_metrics(comparison, part)
    ]  # fmt: skip
    return environment("testbed.report").get_template("compare.html").render(
        title=f"Comparison of {len(comparison.groups)} groups of runs", parts=parts, groups=comparison.groups,
        notes=remarks(comparison), doubtful=any(g.doubtful for g in comparison.groups),
    )  # fmt: skip


def _table(comparison: Comparison, part: str) -> Table:
    titles = head(comparison, part)
    marks = {i: "bad" for i, g in enumerate(comparison.groups) if g.doubtful}
    return Table(titles, rows(comparison, part), [False] * len(titles), marks, 0)


def axis(comparison: Comparison) -> str | None:
    """The numeric setting with the most values (three at least), which is the x axis then. None: groups in a row."""
    best, most = None, 2
    keys = comparison.groups[0].settings if comparison.groups else {}
    for key in keys:
        values = [g.settings.get(key) for g in comparison.groups]
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values) and len(set(values)) > most:
            best, most = key, len(set(values))
    return best


def metric_figure(comparison: Comparison, metric: str) -> go.Figure:
    """Means with intervals, single runs as dots; doubtful groups as crosses."""
    about, key = METRICS[metric], axis(comparison)
    figure = go.Figure()
    for number, (name, groups) in enumerate(_series(comparison, key).items()):
        known = [g for g in groups if g.metrics[metric].n]
        if not known:
            continue
        colour = colours.SERIES[number % len(colours.SERIES)]
        x = [g.settings[key] if key else label(g.label) for g in known]
        values = [g.metrics[metric] for g in known]
        figure.add_scatter(
            x=x, y=[i.mean for i in values], mode="lines+markers" if key else "markers", name=label(name),
            line={"color": colour}, marker={"size": 9, "symbol": ["x" if g.doubtful else "circle" for g in known],
                                            "color": colour},
            error_y={"type": "data", "symmetric": False,
                     "array": [0 if i.high is None else i.high - i.mean for i in values],
                     "arrayminus": [0 if i.low is None else i.mean - i.low for i in values]},
            text=[f"{g.label}: {about.show(i.mean)}, n = {i.n}" + (", INVALID" if g.doubtful else "")
                  for g, i in zip(known, values)],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=[at for at, i in zip(x, values) for _ in i.values], y=[v for i in values for v in i.values],
            mode="markers", marker={"size": 4, "color": colours.SET}, showlegend=False, hoverinfo="skip",
        )  # fmt: skip
    unit = f" [{about.unit}]" if about.unit else ""
    dress(figure, 340, text.titled(key.split(".")[-1]) if key else "", f"{about.title}{unit}",
          alt=f"{about.title} of {len(comparison.groups)} groups of runs, with intervals")  # fmt: skip
    figure.update_layout(showlegend=key is not None)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _series(comparison: Comparison, key: str | None) -> dict[str, list[Group]]:
    """Groups that differ in the axis alone, in its order."""
    if key is None:
        return {"": comparison.groups}
    series: dict[str, list[Group]] = {}
    for g in comparison.groups:
        rest = [f"{k.split('.')[-1]}={v}" for k, v in g.settings.items() if k != key]
        series.setdefault(" ".join([g.name, *rest, g.engine]), []).append(g)
    return {name: sorted(groups, key=lambda g: g.settings[key]) for name, groups in series.items()}
