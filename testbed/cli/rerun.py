"""testbed rerun"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from testbed.cli.options import json_option, require_valid_option


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where the new run folder is made.",
)
@click.option("--dry-run", is_flag=True, help="Say what differs from then; start nothing.")
@require_valid_option
@json_option
@click.pass_context
def rerun(ctx: click.Context, run: str, out: Path, dry_run: bool, require_valid: bool, as_json: bool) -> None:
    """Repeat RUN (a run folder, or its name in runs/) from its manifest, and say what differs.

    Experiment, seed and time dilation are the run's. Named are differences in software, machine, input files and plan
    before it starts, and in results after it. Exit codes as of `testbed run`.

    \b
    Examples:
      testbed rerun runs/quickstart-20261130-120000
      testbed rerun quickstart-20261130-120000 --dry-run
    """
    import sys

    from testbed.cli.run import Execution, execute
    from testbed.measurement.run_folder import RunFolder
    from testbed.studies import rerunning
    from testbed.studies.running import manifest_now, prepare

    console = Console(stderr=as_json, soft_wrap=not sys.stdout.isatty(), highlight=False)
    old = RunFolder.open(run)
    setup = rerunning.setup_again(old)
    before = rerunning.before_it(old, setup, manifest_now(setup))
    for difference in before:
        console.print(f"differs: {difference}", markup=False)
    if not before:
        console.print("software, machine, inputs and plan are as they were")
    if dry_run:
        if as_json:
            click.echo(json.dumps({"before": [str(d) for d in before]}))
        return
    setup = prepare(setup, out, console.print)
    folders, code = execute(Execution(console, out, require_valid=require_valid, as_json=as_json), setup)
    after = rerunning.results(old, RunFolder.open(folders[0]))
    if as_json:
        click.echo(json.dumps({"before": [str(d) for d in before], "after": [str(d) for d in after]}))
    else:
        console.print(f"compared with {old.path}:", markup=False)
        for difference in after:
            console.print(f"  {difference}", markup=False)
        if rerunning.trained(old) and not any(d.what.startswith("loss") for d in after):
            console.print("  the losses are the same, step by step")
    ctx.exit(code)
