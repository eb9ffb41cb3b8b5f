"""testbed traces: read, check, convert, generate and look at link and availability traces."""

from __future__ import annotations

import functools
import json
import sys
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from testbed import units
from testbed.errors import InputError, nearest

PROGRESS_ABOVE = 16 << 20  # bytes from which a progress bar is shown


class Quantity(click.ParamType):
    """An option with a unit, such as '15min'."""

    def __init__(self, kind: str):
        self.kind = kind
        self.name = kind

    def convert(self, value, param, ctx):
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return units.parse(self.kind, value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Group(click.Group):
    """A group that answers an unknown verb with the nearest one."""

    def resolve_command(self, ctx, args):
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = nearest(args[0], self.commands)
            hint = f"; did you mean {near!r}?" if near else ""
            raise click.UsageError(f"no such verb {args[0]!r}{hint} (verbs: {', '.join(self.commands)})", ctx)
        return super().resolve_command(ctx, args)


@contextmanager
def output(path: str):
    """The file to write, or standard output for '-'."""
    if path == "-":
        yield sys.stdout
        return
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
    except OSError as error:
        raise InputError(path, f"can't be written: {error.strerror}") from None


_READING = (
    click.option(
        "--format", "format", metavar="NAME", help="Force a format; `testbed traces formats` lists them."
    ),
    click.option("--strict", is_flag=True, help="Refuse what is otherwise repaired."),
    click.option(
        "--map",
        "columns",
        multiple=True,
        metavar="WHAT=COLUMN[:UNIT]",
        help="What a column of a table means: time, download, upload, rtt, jitter, loss, home. Repeatable.",
    ),
    click.option("--every", type=Quantity("duration"), help="Time between rows of a file without times."),
    click.option("--tz", metavar="ZONE", help="Time zone of times without one, such as Europe/London."),
    click.option("--dates", metavar="dmy|mdy", help="Order of dates such as 02/10/21."),
    click.option("--rule", metavar="TEXT", help="When a logged device is available: 'charging and wifi'."),
    click.option(
        "--align",
        default="clock",
        show_default=True,
        metavar="clock|home",
        help="One time zero for all homes of a file, or each its own first sample.",
    ),
    click.option("--name", metavar="NAME", help="Name of the only home or device of a file."),
    click.option(
        "--floor",
        type=Quantity("rate"),
        default="8kbit/s",
        show_default=True,
        help="Rate that stands for no throughput.",
    ),
    click.option(
        "--bin",
        type=Quantity("duration"),
        default="1s",
        show_default=True,
        help="Over which single packets (Mahimahi) become a rate.",
    ),
    click.option(
        "--up-ratio",
        type=float,
        default=1.0,
        show_default=True,
        help="Upload as a share of the download, in files with one direction.",
    ),
    click.option(
        "--rtt",
        type=Quantity("duration"),
        default="20ms",
        show_default=True,
        help="RTT in files that have none.",
    ),
    click.option(
        "--most",
        type=click.IntRange(1),
        default=10_000,
        show_default=True,
        help="Homes read of a population file.",
    ),
)


def reads_traces(command):
    """Give a command FILES and the reading options; it is called with (traces, report, …)."""

    @functools.wraps(command)
    def read_first(
        files,
        format,
        strict,
        columns,
        every,
        tz,
        dates,
        rule,
        align,
        name,
        floor,
        bin,
        up_ratio,
        rtt,
        most,
        **rest,
    ):
        from testbed.traces.assemble import Defaults
        from testbed.traces.reading import read_traces
        from testbed.traces.report import Report

        for option, value in (("--up-ratio", up_ratio), ("--floor", floor), ("--bin", bin)):
            if not value > 0:
                raise InputError(option, f"{value:g}; expected more than 0")
        report = Report()
        with progress(files) as advance:
            traces = read_traces(
                files,
                format=format,
                strict=strict,
                report=report,
                map=columns,
                every_s=every,
                zone=tz,
                dates=dates,
                rule=rule,
                align=align,
                home=name,
                floor_bps=floor,
                bin_s=bin,
                most=most,
                defaults=Defaults(rtt_s=rtt, up_per_down=up_ratio),
                progress=advance,
            )
        return command(traces, report, **rest)

    for option in reversed(_READING):
        read_first = option(read_first)
    return click.argument("files", nargs=-1, required=True, metavar="FILE...")(read_first)


@contextmanager
def progress(files):
    """A progress bar on standard error for large files, or None."""
    size = sum(Path(f).stat().st_size for f in files if Path(f).is_file())
    if size < PROGRESS_ABOVE or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@click.group(cls=Group)
def traces() -> None:
    """Link and availability traces: read what people have, check it, convert it, generate it, look at it."""


@traces.command()
@reads_traces
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def inspect(traces, report, as_json) -> None:
    """What is in a file: format, homes, span, quantiles, gaps, repairs.

    \b
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
@click.option("--out", default="-", show_default=True, help="File to write; - for standard output.")
@click.option("--readable", is_flag=True, help="Mbit/s and ms to 4 digits in place of exact SI units.")
def convert(traces, report, out, readable) -> None:
    """Write any format as a testbed table. Addresses, coordinates, names and share links stay behind.

    \b
    testbed traces convert speedtest.csv --out home.csv
    testbed traces convert fcc-2023-03/ --out panel.csv
    """
    write(traces, out, readable=readable)
    _tell(report)


def write(traces, out: str, readable: bool = False) -> None:
    """Write traces of either kind to a file or standard output."""
    from testbed.traces.links import LinkTrace
    from testbed.traces.write import write_availability, write_links

    with output(out) as stream:
        if isinstance(next(iter(traces.values())), LinkTrace):
            write_links(traces, stream, readable=readable)
        else:
            write_availability(traces, stream)


def _tell(report) -> None:
    from testbed.traces.show import show_report

    show_report(report.as_dict(), Console(stderr=True))


@traces.command()
@reads_traces
@click.option(
    "--out",
    default=None,
    metavar="NAME",
    help="NAME.png, .pdf, .svg or .html; without an ending PNG and HTML. Default: named after the file.",
)
@click.option("--title", default=None, help="Default: the file's name.")
def plot(traces, report, out, title) -> None:
    """Draw traces: rates over time and distributions, or availability as a raster with its daily curve.

    \b
    testbed traces plot traces/links/mixed.csv --out mixed
    testbed traces plot traces/availability/evening.csv --out evening.pdf
    """
    first = Path(report.path.split(", ")[0])
    path = Path(out if out is not None else first.stem)
    paths = (
        [path]
        if path.suffix in (".png", ".pdf", ".svg", ".html")
        else [path.with_name(path.name + ending) for ending in (".png", ".html")]
    )
    for target in paths:
        if target.suffix == ".html":
            from testbed.traces.plot_html import save
        else:
            from testbed.traces.plot_png import save
        try:
            save(traces, target, title or first.name)
        except OSError as error:
            raise InputError(str(target), f"can't be written: {error.strerror}") from None
        click.echo(target)
    _tell(report)


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
@click.option("--out", default="-", show_default=True)
def sample(traces, report, count, by, seed, out) -> None:
    """Draw homes (or devices) from a population.

    \b
    testbed traces sample tiles.parquet --homes 50 --by download --seed 3 --out fifty.csv
    """
    from testbed.traces.edit import sample as draw

    write(draw(traces, count, seed=seed, by=by), out)
    _tell(report)


@traces.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--from", "start", type=Quantity("duration"), default="0s", show_default=True, help="Cut: first moment."
)
@click.option(
    "--to", "stop", type=Quantity("duration"), default=None, help="Cut: last moment; default the end."
)
@click.option("--out", default="-", show_default=True)
def splice(files, start, stop, out) -> None:
    """Cut a part out of each file, and join the parts in time. All files need the same homes.

    \b
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
@click.option("--out", default="-", show_default=True)
def scale(traces, report, time, download, upload, rtt_factor, jitter, loss, out) -> None:
    """Multiply quantities, or time, by factors.

    \b
    testbed traces scale traces/links/cable.csv --upload 0.5 --rtt-by 2 --out worse.csv
    """
    from testbed.traces.edit import scale as multiply

    write(
        multiply(
            traces, time=time, download=download, upload=upload, rtt=rtt_factor, jitter=jitter, loss=loss
        ),
        out,
    )
    _tell(report)


@traces.command("formats")
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def list_formats(as_json) -> None:
    """The formats that are read.

    \b
    testbed traces formats
    """
    from testbed.traces.formats import all_formats

    known = sorted(all_formats(), key=lambda f: (f.kind != "links", f.name))
    if as_json:
        click.echo(json.dumps([{"name": f.name, "kind": f.kind, "title": f.title} for f in known], indent=2))
        return
    for f in known:
        click.echo(f"{f.name:24} {f.kind:13} {f.title}")


@traces.group(cls=Group)
def generate() -> None:
    """Make a seeded population from public figures (see traces/README.md)."""


@generate.command("links")
@click.option(
    "--preset",
    "presets",
    multiple=True,
    default=("mixed",),
    show_default=True,
    metavar="NAME[=HOMES]",
    help="dsl, fttc, cable, fibre, lte, satellite or mixed; repeatable.",
)
@click.option(
    "--homes",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="Homes of each preset that is given without a number.",
)
@click.option("--duration", type=Quantity("duration"), default="24h", show_default=True)
@click.option("--step", type=Quantity("duration"), default="15min", show_default=True)
@click.option(
    "--start-hour",
    type=click.FloatRange(0, 24, max_open=True),
    default=0.0,
    show_default=True,
    help="Time of day at which the traces begin.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True)
@click.option("--out", default="-", show_default=True, help="File to write; - for standard output.")
def generate_links_command(presets, homes, duration, step, start_hour, seed, out) -> None:
    """Access links that keep a preset's quantiles.

    \b
    testbed traces generate links --preset cable=8 --preset lte=4 --seed 7 --out homes.csv
    """
    from testbed.traces.generate_links import generate_links, mixed

    if not 0 < step <= duration:
        raise InputError(
            "--step",
            f"{units.duration(step)}; expected more than 0 and at most the duration of "
            f"{units.duration(duration)}",
        )
    counts: dict[str, int] = {}
    for text in presets:
        name, equals, number = text.partition("=")
        if equals and not (number.isdigit() and int(number) > 0):
            raise InputError("--preset", f"{text!r}; expected NAME=HOMES such as cable=8")
        count = int(number) if equals else homes
        for part, n in (mixed(count) if name == "mixed" else {name: count}).items():
            counts[part] = counts.get(part, 0) + n
    write(
        generate_links(counts, seed=seed, duration_s=duration, step_s=step, start_hour=start_hour),
        out,
        readable=True,
    )


@generate.command("availability")
@click.option(
    "--preset", required=True, metavar="NAME", help="evening, overnight-idle, office, flaky or two-leave."
)
@click.option("--devices", type=click.IntRange(1), default=12, show_default=True)
@click.option("--days", type=click.IntRange(1, 3660), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True)
@click.option("--out", default="-", show_default=True, help="File to write; - for standard output.")
def generate_availability_command(preset, devices, days, seed, out) -> None:
    """When devices are there, from distributions of sessions and times of day.

    \b
    testbed traces generate availability --preset evening --devices 20 --seed 7 --out evening.csv
    """
    from testbed.traces.generate_availability import generate_availability

    write(generate_availability(preset, devices, seed=seed, days=days), out)


if __name__ == "__main__":
    traces()
