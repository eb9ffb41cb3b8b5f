"""testbed compare"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from testbed.cli.options import OutputFile


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "json", "csv"]),
    default="table",
    show_default=True,
    help="What to print.",
)
@click.option(
    "--html",
    "page",
    type=OutputFile(),
    metavar="FILE",
    help="Also write a page with a figure for each metric; opens offline.",
)
@click.option("--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True)
@click.option(
    "--interval",
    type=click.Choice(["t", "bootstrap"]),
    default="t",
    show_default=True,
    help="How intervals are made: Student's t, or bootstrap.",
)
@click.option(
    "--carbon",
    type=click.FloatRange(0, 2000),
    default=480.0,
    show_default=True,
    help="Grams of CO₂ a kWh of electricity (default: world average of 2023, Ember).",
)
def compare(
    runs: tuple[str, ...], form: str, page: Path | None, confidence: float, interval: str, carbon: float
) -> None:
    """Compare runs, emulated or simulated: step time, tokens/s, traffic, recovery, idle time, energy.

    RUN is a run folder, a folder of runs, or a pattern. Runs of one experiment with the same settings are repeats: they
    make one row, with a confidence interval. INVALID runs are flagged. The first row is what the others are
    measured against.

    \b
    Examples:
      testbed compare runs/quickstart-* runs/gpipe-*
      testbed compare runs --format markdown
      testbed compare 'runs/scaling-*' --html scaling.html --interval bootstrap
    """
    from rich.console import Console

    from testbed.measurement.run_folder import write_file
    from testbed.report import compare_text
    from testbed.report.compare import compare as compared
    from testbed.report.compare import find_runs

    comparison = compared(find_runs(runs), confidence=confidence, method=interval, g_co2_per_kwh=carbon)
    if form == "table":
        Console(soft_wrap=not sys.stdout.isatty(), highlight=False).print(compare_text.render_comparison(comparison))
    else:
        make = {"markdown": compare_text.markdown, "json": compare_text.json_of, "csv": compare_text.csv_text}[form]
        click.echo(make(comparison), nl=False)
    if page is not None:
        from testbed.report.compare_page import html

        write_file(page, html(comparison))
        click.echo(page, err=form != "table")
