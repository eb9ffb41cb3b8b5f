"""Units that a file does not state, told from its values: only on evidence, and never where two units could fit.

What counts as evidence that a column named as a download or upload holds Mbit/s (or bit/s): its values have
fractions, as measured rates do and counts, ids, dates and bytes don't; they differ from each other, as measured
values do; they do not only rise, as counters do; and the file has something else that a speed test writes: a delay
beside the rates, or a name that speaks of a rate.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable

from testbed.traces.numbers import number, with_unit
from testbed.traces.report import Report
from testbed.traces.units_of import factor as unit_factor

LEAST = 0.5  # share of cells with a unit of their own from which cells are read so
FRACTIONS = 0.3  # share of values with a fraction, from which a column holds no counts
SPREAD_FROM = 5  # values from which on they should differ
KEYS = {"down_bps": "download", "up_bps": "upload", "rtt_s": "rtt", "jitter_s": "jitter", "loss": "loss"}
_RATE = re.compile(r"speed|rate|bandwidth|throughput|bps|bit", re.IGNORECASE)


def speaks_of_a_rate(name: str) -> bool:
    """Whether a column's name says that it holds a rate, whatever its unit."""
    return bool(_RATE.search(name))


def column_factor(
    field: str,
    name: str,
    cells: Iterable[str],
    report: Report,
    decimal_comma: bool = False,
    *,
    speed_test: bool = False,
    hint: str | None = None,
) -> float | None:
    """SI per unit of a column whose header names none; None when each cell names its own.

    speed_test: the file has more than this column to say that it is a log of speed tests. hint: how to state it.

    Raises:
        InputError: the values fit more than one unit, or nothing in the file says that they are rates.
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
    unit, factor, doubt = _guess(field, name, values, speed_test or speaks_of_a_rate(name))
    if doubt:
        raise report.error(
            f"does not state the unit of {name!r}, and {doubt}",
            hint=hint or f"state it: --map {KEYS[field]}={name}:UNIT (with time and the other columns)",
        )
    report.guess(f"{name} (median {statistics.median(values):g}) is {unit}")
    report.warn(f"the unit of {name!r} is not stated: read as {unit}; --map states another")
    return factor


def _guess(field: str, name: str, values: list[float], speed_test: bool) -> tuple[str, float, str]:
    """(unit, SI per unit, why it can't be told: empty when it can)."""
    median = statistics.median(values)
    around = f"values around {median:g}"
    if field == "loss":
        if max(values) > 1:
            return "%", 1e-2, ""
        if re.search(r"rate|ratio", name, re.IGNORECASE):
            return "a share", 1.0, ""
        return "", 0.0, f"values of up to {max(values):g} could be a share or %"
    if len(values) >= SPREAD_FROM and min(values) == max(values):
        return "", 0.0, f"all of its values are {median:g}: no measurement stays the same"
    if field in ("down_bps", "up_bps"):
        if 2000 <= median < 2e7:
            return "", 0.0, f"{around} could be more than one"
        if sum(value != int(value) for value in values) < FRACTIONS * len(values):
            return "", 0.0, f"{around} are whole numbers, which could be counts, ids or bytes"
        if len(values) >= SPREAD_FROM and all(b >= a for a, b in zip(values, values[1:])):
            return "", 0.0, f"{around} only rise, as a counter does"
        if not speed_test:
            return "", 0.0, f"{around} could be amounts of data: nothing in the file speaks of a rate"
        return ("Mbit/s", 1e6, "") if median < 2000 else ("bit/s", 1.0, "")
    if 1 <= median < 3000:
        return "ms", 1e-3, ""
    if 0.001 <= median < 0.6 and max(values) < 60:
        return "s", 1.0, ""
    return "", 0.0, f"{around} could be more than one"
