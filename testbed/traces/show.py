"""A summary of traces on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed import units
from testbed.traces.times import iso

_SHOWN = 12


def show(summary: dict, console: Console) -> None:
    """Print what `summary.summarise` found."""
    report = summary["report"]
    console.print(Text.assemble((report["file"], "bold"), f"  {report['format']}"))
    console.print("  " + (_links_line(summary) if summary["kind"] == "links" else _availability_line(summary)))
    if summary["start_epoch_s"] is not None:
        console.print(f"  begins {iso(round(summary['start_epoch_s']))}")
    console.print(_links_table(summary) if summary["kind"] == "links" else _availability_table(summary))
    if summary["kind"] == "availability" and summary["by_hour"]:
        _by_hour(summary["by_hour"], console)
    show_report(report, console)


def show_report(report: dict, console: Console) -> None:
    """Print notes, repairs, assumptions, warnings and what was left behind."""
    for note in report["notes"]:
        console.print(Text(f"  note: {note}", style="dim"))
    for quantity, value in report["assumed"].items():
        console.print(Text(f"  assumed, since the file does not say: {quantity} = {value}"))
    for text in report["guessed"]:
        console.print(Text(f"  guessed from the values: {text}", style="yellow"))
    for kind, repair in report["repairs"].items():
        line = Text(f"  repaired {repair['count']}x: {kind}", style="yellow")
        examples = "; ".join(e for e in repair["examples"] if e)
        console.print(line.append(f" ({examples})" if examples else "", style="dim"), overflow="fold")
    if report["dropped"]:
        console.print(Text(f"  left behind (persons, places, addresses): {', '.join(report['dropped'][:_SHOWN])}"))
    for warning in report["warnings"]:
        console.print(Text(f"  warning: {warning}", style="bold yellow"))


def _links_line(s: dict) -> str:
    homes = "1 home" if s["homes"] == 1 else f"{s['homes']} homes"
    gaps = s["gaps"]
    text = f"{homes}, {s['samples']} samples of {s['report']['rows']} rows, {units.duration(s['span_s'])}"
    if s["samples"] > s["homes"]:
        text += f", a sample every {units.duration(s['step_s'])}"
    if gaps["count"]:
        text += f", {gaps['count']} gaps of up to {units.duration(gaps['longest_s'])} (the sample before is held)"
    return text


def _links_table(s: dict) -> Table:
    table = _table([""] + [f"{level:.0%}" for level in s["levels"]])
    show = {
        "download": units.rate,
        "upload": units.rate,
        "rtt": units.duration,
        "jitter": units.duration,
        "loss": lambda v: f"{v * 100:.3g} %",
    }
    for name, values in s["quantiles"].items():
        assumed = name in s["report"]["assumed"]
        table.add_row(name, *(show[name](v) for v in values), style="dim" if assumed else "")
    return table


def _availability_line(s: dict) -> str:
    devices = "1 device" if s["devices"] == 1 else f"{s['devices']} devices"
    return (
        f"{devices}, {s['intervals']} intervals, {units.duration(s['span_s'])}, available "
        f"{s['mean_fraction']:.1%} of the time; {s['always']} always, {s['never']} never"
    )


def _availability_table(s: dict) -> Table:
    table = _table([""] + [f"{level:.0%}" for level in s["levels"]])
    table.add_row("share available", *(f"{v:.1%}" for v in s["available_fraction"]))
    for name, key in (("session", "session_s"), ("gap between", "gap_s")):
        if s[key]:
            table.add_row(name, *(units.duration(v) for v in s[key]))
    return table


def _table(columns: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2), header_style="dim")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _by_hour(hours: list[float], console: Console) -> None:
    bars = " ▁▂▃▄▅▆▇█"
    line = "".join(bars[min(8, round(h * 8))] for h in hours)
    console.print(f"  available by hour of the day: 0h |{line}| 24h  (least {min(hours):.0%}, most {max(hours):.0%})")
