"""Options and arguments that several commands share."""

from __future__ import annotations

import click

experiment_argument = click.argument("experiment", metavar="EXPERIMENT")
set_option = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
                          help="Override a value of the experiment, e.g. training.steps=5. Repeatable.")
seed_option = click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Replace the experiment's seed.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print data as JSON on standard output.")
