"""testbed traces: read, check, convert, generate and look at link and availability traces."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import click

from testbed import units
from testbed.errors import InputError


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


@click.group()
def traces() -> None:
    """Link and availability traces: read what people have, check it, convert it, generate it, look at it."""


@traces.group()
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
    from testbed.traces.write import write_links

    if step > duration:
        raise InputError(
            "--step", f"{units.duration(step)}; expected at most the duration of {units.duration(duration)}"
        )
    counts: dict[str, int] = {}
    for text in presets:
        name, equals, number = text.partition("=")
        if equals and not (number.isdigit() and int(number) > 0):
            raise InputError("--preset", f"{text!r}; expected NAME=HOMES such as cable=8")
        count = int(number) if equals else homes
        for part, n in (mixed(count) if name == "mixed" else {name: count}).items():
            counts[part] = counts.get(part, 0) + n
    traces = generate_links(counts, seed=seed, duration_s=duration, step_s=step, start_hour=start_hour)
    with output(out) as stream:
        write_links(traces, stream, readable=True)


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
    from testbed.traces.write import write_availability

    traces = generate_availability(preset, devices, seed=seed, days=days)
    with output(out) as stream:
        write_availability(traces, stream)


if __name__ == "__main__":
    traces()
