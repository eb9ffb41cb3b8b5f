"""testbed run"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from testbed.cli.options import (
    NOT_VALID,
    capture_option,
    captures,
    experiment_argument,
    json_option,
    require_valid_option,
    seed_option,
    set_option,
)

if TYPE_CHECKING:
    from testbed.experiment.setup import RunSetup


@click.command()
@experiment_argument
@set_option
@capture_option
@seed_option
@click.option(
    "--tdf",
    metavar="FACTOR|auto",
    help="Time dilation: real seconds an emulated second takes. auto: the "
    "least that this machine is expected to carry.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where the run folder is made.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Run it this often, with the same seed, and give means with 95 % intervals.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan and every command, start nothing.")
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the shaped network up after training: the Mininet command line on a terminal, elsewhere until Ctrl-C.",
)
@require_valid_option
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    experiment: str,
    overrides: tuple[str, ...],
    capture: tuple[str, ...],
    seed: int | None,
    tdf: str | None,
    out: Path,
    repeat: int,
    dry_run: bool,
    keep: bool,
    require_valid: bool,
    as_json: bool,
) -> None:
    """Run EXPERIMENT (a YAML file, or the name of a ready-made one) and print its results and its verdict.

    An experiment with a `sweep:` is run once for each of its entries, and the runs are compared.

    Exit code 0 when training completed (whatever the verdict, but for --require-valid), 1 when the run failed or
    reached its time limit, 2 for bad input, 3 for --require-valid, 130 when a signal interrupted it.

    \b
    Examples:
      testbed run experiments/quickstart.yaml
      testbed run quickstart --set training.steps=10 --seed 7 --out /tmp/runs
      testbed run quickstart --repeat 5
      testbed run quickstart --dry-run
      testbed run scale-256 --tdf auto
    """
    from testbed.experiment.loading import load_experiment
    from testbed.experiment.setup import run_setups
    from testbed.studies.running import dry_run_text

    console = Console(stderr=as_json, soft_wrap=not sys.stdout.isatty(), highlight=False)
    loaded = load_experiment(experiment, (*overrides, *captures(capture)), seed=seed, tdf=tdf)
    setups = run_setups(loaded)
    if dry_run:
        for setup in setups:
            click.echo(dry_run_text(setup, as_json=as_json))
        return
    how = Execution(console, out, repeat=repeat, keep=keep, require_valid=require_valid, as_json=as_json)
    ctx.exit(execute_sweep(how, setups, loaded.data.get("sweep")))


@dataclass(frozen=True)
class Execution:
    """How runs are made and shown. require_valid: a verdict that is not VALID is an exit code of its own."""

    console: Console
    out: Path
    repeat: int = 1
    keep: bool = False
    require_valid: bool = False
    as_json: bool = False


def execute_sweep(how: Execution, setups: list[RunSetup], entries: list[dict] | None) -> int:
    """Run each of a sweep's setups (or the one there is without a sweep), then compare them. Returns the exit code."""
    from testbed.studies.running import prepare

    folders, codes = [], [0]
    for number, setup in enumerate(setups):
        if len(setups) > 1:
            entry = ", ".join(f"{key}={value}" for key, value in entries[number].items())
            how.console.print(f"run {number + 1} of {len(setups)}: {entry}", style="bold")
        made, code = execute(how, prepare(setup, how.out, how.console.print))
        folders += made
        codes.append(code)
        if code not in (0, NOT_VALID):
            return code
    if len(setups) > 1:
        _compared(how, folders)
    return max(codes)


def execute(how: Execution, setup: RunSetup) -> tuple[list[Path], int]:
    """Run it with progress, print its summaries. Returns the run folders and the exit code."""
    from testbed.cli.progress import LiveProgress, PlainProgress, RunView
    from testbed.report.summary import render_repeats, render_summary, summarize, summarize_repeats
    from testbed.studies.running import run_once

    console, command = how.console, "testbed " + " ".join(sys.argv[1:])
    folders, code = [], 0
    for number in range(how.repeat):
        if how.repeat > 1:
            console.print(f"repeat {number + 1} of {how.repeat}", style="bold")
        view = RunView(setup.plan.training.steps, [d.name for d in setup.cluster.devices])
        live = console.is_terminal and not how.keep
        progress = LiveProgress(view, console) if live else PlainProgress(view, console.print)
        after = _keep_open(console) if how.keep else None
        done = run_once(setup, how.out, progress=progress, command=command, after=after)
        folders.append(done.path)
        summary = summarize(done.path)
        if how.as_json:
            click.echo(json.dumps({"run": str(done.path), **summary.as_dict()}))
        else:
            console.print(render_summary(summary))
            console.print(f"run folder: {done.path}" + (f"   report: {done.report}" if done.report else ""))
        if done.result.status != "complete":
            click.secho(f"{done.result.status}: {done.result.error}", fg="red", err=True)
            code = 130 if done.result.by_signal else 1
            break
        if how.require_valid and summary.verdict != "VALID":
            code = NOT_VALID
    if len(folders) > 1:
        repeats = summarize_repeats(folders)
        if how.as_json:
            click.echo(json.dumps(repeats.as_dict()))
        else:
            console.print(render_repeats(repeats))
    return folders, code


def _compared(how: Execution, folders: list[Path]) -> None:
    """The runs of a sweep side by side, printed and as a page beside their folders."""
    from testbed.measurement.run_folder import write_file
    from testbed.report import compare_text
    from testbed.report.compare import compare
    from testbed.report.compare_figures import WORLD_G_CO2_PER_KWH
    from testbed.report.compare_page import html

    comparison = compare(folders, g_co2_per_kwh=WORLD_G_CO2_PER_KWH)
    page = how.out / f"{folders[0].name}-sweep.html"
    write_file(page, html(comparison))
    if how.as_json:
        click.echo(compare_text.json_of(comparison), nl=False)
    else:
        how.console.print(compare_text.render_comparison(comparison))
        how.console.print(f"comparison: {page}")


def _keep_open(console: Console):
    def wait(shaped) -> None:
        if sys.stdin.isatty() and sys.stdout.isatty():
            from testbed.emulation.network.console import command_line

            console.print("The network is kept up; this is Mininet's command line, 'exit' ends it.")
            command_line(shaped.network.net)
        else:
            import time

            console.print("The network is kept up; Ctrl-C or SIGTERM ends it.")
            while True:
                time.sleep(3600)

    return wait
