"""--kernel and --kernel-memory, which every command takes, before its name or after it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

KERNELS = ("host", "uml")
_MEMORY = "--kernel-memory"

options = (
    click.Option(
        ["--kernel"],
        type=click.Choice(KERNELS),
        default="host",
        show_default=True,
        expose_value=False,
        help="Which kernel the command runs on: this machine's, or user-mode-linux, which has netem, Open "
        "vSwitch and cgroup v2, and needs no root. Also after the command's name.",
    ),
    click.Option(
        [_MEMORY],
        metavar="SIZE",
        expose_value=False,
        help="Memory of user-mode-linux, e.g. 2GB; default half of what is free, at most 4 GiB.",
    ),
)


def split(args: list[str]) -> tuple[str, int | None, list[str]]:
    """(kernel, bytes of memory or None, the other arguments); what stands after '--' is a program's own.

    Raises:
        InputError: no value, an unknown kernel, or a memory size that is none.
    """
    from testbed import units
    from testbed.errors import InputError, unknown

    found: dict[str, str] = {}
    rest = []
    position = 0
    while position < len(args) and args[position] != "--":
        name, equals, value = args[position].partition("=")
        position += 1
        if name not in ("--kernel", _MEMORY):
            rest.append(args[position - 1])
            continue
        if not equals:
            if position == len(args):
                raise InputError(name, f"no value; expected {' or '.join(KERNELS) if name == '--kernel' else 'a size'}")
            value = args[position]
            position += 1
        found[name] = value
    rest += args[position:]
    kernel = found.get("--kernel", "host")
    if kernel not in KERNELS:
        raise unknown("--kernel", "kernel", kernel, KERNELS)
    if _MEMORY not in found:
        return kernel, None, rest
    if kernel == "host":
        raise InputError(_MEMORY, "is for --kernel uml, which wasn't asked for")
    try:
        return kernel, int(units.parse("size", found[_MEMORY])), rest
    except ValueError as error:
        raise InputError(_MEMORY, str(error)) from None


def command(args: list[str]) -> list[str]:
    """What runs this very program with other arguments."""
    script = Path(sys.argv[0])
    # `python -m testbed` is not found by its path: the package's own folder would come first in the search path
    if script.name != "__main__.py" and script.is_file():
        return [sys.executable, str(script.absolute()), *args]
    return [sys.executable, "-m", "testbed", *args]
