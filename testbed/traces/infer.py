"""Units that a file does not state, told from its values; nothing is guessed where two units could fit."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from testbed.traces.numbers import number, with_unit
from testbed.traces.report import Report
from testbed.traces.units_of import factor as unit_factor

LEAST = 0.5  # share of cells with a unit of their own from which cells are read so


def column_factor(
    field: str, name: str, cells: Iterable[str], report: Report, decimal_comma: bool = False
) -> float | None:
    """SI per unit of a column whose header names none; None when each cell names its own.

    Raises:
        InputError: the values fit more than one unit.
    """
    values, with_units, seen = [], 0, 0
    for cell in cells:
        seen += bool(cell.strip())
        pair = with_unit(cell, decimal_comma)
        if pair and unit_factor(field, pair[1]) is not None:
            with_units += 1
            continue
        try:
            value = number(cell, decimal_comma)
        except ValueError:
            continue
        if value is not None and value > 0:
            values.append(value)
    if with_units > LEAST * seen:
        return None
    if not values:
        return {"down_bps": 1e6, "up_bps": 1e6, "loss": 1e-2}.get(field, 1e-3)
    guess = _guess(field, statistics.median(values), max(values))
    if guess is None:
        raise report.error(
            f"does not state the unit of {name!r}, and values around "
            f"{statistics.median(values):g} could be more than one",
            hint=f"state it: --map {_KEYS[field]}={name}:UNIT (with time and the other columns)",
        )
    unit, factor = guess
    report.repair(
        "units that the file does not state: told from the values",
        f"{name} (median {statistics.median(values):g}) is {unit}",
    )
    report.warn(f"the unit of {name!r} is not stated: read as {unit}; --map states another")
    return factor


_KEYS = {"down_bps": "download", "up_bps": "upload", "rtt_s": "rtt", "jitter_s": "jitter", "loss": "loss"}


def _guess(field: str, median: float, largest: float) -> tuple[str, float] | None:
    if field in ("down_bps", "up_bps"):
        if median < 2000:
            return "Mbit/s", 1e6
        return ("bit/s", 1.0) if median >= 2e7 else None
    if field == "loss":
        return "%", 1e-2
    if 1 <= median < 3000:
        return "ms", 1e-3
    return ("s", 1.0) if 0.001 <= median < 0.6 and largest < 60 else None
