"""A comparison as one HTML page: a figure a metric with intervals and single runs, then the tables."""

from __future__ import annotations

from importlib import resources

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from testbed.report import colours, text
from testbed.report.compare import Comparison, Group
from testbed.report.compare_figures import METRICS, PARTS
from testbed.report.compare_text import head, remarks, rows, shown_metrics
from testbed.report.figure_style import dress
from testbed.report.text import escape

_SERIES = ("#1f6fb4", "#b5651d", "#1b9e77", "#7b3fa0", "#c0392b", "#6b7280", "#c79a00", "#0f8b8d")


def html(comparison: Comparison) -> str:
    """One document that opens offline."""
    style = resources.files("testbed.report").joinpath("style.css").read_text()
    sections, links = [], []
    for part, title in PARTS.items():
        metrics = shown_metrics(comparison, part)
        if not metrics:
            continue
        links.append(f'<li><a href="#{part}">{escape(title)}</a></li>')
        figures = "".join(
            f"<h3>{escape(METRICS[m].title)}</h3><p class='intro'>{escape(METRICS[m].meaning)}</p>"
            + metric_figure(comparison, m).to_html(full_html=False, include_plotlyjs=False)
            for m in metrics
        )
        sections.append(f'<section id="{part}"><h2>{escape(title)}</h2>{_table(comparison, part)}{figures}</section>')
    notes = "".join(f"<p>{escape(n)}</p>" for n in remarks(comparison))
    runs = "".join(
        f"<li>{escape(g.label)}: " + ", ".join(
            f"<code>{escape(r)}</code> {escape(v)}" for r, v in zip(g.runs, g.verdicts)) + "</li>"
        for g in comparison.groups
    )  # fmt: skip
    bad = any(g.doubtful for g in comparison.groups)
    return "".join([
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Comparison</title><style>{style}</style><script>{get_plotlyjs()}</script></head><body>",
        f'<nav><ol>{"".join(links)}<li><a href="#runs">Runs</a></li></ol></nav><main>',
        f"<header><h1>Comparison of {len(comparison.groups)} groups of runs</h1></header>",
        f'<div class="banner {"bad" if bad else "good"}">{notes}</div>', *sections,
        f'<section id="runs"><h2>Runs</h2><ul>{runs}</ul></section></main></body></html>',
    ])  # fmt: skip


def _table(comparison: Comparison, part: str) -> str:
    titles = "".join(f"<th>{escape(h)}</th>" for h in head(comparison, part))
    body = "".join(
        f"<tr{' class=bad' if g.doubtful else ''}>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>"
        for g, row in zip(comparison.groups, rows(comparison, part))
    )
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


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
        colour = _SERIES[number % len(_SERIES)]
        x = [g.settings[key] if key else text.label(g.label) for g in known]
        values = [g.metrics[metric] for g in known]
        figure.add_scatter(
            x=x, y=[i.mean for i in values], mode="lines+markers" if key else "markers", name=text.label(name),
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
    dress(figure, 340, text.titled(key.split(".")[-1]) if key else "", f"{about.title}{unit}")
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
