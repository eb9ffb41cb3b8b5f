"""testbed doctor"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from testbed.cli.options import json_option


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what this kernel and machine can do, what will be used, and how to get what is missing.

    Exit code 1 only if nothing can run.

    \b
    Example:
      testbed doctor
    """
    from testbed.emulation.machine.capabilities import can_run, choose_delay_backend, probe, rows

    caps = probe()
    fine, reasons = can_run(caps)
    backend = choose_delay_backend(caps, "auto") if fine else None
    if as_json:
        machine = asdict(caps)
        found = {"can_run": fine, "reasons": reasons, "delay_backend": backend, **machine.pop("delay"), **machine}
        click.echo(json.dumps(found, indent=2))
        ctx.exit(0 if fine else 1)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "what", "found", "needed for", "how to get it"):
        table.add_column(column, overflow="fold")
    for row in rows(caps):
        mark = "[green]yes[/]" if row.ok else "[yellow]no[/]"
        table.add_row(mark, row.name, row.detail, row.needed_for, "" if row.ok else row.remedy or "")
    console.print(table)
    if fine:
        console.print(
            f"\n[bold green]Experiments run here.[/] Delay backend: [bold]{backend}[/], the first that works."
        )
    else:
        console.print("\n[bold red]Nothing can run here:[/] " + "; ".join(reasons))
    ctx.exit(0 if fine else 1)
