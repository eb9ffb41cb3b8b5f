"""Runners by name, from the entry points of group `testbed.runners`: engines know no strategy."""

from __future__ import annotations

from importlib.metadata import entry_points

from testbed.errors import TestbedError, unknown
from testbed.runtime.interface import Runner

GROUP = "testbed.runners"


def load_runner(name: str, *, where: str = "training.runner") -> Runner:
    """A new instance of the runner of that name.

    Raises:
        InputError: no such runner; names the nearest.
        TestbedError: the runner is there but does not load.
    """
    found = {e.name: e for e in entry_points(group=GROUP)}
    if name not in found:
        raise unknown(where, "runner", name, found)
    try:
        return found[name].load()()
    except ImportError as error:
        raise TestbedError(f"runner {name!r} ({found[name].value}) does not load: {error}") from error
