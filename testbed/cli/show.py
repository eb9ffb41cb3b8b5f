"""testbed show"""

from __future__ import annotations

import json

import click
from rich.console import Console

from testbed.cli.options import json_option


@click.command()
@click.argument("run", metavar="RUN")
@json_option
def show(run: str, as_json: bool) -> None:
    """Print the summary and the verdict of RUN (a run folder, or its name in runs/).

    \b
    Example:
      testbed show runs/quickstart-20261130-120000
    """
    from testbed.measurement.run_folder import RunFolder
    from testbed.report.summary import render_summary, summarize

    summary = summarize(RunFolder.open(run).path)
    if as_json:
        click.echo(json.dumps(summary.as_dict(), indent=2))
    else:
        Console(highlight=False).print(render_summary(summary))
