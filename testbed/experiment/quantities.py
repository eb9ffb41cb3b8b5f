"""Quantities with units as pydantic types: text in the file, SI numbers in the code."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from testbed import units


def _quantity(kind: str, example: str, *, positive: bool, least: str | None = None, most: str | None = None) -> Any:
    low = units.parse(kind, least) if least else None
    high = units.parse(kind, most) if most else None

    def check(value: Any) -> float:
        if isinstance(value, _SI):
            return float(value)
        number = units.parse(kind, value)
        if positive and number <= 0:
            raise ValueError(f"{value!r} is not positive; expected a {kind} above 0, such as '{example}'")
        if number < 0:
            raise ValueError(f"{value!r} is negative; expected a {kind} of 0 or more, such as '{example}'")
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError(f"{value!r} is out of range; expected {least or '0'} to {most}")
        return _SI(number)

    bound = "exclusiveMinimum" if positive else "minimum"
    return Annotated[
        float,
        BeforeValidator(check),
        WithJsonSchema({"type": ["string", "number"], "x-quantity": kind, bound: 0, "examples": [example]}),
    ]


class _SI(float):
    """A value already parsed, so that validating a model again (defaults, copies) does not ask for a unit."""


def si(value: float) -> float:
    """Mark a number as already in SI units, for defaults in the schema."""
    return _SI(value)


def _time_dilation(value: Any) -> float | str:
    if value == "auto":
        return "auto"
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.1 <= number <= 1000:
        raise ValueError(f"found {value!r}; expected a number from 0.1 to 1000, or auto")
    return number


TimeDilation = Annotated[
    Any,
    BeforeValidator(_time_dilation),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0.1, "maximum": 1000}, {"const": "auto"}]}),
]
Rate = _quantity("rate", "20 Mbit/s", positive=True, least="1 kbit/s", most="1000 Gbit/s")
Duration = _quantity("duration", "15 ms", positive=False, most="36525 d")
Delay = _quantity("duration", "15 ms", positive=False, most="60 s")
PositiveDuration = _quantity("duration", "30 s", positive=True, most="36525 d")
Size = _quantity("size", "64 MiB", positive=True)
Speed = _quantity("speed", "10 GFLOP/s", positive=True, least="1 kFLOP/s", most="1000000 PFLOP/s")
