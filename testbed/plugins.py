"""Parts that installed packages add to the project, by name: entry points of a group."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from testbed.errors import TestbedError, unknown


def names(group: str) -> list[str]:
    """What is installed, in order."""
    return sorted({e.name for e in entry_points(group=group)})


def load(group: str, kind: str, name: str, where: str) -> Any:
    """What the entry point of that name stands for; or 'module:attribute' itself.

    kind: what it is called in messages.

    Raises:
        InputError: nothing of that name is installed; names the nearest.
        TestbedError: it is there but does not load.
    """
    found = {e.name: e.value for e in entry_points(group=group)}
    if ":" not in name and name not in found:
        raise unknown(where, kind, name, found)
    value = found.get(name, name)
    module, _, attribute = value.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise TestbedError(f"{kind} {name!r} ({value}) does not load: {error}") from error
