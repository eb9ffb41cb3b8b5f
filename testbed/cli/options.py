"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.outputs import check_file, check_folder

experiment_argument = click.argument("experiment", metavar="EXPERIMENT")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value of the experiment, e.g. training.steps=5. Repeatable.",
)
seed_option = click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Replace the experiment's seed.")
capture_option = click.option(
    "--capture", multiple=True, metavar="H1,SERVER", help="Capture these hosts' packets (docs/captures.md)."
)


def captures(given: tuple[str, ...]) -> list[str]:
    """--capture as a setting of the experiment."""
    return [f"captures.homes=[{','.join(given)}]"] if given else []


json_option = click.option("--json", "as_json", is_flag=True, help="Print data as JSON on standard output.")

require_valid_option = click.option(
    "--require-valid", is_flag=True, help="Exit with 3 when a run is complete but its verdict is not VALID."
)
NOT_VALID = 3  # the exit code


class OutputFolder(click.ParamType):
    """A folder to write to, which need not exist yet; tried at once."""

    name = "directory"

    def convert(self, value, param, ctx) -> Path:
        check_folder(value)
        return Path(value)


class OutputFile(click.ParamType):
    """A file to write, tried at once; '-' may be standard output."""

    name = "file"

    def convert(self, value, param, ctx) -> Path:
        if str(value) != "-":
            check_file(value)
        return Path(value)
