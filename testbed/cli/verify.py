"""testbed verify"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from testbed.cli.options import OutputFolder, json_option, seed_option, set_option


@click.command()
@click.argument("experiment", required=False, metavar="[EXPERIMENT]")
@click.option(
    "--grid",
    is_flag=True,
    help="Instead of an experiment: rates of 1 to 500 Mbit/s, RTTs of 0 to 200 ms, losses of 0 to 5 %.",
)
@click.option("--points", type=click.IntRange(min=1), help="How many settings of the grid.  [default: 18]")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="K",
    help="Measure K of the homes, drawn by seed.  [default: all, or 8 of more]",
)
@click.option("--quick", is_flag=True, help="Fewer packets, shorter flows: a third of the time, wider intervals.")
@click.option(
    "--delay-backend", metavar="NAME", default="auto", show_default=True, help="Of the grid; an experiment has its own."
)
@click.option(
    "--switch",
    type=click.Choice(["bridge", "ovs"]),
    default="bridge",
    show_default=True,
    help="Of the grid; an experiment has its own.",
)
@set_option
@seed_option
@click.option(
    "--out",
    type=OutputFolder(),
    default=Path("runs"),
    show_default=True,
    help="Where the folder with verify.json, verify.png (and grid.md) is made.",
)
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    experiment: str | None,
    grid: bool,
    points: int | None,
    sample: int | None,
    quick: bool,
    delay_backend: str,
    switch: str,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Measure every link of EXPERIMENT's network, both ways, against what it was set to. Nothing trains.

    TCP and UDP rate, one-way and round-trip delay, jitter, loss, buffer, packet spacing, what neighbours of a saturated
    home notice, and how late steps of a trace take effect; each with its limit (docs/fidelity.md). Exit code 0 when
    everything is within bounds, 1 when something is not, 2 for bad input, 130 when a signal interrupted it.

    \b
    Examples:
      testbed verify quickstart
      testbed verify big.yaml --sample 8 --quick
      testbed verify --grid --points 24
    """
    from testbed.errors import InputError, TestbedError
    from testbed.experiment.loading import load_experiment
    from testbed.verification import output
    from testbed.verification.grid import POINTS, markdown, verify_grid
    from testbed.verification.verify import verify_experiment

    if grid == (experiment is not None):
        raise InputError("EXPERIMENT, --grid", "expected one of them")
    if grid and (overrides or sample):
        raise InputError("--grid", "has no experiment: --set and --sample don't apply")
    if not grid and (points or delay_backend != "auto" or switch != "bridge"):
        raise InputError(
            "--points, --delay-backend, --switch",
            "are for --grid",
            hint="an experiment's network: --set network.delay_backend=…, --set network.switch=…",
        )
    started = time.monotonic()
    show_progress = sys.stderr.isatty()

    def say(text: str) -> None:
        if show_progress:
            click.secho(f"[{time.monotonic() - started:5.0f} s] {text}", dim=True, err=True)

    command = "testbed " + shlex.join(sys.argv[1:])
    if grid:
        found = verify_grid(
            points or POINTS,
            quick=quick,
            command=command,
            delay_backend=delay_backend,
            switch=switch,
            seed=seed or 0,
            say=say,
        )
    else:
        found = verify_experiment(
            load_experiment(experiment, overrides, seed=seed), sample=sample, quick=quick, command=command, say=say
        )
    folder, paths, trouble = None, [], None
    try:
        folder = output.make_folder(out, found.name, time.strftime("%Y%m%d-%H%M%S"))
        paths = output.write(found, folder, *([("grid.md", markdown(found) + "\n")] if grid else []))
    except TestbedError as error:  # a full disk, say: what was measured is told all the same
        trouble = error
    if as_json:
        import json

        click.echo(json.dumps({**found.as_dict(), "folder": folder and str(folder)}))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
        for text in found.warnings:
            console.print(f"warning: {text}", style="yellow")
        console.print(output.render(found))
        if paths:
            console.print("written: " + ", ".join(map(str, paths)), soft_wrap=True)
    if trouble:
        raise trouble
    ctx.exit(0 if found.ok else 1)
