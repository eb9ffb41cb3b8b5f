"""testbed clean"""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from testbed.cli.options import json_option


@click.command()
@click.argument("run_id", required=False)
@click.option("--force", is_flag=True, help="Also end runs whose own process is still alive.")
@json_option
@click.pass_context
def clean(ctx: click.Context, run_id: str | None, force: bool, as_json: bool) -> None:
    """Remove what crashed runs left behind: namespaces, cgroups, processes, files.

    Only objects that a run of this testbed recorded as its own; never anyone else's. Runs that are still
    alive are left alone, unless --force is given. Exit code 1 if something could not be removed.

    \b
    Examples:
      testbed clean
      testbed clean 3f9a1c --force
    """
    from testbed.emulation import cleanup
    from testbed.errors import CapabilityError

    if os.geteuid() != 0:
        raise CapabilityError("what runs leave can only be removed by root", hint="sudo testbed clean")
    report = cleanup.clean(run_id, force=force)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
    else:
        counts = {
            "processes": report.processes,
            "namespaces": report.namespaces,
            "cgroups": report.cgroups,
            "paths": report.paths,
            "sysctls restored": report.sysctls,
            "mounts": report.mounts,
        }
        done = ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "nothing was left"
        click.echo(
            f"{len(report.runs)} run{'s' * (len(report.runs) != 1)} cleaned: {done}"
            if report.runs
            else "nothing to clean"
        )
        for run in report.skipped:
            click.echo(f"{run} is still alive; left alone (--force ends it)")
        for problem in report.problems:
            click.secho(problem, fg="red", err=True)
    ctx.exit(0 if report.ok else 1)
