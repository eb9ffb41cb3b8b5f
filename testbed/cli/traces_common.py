"""What the verbs of `testbed traces` share: reading options, writing, units on the command line."""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from testbed import units
from testbed.cli.options import OutputFile
from testbed.errors import InputError, looking, nearest
from testbed.outputs import check_file

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


def plot_files(name: str) -> list[Path]:
    """What a plot of that name is written to: NAME itself if it ends as a figure or a page, else one of each."""
    path = Path(name)
    if not path.name:
        raise InputError(f"--out {name}", "can't be written: is a folder; expected the name of a file")
    if path.suffix in (".png", ".pdf", ".svg", ".html"):
        return [path]
    return [path.with_name(path.name + ending) for ending in (".png", ".html")]


class PlotFiles(click.ParamType):
    """A plot's name as the files that it stands for; tried at once."""

    name = "name"

    def convert(self, value, param, ctx) -> list[Path]:
        files = plot_files(value)
        for file in files:
            check_file(file)
        return files


out_option = click.option(
    "--out",
    type=OutputFile(),
    default="-",
    show_default=True,
    metavar="FILE",
    help="File to write; - for standard output.",
)


@contextmanager
def output(path: Path):
    """The file to write, or standard output for '-'."""
    if str(path) == "-":
        yield sys.stdout
        return
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
    except OSError as error:
        raise InputError(str(path), f"can't be written: {error.strerror}") from None


_READING = (
    click.option("--format", "format", metavar="NAME", help="Force a format; `testbed traces formats` lists them."),
    click.option("--strict", is_flag=True, help="Refuse what is otherwise repaired."),
    click.option(
        "--map",
        "columns",
        multiple=True,
        metavar="WHAT=COLUMN[:UNIT]",
        help="What a column of a table means: time, download, upload, rtt, jitter, loss, home. Repeatable.",
    ),
    click.option(
        "--pattern",
        metavar="REGEX",
        help="Read lines by named groups: time, download, upload, rtt, jitter, loss, home, with units: download_mbps.",
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
    click.option(
        "--folder",
        metavar="series|population",
        help="Whether several files are one home's or a home each. Default: told from their times.",
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
        "--rtt", type=Quantity("duration"), default="20ms", show_default=True, help="RTT in files that have none."
    ),
    click.option("--down", type=Quantity("rate"), help="Download of a file that has no rates, such as a log of RTTs."),
    click.option("--up", type=Quantity("rate"), help="Upload of such a file."),
    click.option(
        "--most", type=click.IntRange(1), default=10_000, show_default=True, help="Homes read of a population file."
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
        pattern,
        every,
        tz,
        dates,
        rule,
        align,
        folder,
        name,
        floor,
        bin,
        up_ratio,
        rtt,
        down,
        up,
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
                pattern=pattern,
                every_s=every,
                zone=tz,
                dates=dates,
                rule=rule,
                align=align,
                folder=folder,
                home=name,
                floor_bps=floor,
                bin_s=bin,
                most=most,
                defaults=Defaults(rtt_s=rtt, up_per_down=up_ratio, down_bps=down, up_bps=up),
                progress=advance,
            )
        return command(traces, report, **rest)

    for option in reversed(_READING):
        read_first = option(read_first)
    return click.argument("files", nargs=-1, required=True, metavar="FILE...")(read_first)


@contextmanager
def progress(files):
    """A progress bar on standard error for large files, or None."""
    with looking():
        size = sum(Path(f).stat().st_size for f in files if Path(f).is_file())
    if size < PROGRESS_ABOVE or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def write(traces, out: Path, readable: bool = False) -> None:
    """Write traces of either kind to a file or standard output."""
    from testbed.traces.links import LinkTrace
    from testbed.traces.write import write_availability, write_links

    with output(out) as stream:
        if isinstance(next(iter(traces.values())), LinkTrace):
            write_links(traces, stream, readable=readable)
        else:
            write_availability(traces, stream)


def tell(report) -> None:
    from testbed.traces.show import show_report

    show_report(report.as_dict(), Console(stderr=True))
