"""The HTML report: one file that needs nothing else, verdict first. What it says stands in templates/report.html."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from testbed.figures.browser import environment
from testbed.report import series, tables, text
from testbed.report.gantt import gantt, typical_step
from testbed.report.pngs import run_figures
from testbed.report.run_data import RunData
from testbed.report.summary import rows as summary_rows

_MOST_COMMANDS = 1000
_ELSEWHERE = {"name", "status", "experiment", "commands", "process", "error", "churn", "warnings", "link_source"}


def html(data: RunData, made: dict[str, go.Figure] | None = None) -> str:
    """The whole report as one HTML document."""
    shown = series.shown_links(data)
    return environment("testbed.report").get_template("report.html").render(
        data=data, s=data.summary, v=data.verdict, text=text, tables=tables, about=_about(data),
        figures=run_figures(data) if made is None else made, cards=summary_rows(data.summary),
        warnings=[str(t) for t in dict.fromkeys(data.select("warning")["text"]) if t][:50],
        timeline=gantt(data), step=typical_step(data), drawn=len(shown),
        undrawn=len(set(data.select("link")["node"].dropna()) - set(shown)), experiment_text=data.run.experiment_text(),
        facts={k: v for k, v in data.manifest.items() if k not in _ELSEWHERE}, commands=_commands(data),
    )  # fmt: skip


def _about(data: RunData) -> str:
    s = data.summary
    parts = [
        s.runner,
        f"{s.devices} devices",
        f"seed {s.seed}" if s.seed is not None else "",
        f"started {s.started.replace('T', ' ')}" if s.started else "",
        f"time dilation {s.tdf:g}" if s.tdf != 1 else "",
    ]
    return " · ".join(p for p in parts if p)


def _commands(data: RunData) -> dict[str, Any]:
    """count: how many were applied; listed: the first of them, where the manifest has them."""
    commands = data.manifest.get("commands")
    if isinstance(commands, list):
        more = len(commands) - _MOST_COMMANDS
        rest = [f"… {more} more in manifest.json"] if more > 0 else []
        return {"count": len(commands), "listed": "\n".join([*map(str, commands[:_MOST_COMMANDS]), *rest])}
    return {"count": commands if isinstance(commands, (int, float)) else 0, "listed": ""}
