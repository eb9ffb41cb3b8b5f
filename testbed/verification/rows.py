"""What verification found: one row a measured quantity, each with its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from testbed import units

Key = TypeVar("Key")


@dataclass(frozen=True)
class Row:
    """One quantity of one home's link.

    direction: 'up', 'down', or 'both' for round trips. set, measured: in `unit` ('bit/s', 's', '' for fractions
    and probabilities); emulated. error: the number that is judged, in `error_unit` ('%', 's' or ''), at most
    `limit`. ok: None where nothing was to be judged, and `note` says why. attempts: how often it was measured.
    more: further numbers, by name.
    """

    home: str
    direction: str
    quantity: str
    set: float | None
    measured: float | None
    unit: str
    error: float | None
    error_unit: str
    limit: float | None
    ok: bool | None
    note: str = ""
    attempts: int = 1
    more: dict[str, float] | None = None

    @property
    def verdict(self) -> str:
        return {True: "PASS", False: "FAIL", None: "-"}[self.ok]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: numbers that are not finite become null."""
        return {
            **{k: _finite(v) for k, v in vars(self).items()},
            "verdict": self.verdict,
            "more": {k: _finite(v) for k, v in (self.more or {}).items()},
        }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def judged(
    home: str,
    direction: str,
    quantity: str,
    set_: float,
    measured: float,
    unit: str,
    error: float,
    error_unit: str,
    limit: float,
    note: str = "",
    **more: float,
) -> Row:
    """A row that passes when |error| <= limit; a NaN fails."""
    return Row(
        home,
        direction,
        quantity,
        set_,
        measured,
        unit,
        error,
        error_unit,
        limit,
        bool(abs(error) <= limit),
        note,
        more=more or None,
    )


def unjudged(
    home: str,
    direction: str,
    quantity: str,
    note: str,
    set_: float | None = None,
    measured: float | None = None,
    unit: str = "",
    **more: float,
) -> Row:
    """A row that only tells."""
    return Row(home, direction, quantity, set_, measured, unit, None, "", None, None, note, more=more or None)


def retry_each(
    keys: Iterable[Key], measure: Callable[[list[Key], int], dict[Key, list[Row]]], most: int
) -> dict[Key, list[Row]]:
    """Rows by key; keys of which a row fails are measured again, `most` times in all: noise passes, a fault does not.

    Rows that passed keep their numbers; those that failed get the last ones.

    Args:
        measure: given keys and the number of the attempt, from 1 on.
    """
    found: dict[Key, list[Row]] = {}
    failing = list(keys)
    for attempt in range(1, most + 1):
        now = measure(failing, attempt)
        for key in failing:
            found[key] = _merged(found[key], now[key], attempt) if key in found else now[key]
        failing = [key for key in failing if not passed(found[key])]
        if not failing:
            break
    return found


def _merged(before: list[Row], after: list[Row], attempt: int) -> list[Row]:
    new = {(row.direction, row.quantity): row for row in after}
    return [
        row if row.ok is not False else replace(new.get((row.direction, row.quantity), row), attempts=attempt)
        for row in before
    ]


def flat(found: dict[Key, list[Row]]) -> list[Row]:
    """The rows of all keys."""
    return [row for rows in found.values() for row in rows]


def passed(rows: Iterable[Row]) -> bool:
    """Whether nothing failed."""
    return all(row.ok is not False for row in rows)


def shown(value: float | None, unit: str) -> str:
    """'20 Mbit/s', '15.2 ms', '1.2 %', or a dash."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "none"
    if unit == "bit/s":
        return f"{value / 1e6:.4g} Mbit/s"
    if unit == "s":
        return units.duration(value)
    if unit == "%":
        return f"{100 * value:.3g} %"
    return f"{value:.4g}"
