"""A plan's explanation on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from testbed.report import text

_ABOVE = ("experiment", "runner", "devices_planned_for", "warnings", "notes", "predicted")


def render_plan(view: Mapping[str, Any], most_rows: int) -> Iterator[str]:
    """Lines: heading, notes, values, then the tables. `view`: see testbed.studies.planning.PlanView.as_dict."""
    yield click.style(f"{view['experiment']}  {view['runner']} · {len(view['devices_planned_for'])} devices", bold=True)
    for warning in view["warnings"]:
        yield click.style(f"warning: {warning}", fg="yellow")
    for note in view["notes"]:
        yield f"  {note}"
    rest = {key: value for key, value in view.items() if key not in _ABOVE}
    values = {f"predicted {text.titled(k)}": (k, v) for k, v in view["predicted"].items()}
    values |= {text.titled(k): (k, v) for k, v in rest.items() if not isinstance(v, list)}
    width = max(map(len, values), default=0)
    for name, (key, value) in values.items():
        yield f"{name:<{width}}  {text.quantity(key, value)}"
    for name, rows in rest.items():
        if isinstance(rows, list) and rows:
            yield ""
            yield click.style(text.titled(name), bold=True)
            yield from _table(rows, most_rows)


def _table(rows: list[dict[str, Any]], most: int) -> Iterator[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    shown = rows[:most]
    cells = [[text.titled(c) for c in columns], *([text.quantity(c, row.get(c)) for c in columns] for row in shown)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    right = [all(isinstance(row.get(c), (int, float, type(None))) for row in shown) for c in columns]
    for line in cells:
        padded = (f"{cell:>{w}}" if r else f"{cell:<{w}}" for cell, w, r in zip(line, widths, right))
        yield f"  {'  '.join(padded)}".rstrip()
    if len(rows) > most:
        yield f"  … {len(rows) - most} more: --rows, or --json for all"
