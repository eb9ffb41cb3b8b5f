"""testbed results"""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.options import OutputFolder


@click.command()
@click.argument("names", nargs=-1, metavar="[QUESTION]...")
@click.option(
    "--questions",
    "file",
    type=click.Path(path_type=Path),
    default=None,
    help="What to simulate. Default: experiments/results/questions.yaml.",
)
@click.option(
    "--output",
    "out",
    type=OutputFolder(),
    default=Path("docs"),
    show_default=True,
    help="Where results.md and results/ go.",
)
@click.option(
    "--runs", type=OutputFolder(), default=Path("runs/results"), show_default=True, help="Where the run folders go."
)
@click.option("--workers", type=click.IntRange(1, 64), default=None, help="Default: as many as there are cores.")
@click.option(
    "--limit",
    type=click.FloatRange(1),
    default=150.0,
    show_default=True,
    help="Seconds of CPU time after which a simulation is given up.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0.1),
    default=28.0,
    show_default=True,
    help="Minutes after which what is not yet simulated is left out, and named.",
)
@click.option("--draw-only", is_flag=True, help="Write results.md and the figures again, from results.json.")
def results(
    names: tuple[str, ...],
    file: Path | None,
    out: Path,
    runs: Path,
    workers: int | None,
    limit: float,
    budget: float,
    draw_only: bool,
) -> None:
    """Answer the paper's questions by simulation: docs/results.md with its tables and figures.

    With QUESTIONs, only those are simulated anew; the others keep what results.json has.

    \b
    Examples:
      testbed results
      testbed results recovery ratio --output /tmp/docs
    """
    from testbed.shipped import EXPERIMENTS
    from testbed.studies.results import make_results

    for path in make_results(
        file or EXPERIMENTS / "results" / "questions.yaml",
        names,
        out,
        runs,
        workers=workers,
        limit_s=limit,
        budget_s=60 * budget,
        draw_only=draw_only,
        say=click.echo,
    ):
        click.echo(path)
