"""The formats that are read, one module each; found by `all_formats`, recognised by `Format.detect`.

Other packages add theirs by an entry point of the group 'testbed.trace_formats'.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import InputError
from testbed.traces.assemble import Defaults
from testbed.traces.source import Sample


@dataclass(frozen=True)
class Options:
    """What a caller may say about a file.

    home: name for the only home of a file that names none (default: the file's name).
    zone: IANA time zone of times without one (default UTC). dates: 'dmy' or 'mdy' for dates such as 02/10/21.
    map: what the columns of a table mean, as 'download=COLUMN:UNIT'. pattern: a regular
    expression that reads the lines of a log, see `formats/pattern.py`. every_s: time between rows without one.
    bin_s: interval over which single packets become a rate. zero: 'failed', 'outage' or 'error' for rates of
    0 in a mapped table. rule: when a device whose state is logged counts as available.
    most: homes that are drawn from a population file. align: see `assemble`.
    folder: 'series' or 'population', what the files of a folder are; None to tell it from their times.
    floor_bps: the rate that stands for 'no throughput'. progress: (bytes read, bytes in all).
    """

    home: str | None = None
    zone: str | None = None
    dates: str | None = None
    map: tuple[str, ...] = ()
    pattern: str | None = None
    every_s: float | None = None
    bin_s: float = 1.0
    zero: str | None = None
    rule: str | None = None
    most: int = 10_000
    align: str = "clock"
    folder: str | None = None
    floor_bps: float = 8000.0
    defaults: Defaults = field(default_factory=Defaults)
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class Format:
    """One format.

    kind: 'links' or 'availability'. detect: confidence of 0 to 1 that a sample is of this format.
    read: (source, options) -> LinkRecords for links, {device: Availability} for availability.
    family: formats whose files belong together (downloads, uploads and delays of the same homes).
    """

    name: str
    kind: str
    title: str
    detect: Callable[[Sample], float]
    read: Callable[..., Any]
    family: str | None = None


GROUP = "testbed.trace_formats"


@functools.cache
def all_formats() -> tuple[Format, ...]:
    """The FORMATS of the modules of this package, and those of other packages' entry points.

    Raises:
        InputError: an entry point that can't be loaded, holds no Format, or takes a name that is taken.
    """
    found: list[Format] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found += getattr(module, "FORMATS", ())
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        found += _others(entry, {f.name for f in found})
    return tuple(found)


def _others(entry: importlib.metadata.EntryPoint, taken: set[str]) -> list[Format]:
    """The formats of an entry point: a Format, a list of them, or what has a method `format` (a TableFormat)."""
    where = f"entry point {entry.name!r} of {GROUP} ({entry.value})"
    try:
        value = entry.load()
    except Exception as error:  # another package's import may raise anything
        raise InputError(where, f"can't be loaded: {type(error).__name__}: {error}") from None
    out = []
    for one in value if isinstance(value, (list, tuple)) else [value]:
        one = one.format() if hasattr(one, "format") and not isinstance(one, (str, Format)) else one
        if not isinstance(one, Format):
            raise InputError(where, f"is {type(one).__name__}; expected a Format, TableFormat or JsonFormat")
        if one.name in taken:
            raise InputError(where, f"names its format {one.name!r}, which is taken; give it another name")
        out.append(one)
    return out
