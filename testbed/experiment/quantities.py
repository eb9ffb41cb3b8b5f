"""Quantities with units as pydantic types: text in the file, SI numbers in the code."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from testbed import units


def _quantity(kind: str, example: str, *, positive: bool) -> Any:
    def check(value: Any) -> float:
        if isinstance(value, _SI):
            return float(value)
        number = units.parse(kind, value)
        if positive and number <= 0:
            raise ValueError(f"{value!r} is not positive; expected a {kind} above 0, such as '{example}'")
        if number < 0:
            raise ValueError(f"{value!r} is negative; expected a {kind} of 0 or more, such as '{example}'")
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


Rate = _quantity("rate", "20 Mbit/s", positive=True)
Duration = _quantity("duration", "15 ms", positive=False)
PositiveDuration = _quantity("duration", "30 s", positive=True)
Size = _quantity("size", "64 MiB", positive=True)
Speed = _quantity("speed", "10 GFLOP/s", positive=True)
