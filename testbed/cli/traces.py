"""testbed traces: read, check, convert, generate and look at link and availability traces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console

from testbed.cli.traces_common import Group, PlotFiles, Quantity, out_option, plot_files, reads_traces, tell, write
from testbed.cli.traces_generate import generate
from testbed.errors import InputError


@click.group(cls=Group)
def traces() -> None:
    """Link and availability traces: read what people have, check it, convert it, generate it, look at it.

    \b
    Example:
      testbed traces inspect speedtest.csv
      testbed traces plot traces/links/mixed.csv --out mixed

    docs/traces.md tells of all formats.
    """


@traces.command()
@reads_traces
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def inspect(traces, report, as_json) -> None:
    """What is in a file: format, homes, span, quantiles, gaps, repairs.

    \b
    Example:
      testbed traces inspect speedtest.csv
      testbed traces inspect log.txt --map time=1 --map download=3:Mbps --map upload=4:Mbps
    """
    from testbed.traces.show import show
    from testbed.traces.summary import summarise

    summary = summarise(traces, report)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        show(summary, Console())


@traces.command()
@reads_traces
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def validate(traces, report, as_json) -> None:
    """Whether a file is fit for use as it is; ends with status 2 when it needs repairs.

    \b
    Example:
      testbed traces validate traces/links/mixed.csv
    """
    from testbed.traces.show import show_report

    repairs = sum(r.count for r in report.repairs.values())
    if as_json:
        click.echo(json.dumps({"valid": not repairs, **report.as_dict()}, indent=2))
    else:
        kind = "homes" if hasattr(next(iter(traces.values())), "down_bps") else "devices"
        verdict = "valid" if not repairs else f"needs {repairs} repairs"
        click.echo(f"{report.path}: {verdict} ({report.format}, {len(traces)} {kind})")
        show_report(report.as_dict(), Console())
    if repairs:
        sys.exit(InputError.exit_code)


@traces.command()
@reads_traces
@out_option
@click.option("--readable", is_flag=True, help="Mbit/s and ms to 4 digits in place of exact SI units.")
def convert(traces, report, out, readable) -> None:
    """Write any format as a testbed table. Addresses, coordinates, names and share links stay behind.

    \b
    Example:
      testbed traces convert speedtest.csv --out home.csv
      testbed traces convert fcc-2023-03/ --out panel.csv
    """
    write(traces, out, readable=readable)
    tell(report)


@traces.command()
@reads_traces
@click.option(
    "--out",
    type=PlotFiles(),
    default=None,
    metavar="NAME",
    help="NAME.png, .pdf, .svg or .html; without an ending PNG and HTML. Default: named after the file.",
)
@click.option("--title", default=None, help="Default: the file's name.")
def plot(traces, report, out, title) -> None:
    """Draw traces: rates over time and distributions, or availability as a raster with its daily curve.

    \b
    Example:
      testbed traces plot traces/links/mixed.csv --out mixed
      testbed traces plot traces/availability/evening.csv --out evening.pdf
    """
    first = Path(report.path.split(", ")[0])
    from testbed.traces.plot import save  # plotly takes a moment to load

    for target in out or plot_files(first.stem):
        try:
            save(traces, target, title or first.name)
        except OSError as error:
            raise InputError(str(target), f"can't be written: {error.strerror}") from None
        click.echo(target)
    tell(report)


@traces.command()
@reads_traces
@click.option("--homes", "count", type=click.IntRange(1), required=True, help="How many to draw.")
@click.option(
    "--by",
    default=None,
    metavar="download|upload|rtt|loss|available|name",
    help="Draw stratified by this, so that the sample's quantiles are the population's.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True)
@out_option
def sample(traces, report, count, by, seed, out) -> None:
    """Draw homes (or devices) from a population.

    \b
    Example:
      testbed traces sample tiles.parquet --homes 50 --by download --seed 3 --out fifty.csv
    """
    from testbed.traces.edit import sample as draw

    write(draw(traces, count, seed=seed, by=by), out)
    tell(report)


@traces.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--from", "start", type=Quantity("duration"), default="0s", show_default=True, help="Cut: first moment.")
@click.option("--to", "stop", type=Quantity("duration"), default=None, help="Cut: last moment; default the end.")
@out_option
def splice(files, start, stop, out) -> None:
    """Cut a part out of each file, and join the parts in time. All files need the same homes.

    \b
    Example:
      testbed traces splice day.csv --from 18h --to 23h --out evening.csv
      testbed traces splice quiet.csv busy.csv --out both.csv
    """
    from testbed.traces.edit import cut
    from testbed.traces.edit import splice as join
    from testbed.traces.reading import read_traces

    parts = []
    for file in files:
        whole = read_traces(file)
        parts.append(
            {n: cut(t, start, t.span_s if stop is None else stop) for n, t in whole.items()}
            if start or stop is not None
            else whole
        )
    write(join(parts), out)


@traces.command()
@reads_traces
@click.option("--time", default=1.0, show_default=True, help="Above 1 stretches time, below 1 compresses it.")
@click.option("--download", default=1.0, show_default=True)
@click.option("--upload", default=1.0, show_default=True)
@click.option("--rtt-by", "rtt_factor", default=1.0, show_default=True)
@click.option("--jitter", default=1.0, show_default=True)
@click.option("--loss", default=1.0, show_default=True)
@out_option
def scale(traces, report, time, download, upload, rtt_factor, jitter, loss, out) -> None:
    """Multiply quantities, or time, by factors.

    \b
    Example:
      testbed traces scale traces/links/cable.csv --upload 0.5 --rtt-by 2 --out worse.csv
    """
    from testbed.traces.edit import scale as multiply

    write(multiply(traces, time=time, download=download, upload=upload, rtt=rtt_factor, jitter=jitter, loss=loss), out)
    tell(report)


@traces.command("formats")
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def list_formats(as_json) -> None:
    """The formats that are read.

    \b
    Example:
      testbed traces formats
    """
    from testbed.traces.formats import all_formats

    known = sorted(all_formats(), key=lambda f: (f.kind != "links", f.name))
    if as_json:
        click.echo(json.dumps([{"name": f.name, "kind": f.kind, "title": f.title} for f in known], indent=2))
        return
    for f in known:
        click.echo(f"{f.name:24} {f.kind:13} {f.title}")


traces.add_command(generate)


if __name__ == "__main__":
    traces()
