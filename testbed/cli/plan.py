"""testbed plan"""

from __future__ import annotations

import json

import click

from testbed.cli.options import experiment_argument, json_option, seed_option, set_option


@click.command()
@experiment_argument
@click.option("--runner", metavar="NAME", help="Plan with this runner instead of the experiment's own.")
@set_option
@seed_option
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Print this many rows of a table at most; --json has all.",
)
@json_option
def plan(
    experiment: str, runner: str | None, overrides: tuple[str, ...], seed: int | None, rows: int, as_json: bool
) -> None:
    """Plan EXPERIMENT and say what the plan is worth: nothing is started, no root is needed.

    For cleave: which product goes where and why, its time, blocks and bytes; for each device its blocks, bytes, memory,
    what limits it and how much longer a step would take without it; what the server sends, and how that grows.

    \b
    Examples:
      testbed plan quickstart
      testbed plan quickstart --runner cleave --set training.local=never
      testbed plan cleave --set topology.homes=16 --json
    """
    from testbed.report.plan_text import render_plan
    from testbed.studies.planning import load_for_runner, plan_view

    view = plan_view(*load_for_runner(experiment, overrides, seed=seed, runner=runner))
    if as_json:
        click.echo(json.dumps(view.as_dict(), indent=2))
        return
    for line in render_plan(view.as_dict(), rows):
        click.echo(line)
