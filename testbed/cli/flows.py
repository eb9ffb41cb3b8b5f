"""testbed flows"""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.options import OutputFile, json_option


@click.command()
@click.argument("source", metavar="RUN|FILE", type=click.Path(path_type=Path))
@click.option("--out", type=OutputFile(), help="The Parquet file. Default: flows.parquet in the run folder.")
@click.option("--plot", type=OutputFile(), help="Draw goodput and RTT over time to this .html, .png, .svg or .pdf.")
@json_option
def flows(source: Path, out: Path | None, plot: Path | None, as_json: bool) -> None:
    """The flows in a run's captures, or in any capture FILE (pcap or pcapng).

    A row a flow: hosts, start, end, bytes, goodput, RTT, retransmissions, reordering, largest gap. Times of a run are
    emulated seconds; of a file, seconds since its first packet.

    \b
    Examples:
      testbed flows runs/quickstart-20261207-113000
      testbed flows other.pcap --plot flows.png
    """
    from testbed.report import flows as report

    found = report.read(source)
    if out is None and source.is_dir():
        out = source / report.PARQUET
    report.write(found, out, plot)
    click.echo(found.table.to_json(orient="records") if as_json else report.text(found))
