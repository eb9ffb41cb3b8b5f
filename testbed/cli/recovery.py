"""testbed recovery"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from testbed.cli.options import OutputFolder, experiment_argument, json_option, seed_option, set_option


@click.command()
@experiment_argument
@set_option
@seed_option
@click.option(
    "--out", type=OutputFolder(), default=Path("runs"), show_default=True, help="Where the run folders are made."
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Pairs of runs a strategy, for 95 % intervals.",
)
@json_option
@click.pass_context
def recovery(
    ctx: click.Context,
    experiment: str,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path,
    repeat: int,
    as_json: bool,
) -> None:
    """What the loss of a device costs each strategy of EXPERIMENT's sweep.

    Runs each entry of the sweep with the experiment's departures and without, and prints a table (Markdown): the step
    in which the device leaves against the same step without, and how much of the difference is detection.

    \b
    Examples:
      testbed recovery recovery --repeat 5
      testbed recovery recovery --repeat 2 --set training.steps=12
    """
    from testbed.cli.run import Execution, execute
    from testbed.experiment.loading import load_experiment
    from testbed.report.recovery import markdown, row
    from testbed.studies.recovering import pairs
    from testbed.studies.running import prepare

    console = Console(stderr=True, highlight=False)
    todo = [
        (p.name, prepare(p.disturbed, out, console.print), prepare(p.calm, out, console.print))
        for p in pairs(load_experiment(experiment, overrides, seed=seed))
    ]
    made: dict[int, list[tuple[Path, Path]]] = {i: [] for i in range(len(todo))}
    for number in range(repeat):  # strategies in turn, so that a change of the machine's load meets all alike
        for i, (name, *setups) in enumerate(todo):
            console.print(f"{name}, pair {number + 1} of {repeat}", style="bold")
            folders: list[Path] = []
            for setup in setups:
                new, code = execute(Execution(console, out), setup)
                folders += new
                if code:
                    ctx.exit(code)
            made[i].append((folders[0], folders[1]))
    rows = [row(name, made[i]) for i, (name, *_) in enumerate(todo)]
    click.echo(json.dumps([r.as_dict() for r in rows]) if as_json else markdown(rows), nl=as_json)
