"""A run's figures on the command line: the verdict first, then the numbers."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from testbed.report import text
from testbed.report.repeats import Repeats, render_repeats, summarize_repeats
from testbed.report.run_summary import RunSummary, summarize

__all__ = [
    "Repeats",
    "RunSummary",
    "render_repeats",
    "render_summary",
    "render_verdict",
    "rows",
    "summarize",
    "summarize_repeats",
]


def rows(s: RunSummary) -> list[tuple[str, str, str]]:
    """What to show of a run, in order: name, value, and a remark (may be empty)."""
    asked = f" of {s.steps_asked}" if s.steps_asked else ""
    redone = f"{s.steps_redone} more were lost in rollbacks" if s.steps_redone else ""
    devices = {n for n in (*s.bytes_up, *s.bytes_down) if n != "server"}
    per_device = max(len(devices), 1)
    up = sum(b for n, b in s.bytes_up.items() if n != "server") / per_device
    down = sum(b for n, b in s.bytes_down.items() if n != "server") / per_device
    shown = [
        ("Steps", f"{s.steps}{asked}", redone),
        ("Step time, median", text.seconds(s.step_time_median_s), _interval(s)),
        ("Tokens/s", text.number(s.tokens_per_s, 4), f"goodput, {text.number(s.samples_per_s, 3)} samples/s"),
    ]
    if s.final_loss is not None:
        shown.append(("Final loss", text.loss(s.final_loss), f"from {text.loss(s.first_loss)}" if s.steps > 1 else ""))
    shown += [("Goodput", text.percent(s.goodput_fraction), "of the samples trained reached a step that counts")]
    if s.departures or s.recovery_s:
        shown += [
            ("Departures", str(s.departures), ""),
            ("Detection", text.seconds(_median(s.detection_s)), f"from the last sign of life{_spread(s.detection_s)}"),
            ("Recovery", text.seconds(_median(s.recovery_s)), f"from detection on{_spread(s.recovery_s)}"),
            (
                "Cost of a failure",
                text.seconds(_median(s.recovery_extra_s)),
                f"the step beyond the median step{_spread(s.recovery_extra_s)}{_faster(s.recovery_extra_s)}",
            ),
        ]
    if s.join_s:
        shown.append(("Taking devices in", text.seconds(_median(s.join_s)), f"when one returns{_spread(s.join_s)}"))
    shown += [
        ("Sent per device", text.size(up), f"mean of {len(devices)}"),
        ("Received per device", text.size(down), ""),
        ("Server egress", text.size(s.server_egress_bytes), ""),
        ("Server ingress", text.size(s.server_ingress_bytes), ""),
    ]
    return shown


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _faster(costs: list[float]) -> str:
    meaning = text.below_zero(costs)
    return meaning and f"; {meaning}"


def _spread(values: list[float]) -> str:
    """'; median of 3, 0.8 s to 3 s', or nothing for a single value."""
    if len(values) < 2:
        return ""
    low, high = text.seconds(min(values)), text.seconds(max(values))
    return f"; median of {len(values)}" + (f", {low} to {high}" if low != high else "")


def _interval(s: RunSummary) -> str:
    parts = []
    if s.step_time_interval_s:
        low, high = s.step_time_interval_s
        parts.append(f"95 % interval {text.seconds(low)} to {text.seconds(high)}")
    if s.step_time_predicted_s:
        parts.append(f"planned {text.seconds(s.step_time_predicted_s)}")
    return "; ".join(parts)


def _wall(at: str | None) -> str:
    """', 14:03:12.250 by the clock', or nothing where it is not known."""
    return f", {at.partition('T')[2][:12]} by the clock" if at else ""


def render_verdict(s: RunSummary) -> RenderableType:
    """The verdict as a panel; INVALID as loud as an error."""
    if s.verdict == "VALID":
        body = Text("\n".join(s.notes or ["the emulation did what was set"]))
        return Panel(body, title="[bold]VALID[/]", title_align="left", border_style="green")
    if not s.reasons:
        return Panel(Text("\n".join(s.notes)), title=f"[bold]{s.verdict}[/]", title_align="left", border_style="yellow")
    lines = [f"✗ {reason}" for reason in s.reasons] + s.notes
    if s.invalid_since_s is not None:
        lines.append(
            f"INVALID since {s.invalid_since_s:.1f} s emulated{_wall(s.invalid_at)}; the results are kept, "
            "but don't rely on them"
        )
    return Panel(
        Text("\n".join(lines), style="red"),
        title=f"[bold white on red] {s.verdict} [/]",
        title_align="left",
        border_style="red",
    )


def render_summary(s: RunSummary) -> RenderableType:
    """What `testbed run` prints at its end and `testbed show` prints: verdict first, then the numbers."""
    head = Text()
    head.append(s.name, style="bold")
    about = [s.runner, f"{s.devices} devices", f"{text.seconds(s.duration_s)} emulated", f"seed {s.seed}"]
    head.append("  " + " · ".join(a for a in about if a), style="dim")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, value, remark in rows(s):
        table.add_row(Text(name), Text(value), Text(remark))
    parts: list[RenderableType] = [head]
    if s.status != "complete":
        parts.append(Text(f"{s.status.upper()}{': ' + s.error if s.error else ''}", style="bold yellow"))
    return Group(*parts, render_verdict(s), table, Text(f"→ {s.path}", style="dim"))
