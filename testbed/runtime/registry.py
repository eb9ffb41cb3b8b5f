"""Runners by name, from the entry points of group `testbed.runners`: engines know no strategy."""

from __future__ import annotations

from collections.abc import Callable

from testbed import plugins
from testbed.runtime.interface import Runner

GROUP = "testbed.runners"


def load_runner(name: str, *, where: str = "training.runner") -> Callable[[], Runner]:
    """The class of the runner of that name, or of 'module:Class'. Raises InputError, TestbedError: see plugins.load."""
    found: Callable[[], Runner] = plugins.load(GROUP, "runner", name, where)
    return found
