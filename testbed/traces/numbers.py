"""Cells as people's loggers write them: '88,5', "['8.37']", '87.17 Mbit/s', 'N/A'."""

from __future__ import annotations

import math
import re

MISSING = frozenset(
    (
        "",
        "-",
        "--",
        "n/a",
        "na",
        "nan",
        "-nan",
        "none",
        "null",
        "nil",
        "[]",
        "['']",
        "?",
        "*",
        "missing",
        "unknown",
        "undefined",
        "<na>",
    )
)
LONGEST = 64  # characters of a cell that may be a number
_PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?\Z", re.ASCII)
_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d{1,3})?\Z", re.ASCII)
_WITH_UNIT = re.compile(r"([-+]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d{1,3})?)\s*([A-Za-z%µ][A-Za-z/%µ]*)\Z", re.ASCII)


def number(cell: str, decimal_comma: bool = False) -> float | None:
    """The number in a cell; None when it says that there is none.

    Raises:
        ValueError: it is neither.
    """
    text = cell.strip()
    if len(text) > LONGEST:
        raise ValueError(f"{cell[:20]!r}… is not a number")
    if _PLAIN.match(text):
        value = float(text)
        if math.isinf(value):
            raise ValueError(f"{cell!r} is beyond all bounds")
        return value
    if text.lower() in MISSING:
        return None
    inner = text.strip("[]()'\" ")
    if len(inner) < len(text):
        return number(inner, decimal_comma)
    if decimal_comma and _COMMA.match(text):
        return float(text.replace(",", "."))
    raise ValueError(f"{cell!r} is not a number")


def with_unit(cell: str, decimal_comma: bool = False) -> tuple[float, str] | None:
    """('87.17', 'Mbit/s') from '87.17 Mbit/s', or None when the cell is not of that shape."""
    if len(cell) > LONGEST:
        return None
    match = _WITH_UNIT.match(cell.strip().strip("\"'"))
    if not match:
        return None
    text = match[1].replace(",", ".") if decimal_comma else match[1]
    return (float(text), match[2]) if _PLAIN.match(text) else None
