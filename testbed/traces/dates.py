"""Dates with the month's name, as `date`, mail, web servers and syslog write them: 'Tue  4 Apr 16:41:56 CEST 2023'."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

_MONTHS = (
    "jan|jän|ene|gen|janv",
    "feb|fév|fev",
    "mar|mär|mrz|mars",
    "apr|avr|abr",
    "may|mai|mag|mei",
    "jun|juin|giu",
    "jul|juil|lug",
    "aug|août|ago",
    "sep|set",
    "oct|okt|ott",
    "nov",
    "dec|dez|déc|dic",
)
_BY_NAME = {name: month for month, names in enumerate(_MONTHS, 1) for name in names.split("|")}
# What `date` prints in place of an offset [h]. IST, BST and CST stand for several zones: they count as not stated.
_ZONES = {
    **dict.fromkeys(("utc", "gmt", "z", "wet"), 0),
    **dict.fromkeys(("cet", "west"), 1),
    **dict.fromkeys(("cest", "eet", "sast"), 2),
    **dict.fromkeys(("eest", "msk"), 3),
    **{"edt": -4, "est": -5, "cdt": -5, "mdt": -6, "mst": -7, "pdt": -7, "pst": -8, "akdt": -8, "akst": -9, "hst": -10},
    **{"jst": 9, "kst": 9, "aest": 10, "aedt": 11, "nzst": 12, "nzdt": 13},
}
_DAY = r"(?:[^\W\d_]{2,10}\.?,?\s+)?"  # the weekday
_CLOCK = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?"
_HALF = r"(?:\s*([AaPp]\.?[Mm]\.?))?"
_NAME = r"([^\W\d_]{3,10})\.?"
_ZONE = r"(?:\s*(Z\b|[A-Z]{3,5}\b|[+-]\d{2}:?\d{2}))?"
_FORMS = tuple(
    (re.compile(pattern), order)
    for pattern, order in (
        # Tue  4 Apr 16:41:56 CEST 2023
        (rf"{_DAY}(\d{{1,2}})\.?\s+{_NAME}\s+{_CLOCK}{_HALF}{_ZONE}\s+(\d{{4}})\b", "dmChzy"),
        # Tue Apr  4 16:41:56 CEST 2023; Apr 4 16:41:56 2023
        (rf"{_DAY}{_NAME}\s+(\d{{1,2}})\s+{_CLOCK}{_HALF}{_ZONE}\s+(\d{{4}})\b", "mdChzy"),
        # Tue, 04 Apr 2023 16:41:56 +0200; 04/Apr/2023:16:41:56 +0200; 4-Apr-2023 16:41
        (rf"{_DAY}(\d{{1,2}})\.?[\s/-]+{_NAME}[\s/-]+(\d{{4}}),?[\s:]+{_CLOCK}{_HALF}{_ZONE}", "dmyChz"),
        # Apr 4, 2023, 4:41:56 PM; Apr 4 2023 16:41
        (rf"{_DAY}{_NAME}\s+(\d{{1,2}}),?\s+(\d{{4}}),?\s+(?:at\s+)?{_CLOCK}{_HALF}{_ZONE}", "mdyChz"),
        # Jun 30 14:37:36 (syslog: no year)
        (rf"{_DAY}{_NAME}\s+(\d{{1,2}})\s+{_CLOCK}{_HALF}", "mdCh"),
        # 30 Jun 14:37:36
        (rf"{_DAY}(\d{{1,2}})\.?\s+{_NAME}\s+{_CLOCK}{_HALF}", "dmCh"),
    )
)
STAND_IN = 2000  # the year of dates that have none: a leap year, so that 29 February is one


class Parts(NamedTuple):
    """year: None when the date has none. clock: hour, minute, second, fraction, AM or PM, as text. offset: or None."""

    year: int | None
    month: int
    day: int
    clock: tuple
    offset: timedelta | None


def find(text: str) -> tuple[Parts, str] | None:
    """The first such date within a text, and how it is written there."""
    if not any(c.isalpha() for c in text):
        return None
    for pattern, order in _FORMS:
        for match in pattern.finditer(text):
            parts = _parts(match, order)
            if parts is not None:
                return parts, match[0]
    return None


def parse(text: str) -> Parts | None:
    """The date that a text is, or None."""
    found = find(text)
    return found[0] if found and found[1].strip() == text.strip().strip("[],") else None


def _parts(match: re.Match, order: str) -> Parts | None:
    groups, values = list(match.groups()), {}
    for key in order:
        if key == "C":
            values["C"] = groups[:4]
            del groups[:4]
        else:
            values[key] = groups.pop(0)
    name = values["m"].lower()
    month = _BY_NAME.get(name[:4]) or _BY_NAME.get(name[:3])
    if month is None or not 1 <= int(values["d"]) <= 31:
        return None
    year = int(values["y"]) if "y" in values else None
    return Parts(year, month, int(values["d"]), (*values["C"], values.get("h")), _offset(values.get("z")))


def _offset(zone: str | None) -> timedelta | None:
    if not zone:
        return None
    if zone[0] in "+-":
        sign = -1 if zone[0] == "-" else 1
        return sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
    hours = _ZONES.get(zone.lower())
    return None if hours is None else timedelta(hours=hours)
