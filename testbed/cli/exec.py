"""testbed exec"""

from __future__ import annotations

import shlex
import sys

import click

from testbed.cli.options import capture_option, captures, experiment_argument, set_option


@click.command("exec", context_settings={"ignore_unknown_options": False})
@experiment_argument
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[HOST] -- COMMAND...")
@click.option("--all", "everywhere", is_flag=True, help="In every home, each with its RANK.")
@click.option("--hosts", metavar="H1,H2", help="In these hosts, ranked in this order.")
@click.option(
    "--with",
    "background",
    multiple=True,
    metavar="HOST=COMMAND",
    help="Start this beside it in HOST first, and end it afterwards. Repeatable.",
)
@set_option
@capture_option
@click.option(
    "--at",
    "at",
    default="0 s",
    show_default=True,
    metavar="TIME",
    help="Emulated time at which the links start (own network only).",
)
@click.option("--hold", is_flag=True, help="Keep the links as they are at that time (own network only).")
@click.option("--new", is_flag=True, help="A network of its own, even if one of this experiment is up.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the program after this many real seconds.",
)
@click.pass_context
def exec_command(
    ctx: click.Context,
    experiment: str,
    words: tuple[str, ...],
    everywhere: bool,
    hosts: str | None,
    background: tuple[str, ...],
    overrides: tuple[str, ...],
    capture: tuple[str, ...],
    at: str,
    hold: bool,
    new: bool,
    timeout: float | None,
) -> None:
    """Run any program in one host, or in all homes, of EXPERIMENT's shaped network.

    EXPERIMENT is a file or name; when a run or shell of it is up (or a run folder or id of one is given), the program
    joins that network, otherwise a network is built for it, without its `sweep:` if it has one. In each host RANK,
    WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME and a hosts file are set, so that torchrun and DDP
    scripts work unmodified. The exit code is the program's (the worst one of several hosts).

    \b
    Examples:
      testbed exec quickstart h1 -- ping -c 3 server
      testbed exec quickstart h1 --with 'server=iperf3 -s' -- iperf3 -c server
      testbed exec quickstart --all -- python3 train_ddp.py
      testbed exec quickstart --hosts h1,h2 -- sh -c 'torchrun --nnodes=$WORLD_SIZE --node-rank=$RANK \\
          --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train_ddp.py'
    """
    from testbed.errors import InputError
    from testbed.experiment.loading import load_experiment
    from testbed.scenario.captures import CaptureSettings
    from testbed.studies.programs import Job, run_attached, run_new
    from testbed.studies.session import find_live

    if everywhere and hosts:
        raise InputError("--all, --hosts", "exclude each other; give one")
    chosen = hosts.split(",") if hosts else None
    argv = list(words)
    if not everywhere and chosen is None:
        if not argv:
            raise click.UsageError("expected a host and a command: testbed exec EXPERIMENT HOST -- COMMAND", ctx)
        chosen, argv = [argv[0]], argv[1:]
    if not argv:
        raise click.UsageError("expected a command after --, e.g. -- ping -c 3 server", ctx)
    beside = []
    for item in background:
        host, sep, text = item.partition("=")
        if not sep or not text.strip():
            raise InputError(f"--with {item}", "expected HOST=COMMAND, e.g. 'server=iperf3 -s'")
        beside.append((host, shlex.split(text)))
    command = "testbed " + shlex.join(sys.argv[1:])
    live = None if new else find_live(experiment)
    loaded = load_experiment(experiment, (*overrides, *captures(capture))) if live is None else None
    wanted = CaptureSettings(tuple(",".join(capture).split(","))) if capture and live else None
    job = Job(chosen, argv, beside, timeout, note=lambda text: click.secho(text, dim=True, err=True), captures=wanted)
    if live is not None:
        code = run_attached(live, job, command=command)
    else:
        code = run_new(loaded, job, at_s=parse_time(at), hold=hold, command=command)
    ctx.exit(code)


def parse_time(text: str) -> float:
    """'30 s' in seconds. Raises InputError."""
    from testbed import units
    from testbed.errors import InputError

    try:
        value = units.parse("duration", text)
    except ValueError as error:
        raise InputError("--at", str(error)) from None
    if value < 0:
        raise InputError("--at", f"{text!r} is negative; expected a time from 0 on")
    return value
