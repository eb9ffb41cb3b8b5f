"""A comparison as text: for the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from testbed.measurement.run_folder import json_text
from testbed.report import text
from testbed.report.compare import Comparison, Group, Interval
from testbed.report.compare_figures import METRICS, PARTS, Metric


def shown_metrics(comparison: Comparison, part: str) -> list[str]:
    """The part's metrics of which some group has a value."""
    return [m for m, about in METRICS.items() if about.part == part and any(g.metrics[m].n for g in comparison.groups)]


def value_text(metric: Metric, i: Interval) -> str:
    """'1.28 s ± 0.03 s', without ± where there is no interval or none to speak of."""
    if i.low is None or i.mean is None:
        return metric.show(i.mean)
    return f"{metric.show(i.mean)} ± {metric.show((i.high - i.low) / 2)}" if i.high > i.low else metric.show(i.mean)


def ratio_text(group: Group, first: Group) -> str:
    """Step time against the first group's."""
    own, other = group.metrics["step_time_s"].mean, first.metrics["step_time_s"].mean
    return text.DASH if not own or not other else f"{own / other:.3g}×"


def runs_text(group: Group) -> str:
    bad = f", {group.doubtful} INVALID" if group.doubtful else ""
    return f"{len(group.runs)}{bad}"


def head(comparison: Comparison, part: str) -> list[str]:
    """The titles of a part's columns."""
    names = [METRICS[m].title for m in shown_metrics(comparison, part)]
    return ["", "Devices", "Runs", *names, "Against the first"] if part == "speed" else ["", *names]


def rows(comparison: Comparison, part: str) -> list[list[str]]:
    """A part's cells, a row a group."""
    shown = shown_metrics(comparison, part)
    rows = []
    for g in comparison.groups:
        cells = [value_text(METRICS[m], g.metrics[m]) for m in shown]
        if part == "speed":
            cells = [str(g.devices), runs_text(g), *cells, ratio_text(g, comparison.groups[0])]
        rows.append([g.label, *cells])
    return rows


def remarks(comparison: Comparison) -> list[str]:
    """How the numbers came about, and what not to rely on."""
    said = list(comparison.notes)
    if meaning := text.below_zero(g.metrics["recovery_extra_s"].mean for g in comparison.groups):
        said.append(f"{METRICS['recovery_extra_s'].title} {meaning}.")
    if shown_metrics(comparison, "energy"):
        covered = "; ".join(dict.fromkeys(f"{g.powered_devices} of {g.devices}" for g in comparison.groups))
        said.append(
            f"Energy covers the devices whose profile states their power ({covered}), while they compute; "
            f"CO₂ at {comparison.g_co2_per_kwh:g} g/kWh."
        )
    return said


def render_comparison(comparison: Comparison) -> RenderableType:
    """For the terminal."""
    blocks: list[RenderableType] = []
    for part, title in PARTS.items():
        if not shown_metrics(comparison, part):
            continue
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        for i, name in enumerate(head(comparison, part)):
            table.add_column(
                name, justify="left" if i == 0 else "right", style="cyan" if i == 0 else "", overflow="fold"
            )
        for g, row in zip(comparison.groups, rows(comparison, part)):
            table.add_row(*row, style="red" if g.doubtful else "")
        blocks += [table, Text("")]
    blocks += [Text(r, style="red" if r.startswith("INVALID") else "dim") for r in remarks(comparison)]
    return Lines(*blocks)


def markdown(comparison: Comparison) -> str:
    lines: list[str] = []
    for part, title in PARTS.items():
        if not shown_metrics(comparison, part):
            continue
        names = head(comparison, part)
        lines += [f"**{title}**", "", "| " + " | ".join(names) + " |", "| --- " + "| ---: " * (len(names) - 1) + "|"]
        for g, row in zip(comparison.groups, rows(comparison, part)):
            label = f"{row[0]} ⚠ INVALID" if g.doubtful else row[0]
            lines.append("| " + " | ".join(c.replace("|", "\\|") for c in [label, *row[1:]]) + " |")
        lines.append("")
    return "\n".join([*lines, *(f"{r}  " for r in remarks(comparison))]) + "\n"


def csv_text(comparison: Comparison) -> str:
    """A row a group and metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "group",
            "experiment",
            "engine",
            "runner",
            "devices",
            "metric",
            "unit",
            "mean",
            "low",
            "high",
            "n",
            "invalid_runs",
        ]
    )
    for g in comparison.groups:
        for name, metric in METRICS.items():
            i = g.metrics[name]
            if i.n:
                numbers = ["" if v is None else repr(v) for v in (i.mean, i.low, i.high)]
                writer.writerow(
                    [g.label, g.name, g.engine, g.runner, g.devices, name, metric.unit, *numbers, i.n, g.doubtful]
                )
    return out.getvalue()


def json_of(comparison: Comparison) -> str:
    units = {name: metric.unit for name, metric in METRICS.items()}
    return json_text({**comparison.as_dict(), "units": units, "notes": remarks(comparison)})
