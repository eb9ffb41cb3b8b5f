"""testbed schema"""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--markdown", is_flag=True, help="Print the reference tables of docs/experiment.md instead.")
def schema(markdown: bool) -> None:
    """Print the JSON schema of an experiment file, for editors and checks.

    \b
    Example:
      testbed schema > experiment.schema.json
    """
    from testbed.experiment import reference
    from testbed.experiment.schema import Experiment

    if markdown:
        click.echo(reference.markdown(), nl=False)
    else:
        click.echo(json.dumps(Experiment.model_json_schema(), indent=2))
