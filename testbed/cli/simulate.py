"""testbed simulate"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from testbed.cli.options import (
    OutputFolder,
    experiment_argument,
    json_option,
    require_valid_option,
    seed_option,
    set_option,
)


@click.command()
@experiment_argument
@set_option
@seed_option
@click.option("--runner", metavar="NAME", help="Another training strategy than the experiment's.")
@click.option(
    "--tensors", type=click.Choice(["meta", "real"]), help="real: train as it is, for small models; meta: shapes only."
)
@click.option(
    "--out", type=OutputFolder(), default=Path("runs"), show_default=True, help="Where the run folder is made."
)
@require_valid_option
@json_option
@click.pass_context
def simulate(
    ctx: click.Context,
    experiment: str,
    overrides: tuple[str, ...],
    seed: int | None,
    runner: str | None,
    tensors: str | None,
    out: Path,
    require_valid: bool,
    as_json: bool,
) -> None:
    """Simulate EXPERIMENT in virtual time: the same code, links, churn and reports, without processes or a network.

    Needs no root, no kernel features and little time; thousands of devices and models of billions of parameters fit.
    docs/simulation.md says what is modelled and how well. A `sweep:` and exit codes are as of `testbed run`.

    \b
    Examples:
      testbed simulate quickstart
      testbed simulate quickstart --set topology.homes=64 --set training.stages=8 --seed 7
      testbed simulate smoke --tensors real
    """
    from testbed.cli.run import Execution, execute_sweep
    from testbed.experiment.loading import load_experiment
    from testbed.experiment.setup import run_setups

    console = Console(stderr=as_json, soft_wrap=not sys.stdout.isatty(), highlight=False)
    also = [
        item
        for item in (
            "engine=simulation",
            runner and f"training.runner={runner}",
            tensors and f"simulation.tensors={tensors}",
        )
        if item
    ]
    loaded = load_experiment(experiment, (*overrides, *also), seed=seed)
    setups = run_setups(loaded, also)
    how = Execution(console, out, require_valid=require_valid, as_json=as_json)
    ctx.exit(execute_sweep(how, setups, loaded.data.get("sweep")))
