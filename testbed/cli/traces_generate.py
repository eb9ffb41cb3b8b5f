"""testbed traces generate: seeded populations of links and devices."""

from __future__ import annotations

import click

from testbed import units
from testbed.cli.traces_common import Group, Quantity, out_option, write
from testbed.errors import InputError


@click.group(cls=Group)
def generate() -> None:
    """Make a seeded population from public figures (see traces/README.md).

    \b
    Example:
      testbed traces generate links --preset mixed --homes 50 --out homes.csv
    """


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
@out_option
def generate_links_command(presets, homes, duration, step, start_hour, seed, out) -> None:
    """Access links that keep a preset's quantiles.

    \b
    Example:
      testbed traces generate links --preset cable=8 --preset lte=4 --seed 7 --out homes.csv
    """
    from testbed.traces.generate_links import generate_links, mixed

    if not 0 < step <= duration:
        raise InputError(
            "--step",
            f"{units.duration(step)}; expected more than 0 and at most the duration of {units.duration(duration)}",
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
        generate_links(counts, seed=seed, duration_s=duration, step_s=step, start_hour=start_hour), out, readable=True
    )


@generate.command("availability")
@click.option("--preset", required=True, metavar="NAME", help="evening, overnight-idle, office, flaky or two-leave.")
@click.option("--devices", type=click.IntRange(1), default=12, show_default=True)
@click.option("--days", type=click.IntRange(1, 3660), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True)
@out_option
def generate_availability_command(preset, devices, days, seed, out) -> None:
    """When devices are there, from distributions of sessions and times of day.

    \b
    Example:
      testbed traces generate availability --preset evening --devices 20 --seed 7 --out evening.csv
    """
    from testbed.traces.generate_availability import generate_availability

    write(generate_availability(preset, devices, seed=seed, days=days), out)
