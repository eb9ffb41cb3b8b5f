"""Numbers and names as people read them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from testbed import units

DASH = "–"


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def seconds(value: float | None) -> str:
    """'1.28 s', '340 ms'; '0 s' for nothing; a dash where there is no number."""
    if missing(value):
        return DASH
    return units.duration(value) if abs(value) >= 5e-7 else "0 s"


def below_zero(costs: Iterable[float | None]) -> str:
    """What a negative cost of a loss means, where there is one among these [s]; else nothing."""
    negative = any(not missing(cost) and cost <= -5e-7 for cost in costs)
    return "below 0: training was faster without the device that was lost" if negative else ""


def rate(value: float | None) -> str:
    return DASH if missing(value) else units.rate(value)


def size(value: float | None) -> str:
    return DASH if missing(value) else units.size(value)


def speed(value: float | None) -> str:
    return DASH if missing(value) else units.speed(value)


def percent(value: float | None, digits: int = 3) -> str:
    if missing(value):
        return DASH
    shown = f"{100 * value:.{digits}g}"
    return f"{100 * value:.0f} %" if "e+" in shown else f"{shown} %"


def number(value: float | None, digits: int = 4) -> str:
    """Whole numbers in full with thin spaces, others with `digits` significant digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if 1000 <= abs(value) < 1e15:  # rounded to `digits`, but without an exponent
        value = float(f"{value:.{max(digits, 4)}g}") if not float(value).is_integer() else value
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u2009")
    return f"{value:.{digits}g}"


def loss(value: float | None) -> str:
    """A loss keeps NaN and infinity visible: they mean that training diverged."""
    if value is None:
        return DASH
    return "NaN" if math.isnan(value) else number(value, 5)


def quantity(name: str, value: Any) -> str:
    """A value by what its name says of its unit: step_time_s, rate_bps, memory_bytes, flops, …"""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if name.endswith("_per_s"):
            return f"{number(value)}/s"
        if name == "s" or name.endswith("_s"):
            return seconds(value)
        if name.endswith("_bps"):
            return rate(value)
        if name == "bytes" or name.endswith(("_bytes", "bytes_")):
            return size(value)
        if name == "flops" and value > 1e6:
            return speed(value)
        if name.endswith("_flops") and value > 1e6:
            return f"{value:.3g} FLOP"
        if name.endswith("_fraction"):
            return percent(value)
        return number(value)
    if value is None:
        return DASH
    if isinstance(value, (list, tuple)):
        plain = [v for v in value if isinstance(v, (int, float, str)) and not isinstance(v, bool)]
        if len(plain) == len(value):
            return _list(list(value))
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _list(values: list) -> str:
    """'0–7' for a run of whole numbers, else the values with commas."""
    whole = all(isinstance(v, int) for v in values)
    if whole and len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(number(v) if isinstance(v, (int, float)) else v for v in values) or DASH


def titled(name: str) -> str:
    """'step_time_s' -> 'step time'."""
    return re.sub(r"_(per_s|s|bps|bytes)$", "", name).replace("_", " ")


def short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
