"""testbed shell"""

from __future__ import annotations

import sys

import click

from testbed.cli.options import experiment_argument, set_option


@click.command()
@experiment_argument
@set_option
@click.option(
    "--at",
    "at",
    default="0 s",
    show_default=True,
    metavar="TIME",
    help="Emulated time at which the links start, e.g. '30 s'.",
)
@click.option("--hold", is_flag=True, help="Keep the links as they are at that time, instead of replaying them.")
def shell(experiment: str, overrides: tuple[str, ...], at: str, hold: bool) -> None:
    """Open Mininet's command line on EXPERIMENT's shaped network, its links following their traces.

    While it is open, `testbed exec EXPERIMENT …` from another terminal runs programs in the same network.

    \b
    Examples:
      testbed shell quickstart
      mininet> h1 ping -c 3 server
      echo 'h1 ping -c 3 server' | testbed shell quickstart --hold
    """
    from testbed.cli.exec import parse_time
    from testbed.emulation.network.console import command_line
    from testbed.experiment.loading import load_experiment
    from testbed.studies.session import shaped_session

    loaded = load_experiment(experiment, overrides)
    warnings: list[str] = []
    with shaped_session(
        loaded, command="testbed " + " ".join(sys.argv[1:]), at_s=parse_time(at), hold=hold, warnings=warnings
    ) as (_, shaped):
        for text in warnings:
            click.secho(f"warning: {text}", fg="yellow", err=True)
        command_line(shaped.network.net)
