"""testbed report"""

from __future__ import annotations

import click


@click.command()
@click.argument("run", metavar="RUN")
def report(run: str) -> None:
    """Make RUN's report anew: report.html, which opens offline, and its figures as PNG.

    \b
    Example:
      testbed report runs/quickstart-20261130-120000
    """
    from testbed.measurement.run_folder import RunFolder
    from testbed.report import build_report

    click.echo(build_report(RunFolder.open(run).path))
