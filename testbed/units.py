"""Quantities with units: read from text ('20 Mbit/s'), kept in SI, printed for people.

Inside the code: seconds, bytes, bit/s, FLOP/s. In files and on the command line a unit is always written.
"""

from __future__ import annotations

import math
import re

CENTURY_S = 100 * 365.25 * 86400  # longer than any time of a trace or a run

_NUMBER = re.compile(r"^\s*([-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?$")

_RATE = {
    "bit/s": 1.0,
    "bps": 1.0,
    "kbit/s": 1e3,
    "kbps": 1e3,
    "kbit": 1e3,
    "mbit/s": 1e6,
    "mbps": 1e6,
    "mbit": 1e6,
    "gbit/s": 1e9,
    "gbps": 1e9,
    "gbit": 1e9,
    "B/s": 8.0,
    "kB/s": 8e3,
    "MB/s": 8e6,
    "GB/s": 8e9,
}
_DURATION = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_BYTES = {
    "B": 1.0,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_FLOPS = {
    "FLOP/s": 1.0,
    "kFLOP/s": 1e3,
    "MFLOP/s": 1e6,
    "GFLOP/s": 1e9,
    "TFLOP/s": 1e12,
    "PFLOP/s": 1e15,
    "FLOPS": 1.0,
    "MFLOPS": 1e6,
    "GFLOPS": 1e9,
    "TFLOPS": 1e12,
    "PFLOPS": 1e15,
}
_TABLES = {
    "rate": (_RATE, "20 Mbit/s"),
    "duration": (_DURATION, "15 ms"),
    "size": (_BYTES, "64 MiB"),
    "speed": (_FLOPS, "10 GFLOP/s"),
}


def parse(kind: str, text: object) -> float:
    """The SI value of `text` ('20 Mbit/s' -> 2e7 for kind 'rate').

    Args:
        kind: 'rate' [bit/s], 'duration' [s], 'size' [bytes] or 'speed' [FLOP/s].
        text: a number with a unit; a bare 0 is taken too, since it has no scale.

    Raises:
        ValueError: no number, no unit or a unit of another kind; the message says what was expected.
    """
    table, example = _TABLES[kind]
    if isinstance(text, bool):
        raise ValueError(f"{text!r} is not a {kind}; expected a number with a unit, such as '{example}'")
    if isinstance(text, (int, float)):
        if text == 0:
            return 0.0
        raise ValueError(f"{text!r} has no unit; expected a {kind} such as '{example}'")
    match = _NUMBER.match(str(text))
    if not match:
        raise ValueError(f"{text!r} is not a {kind}; expected a number with a unit, such as '{example}'")
    number, unit = float(match[1]), (match[2] or "").strip()
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not finite")
    if not unit:
        if number == 0:
            return 0.0
        raise ValueError(f"{text!r} has no unit; expected a {kind} such as '{example}'")
    factor = table.get(unit)
    if factor is None and "B" not in unit:  # bytes and bits differ by case only: never guess there
        factor = {k.lower(): v for k, v in table.items() if "B" not in k}.get(unit.lower())
    if factor is None:
        raise ValueError(f"{text!r}: unknown unit {unit!r} for a {kind}; expected one of {', '.join(table)}")
    return number * factor


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    factor, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    number = f"{value / factor:.3g}"
    return f"{value / factor:.0f} {unit}" if "e+" in number else f"{number} {unit}"


def rate(bps: float) -> str:
    """'20 Mbit/s' from 2e7."""
    return _scaled(bps, [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")])


def duration(seconds: float) -> str:
    """'15 ms' from 0.015; hours and days as such."""
    if abs(seconds) >= 120:
        return _scaled(seconds, [(86400, "d"), (3600, "h"), (60, "min")])
    return _scaled(seconds, [(1, "s"), (1e-3, "ms"), (1e-6, "µs")])


def size(n: float) -> str:
    """'64 MB' from 6.4e7 (decimal units)."""
    return _scaled(n, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")])


def speed(flops: float) -> str:
    """'10 GFLOP/s' from 1e10."""
    return _scaled(flops, [(1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1, "FLOP/s")])
