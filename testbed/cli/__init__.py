"""The command line. One command a file; commands hold no logic, they call the library and print."""

from __future__ import annotations

import importlib
import os
import sys

import click

from testbed import __version__
from testbed.cli import kernel
from testbed.errors import InputError, TestbedError, nearest

# name -> where its command is; loaded when used, so that `testbed --help` needs no torch
COMMANDS = {
    "doctor": "testbed.cli.doctor:doctor",
    "run": "testbed.cli.run:run",
    "plan": "testbed.cli.plan:plan",
    "simulate": "testbed.cli.simulate:simulate",
    "rerun": "testbed.cli.rerun:rerun",
    "recovery": "testbed.cli.recovery:recovery",
    "report": "testbed.cli.report:report",
    "show": "testbed.cli.show:show",
    "compare": "testbed.cli.compare:compare",
    "validate": "testbed.cli.validate:validate",
    "results": "testbed.cli.results:results",
    "flows": "testbed.cli.flows:flows",
    "verify": "testbed.cli.verify:verify",
    "shell": "testbed.cli.shell:shell",
    "exec": "testbed.cli.exec:exec_command",
    "clean": "testbed.cli.clean:clean",
    "schema": "testbed.cli.schema:schema",
    "traces": "testbed.cli.traces:traces",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, and answers an unknown name with the nearest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name].split(":")
        return getattr(importlib.import_module(module), attribute)

    def resolve_command(self, ctx: click.Context, args: list[str]):
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = nearest(name, COMMANDS)
            raise click.UsageError(
                f"no such command {name!r}"
                + (f"; did you mean {near!r}?" if near else "")
                + f" (commands: {', '.join(COMMANDS)})",
                ctx,
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    params=list(kernel.options),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="testbed")
def cli() -> None:
    """Train over emulated home broadband: real PyTorch workers in Mininet hosts, links shaped from traces.

    \b
    testbed doctor                       what this machine can do
    testbed run experiments/smoke.yaml   run an experiment
    testbed report runs/smoke-…          its report
    """


def _need_folder() -> None:
    """Where the command stands, other programs and libraries want to know, too. Raises InputError."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError(
            "the current folder", f"{error.strerror}: it was deleted or closed to you", hint="cd to another one"
        ) from None


def main(args: list[str] | None = None) -> None:
    """Entry point: runs the command, turns errors that users can act on into a message and an exit code."""
    try:
        _need_folder()
        where, memory_bytes, rest = kernel.split(list(sys.argv[1:] if args is None else args))
        if where == "uml":
            from testbed import processes, uml

            if not processes.in_user_mode_linux():
                sys.exit(uml.run(kernel.command(rest), memory_bytes))
        code = cli.main(args=rest, prog_name="testbed", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TestbedError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away: `testbed … | head`
        sys.stderr.close()
        sys.exit(0)
