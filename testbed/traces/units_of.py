"""Units as loggers write them, in headers and cells: 'Mbit/s', 'Mb/s', 'MB/s', 'kbps', 'bytes/sec', 'ms' …"""

from __future__ import annotations

import re

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "g": 1e9, "G": 1e9}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
# Bits and bytes differ by the case of b alone, unless the word is written out.
_BYTES = re.compile(r"(Ki|Mi|Gi|[kKMG]?)(?:B|[Bb]ytes?)(?:/s(?:ec)?|ps|_?per_?s(?:ec(?:ond)?)?)\Z")
_BITS = re.compile(
    r"([kmgKMG]?)(?:b|bits?|Bits?|BIT)(?:/s(?:ec)?|ps|/S|PS)\Z|([kmgKMG])(?:bits?|BITS?|Bits?)\Z"
    r"|([kmgKMG])(?:bps|BPS|Bps)\Z"
)
_TIME = {
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "msec": 1e-3,
    "milliseconds": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "usec": 1e-6,
    "microseconds": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "days": 86400.0,
}
_SHARE = {"%": 1e-2, "pct": 1e-2, "percent": 1e-2, "ratio": 1.0, "fraction": 1.0, "share": 1.0}


def rate_factor(unit: str) -> float | None:
    """bit/s in one `unit`, or None when it is no rate. 'MB/s' and 'MBps' are bytes; 'Mbps', 'mbps' bits.

    'kBps' and 'MBps' differ from 'kbps' and 'Mbps' by their capital B and are bytes.
    """
    unit = unit.strip()
    match = _BYTES.match(unit)
    if match:
        return 8 * (_BINARY.get(match[1]) or _PREFIX[match[1]])
    match = _BITS.match(unit)
    if match:
        return _PREFIX[match[1] or match[2] or match[3] or ""]
    if re.fullmatch(r"[kmg]?(?:bit|bits|b)[ _]?(?:per[ _]second|/ ?s)", unit):
        return _PREFIX[unit[0]] if unit[0] in "kmg" else 1.0
    return None


def time_factor(unit: str) -> float | None:
    """Seconds in one `unit`, or None when it is no time."""
    return _TIME.get(unit.strip().lower())


def share_factor(unit: str) -> float | None:
    """1e-2 for percent, 1 for a ratio, or None."""
    return _SHARE.get(unit.strip().lower())


def scaled(value, factor: float):
    """`value` (a number or an array) in SI units.

    9 ms is 0.009 s and not 0.009000000000000001: below 1, we divide by how many of the unit make 1.
    """
    return value * factor if factor >= 1 else value / round(1 / factor)


FACTORS = {
    "down_bps": rate_factor,
    "up_bps": rate_factor,
    "rtt_s": time_factor,
    "jitter_s": time_factor,
    "loss": share_factor,
}


def factor(field: str, unit: str) -> float | None:
    """SI per `unit` for a field of `records.FIELDS`, or None when the unit is of another kind."""
    return FACTORS[field](unit)
