"""testbed clean"""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("run_id", required=False)
@click.option("--force", is_flag=True, help="Also end runs whose own process is still alive.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def clean(run_id: str | None, force: bool, as_json: bool) -> None:
    """Remove what crashed runs left behind: namespaces, cgroups, processes, files.

    Only objects that a run of this testbed recorded as its own; never anyone else's. Runs that are still
    alive are left alone, unless --force is given.

    \b
    Examples:
      testbed clean
      testbed clean 3f9a1c --force
    """
    from testbed.emulation import cleanup

    report = cleanup.clean(run_id, force=force)
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else report.text())
