"""testbed validate"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from testbed.cli.options import OutputFolder, json_option, seed_option, set_option


@click.command()
@click.argument("experiments", nargs=-1, required=True, metavar="EXPERIMENT...")
@set_option
@seed_option
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Emulated runs of each experiment. The simulation gives the same each time, and runs once.",
)
@click.option(
    "--output", "out", type=OutputFolder(), default=Path("validation"), show_default=True, help="Where the results go."
)
@click.option(
    "--runs", type=OutputFolder(), default=Path("runs/validation"), show_default=True, help="Where the run folders go."
)
@click.option(
    "--tdf",
    metavar="FACTOR|auto",
    help="Time dilation of the emulation.  [default: auto, the least that this machine is expected to carry]",
)
@click.option("--check", is_flag=True, help="Exit with 1 when the errors are larger than what is asked for.")
@json_option
@click.pass_context
def validate(
    ctx: click.Context,
    experiments: tuple[str, ...],
    overrides: tuple[str, ...],
    seed: int | None,
    repeat: int,
    out: Path,
    runs: Path,
    tdf: str | None,
    check: bool,
    as_json: bool,
) -> None:
    """Run EXPERIMENTs in both engines; report the simulation's errors in step time, traffic and recovery.

    Writes validation.md, .csv, .json and a scatter plot (.png, .svg). Asked for, over the experiments whose
    emulation was VALID: step time within 10 % at the median and 20 % at the 90 % quantile, the time
    from a loss until training is back within 25 %.

    \b
    Examples:
      testbed validate experiments/validation/*.yaml --output docs/validation
      testbed validate smoke --repeat 5
    """
    from rich.console import Console

    from testbed.report.compare_engines import json_of, render_validation
    from testbed.studies.validating import checked
    from testbed.studies.validating import validate as both

    console = Console(stderr=as_json, soft_wrap=not sys.stdout.isatty(), highlight=False)
    setups = checked(experiments, overrides, seed=seed, tdf=tdf)
    command = "testbed " + " ".join(sys.argv[1:])
    found = both(setups, out, runs, command=command, repeat=repeat, say=console.print)
    if as_json:
        click.echo(json_of(found), nl=False)
    else:
        console.print(render_validation(found))
        console.print(f"written: {out / 'validation.md'}, .csv, .json, .png, .svg")
    ctx.exit(1 if check and not found.met else 0)
