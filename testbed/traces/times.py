"""Time stamps as people's loggers write them, to Unix seconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from testbed.errors import unknown
from testbed.traces.report import Report

EARLIEST = 631152000.0  # 1990
LATEST = 4102444800.0  # 2100

_ISO = re.compile(
    r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{2}:?(?:\d{2})?)?\Z", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d+(\.\d*)?([eE]\+?\d{1,2})?\Z", re.ASCII)
_OFFSET = re.compile(r"([+-])(\d{2}):?(\d{2})?\Z", re.ASCII)


def zone(name: str | None) -> tzinfo:
    """The IANA time zone of that name; UTC for None.

    Raises:
        InputError: no such zone.
    """
    if name is None or name.upper() == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise unknown("--tz", "time zone", name, available_timezones()) from None


class Clock:
    """Reads the time stamps of one file: notes a missing zone, follows the clock over daylight saving."""

    def __init__(self, report: Report, zone_name: str | None = None):
        self.report = report
        self.zone = zone(zone_name)
        self.stated = zone_name is not None
        self._last: float | None = None

    def epoch(self, text: str) -> float:
        """Unix seconds of an ISO stamp or a Unix time in s, ms, µs or ns.

        Raises:
            ValueError: it is none of these.
        """
        text = text.strip().strip("\"'")
        if _NUMBER.match(text):
            return self.from_unix(float(text))
        match = _ISO.match(text)
        if not match:
            raise ValueError(f"{text!r} is not a time; expected ISO 8601 or a Unix time")
        year, month, day, hour, minute, second = (int(g or 0) for g in match.groups()[:6])
        fraction = float(f"0.{match[7]}") if match[7] else 0.0
        return self.local(year, month, day, hour, minute, second, fraction, match[8])

    def from_unix(self, value: float) -> float:
        """Unix seconds from a Unix time in s, ms, µs or ns, told apart by size."""
        for factor, name in ((1.0, ""), (1e3, "ms"), (1e6, "µs"), (1e9, "ns")):
            if EARLIEST <= value / factor <= LATEST:
                if name:
                    self.report.note(f"Unix times in {name}")
                return value / factor
        raise ValueError(f"{value:g} is not a Unix time between 1990 and 2100 in s, ms, µs or ns")

    def local(self, year, month, day, hour, minute, second, fraction=0.0, offset: str | None = None) -> float:
        """Unix seconds of a date and time of day.

        Raises:
            ValueError: no such date.
        """
        stamp = datetime(year, month, day, hour, minute, min(second, 59))
        extra = fraction + (second - min(second, 59))
        if offset:
            shift = _OFFSET.match(offset)
            delta = timedelta(0)
            if shift:
                delta = timedelta(hours=int(shift[2]), minutes=int(shift[3] or 0))
                delta = -delta if shift[1] == "-" else delta
            return stamp.replace(tzinfo=timezone(delta)).timestamp() + extra
        if not self.stated:
            self.report.note("times without a zone: read as UTC (--tz states another)")
        first = stamp.replace(tzinfo=self.zone).timestamp() + extra
        if self.stated:
            again = stamp.replace(tzinfo=self.zone, fold=1).timestamp() + extra
            # The hour that comes twice in autumn: the second one, once the first has been passed.
            if again > first and self._last is not None and self._last >= first:
                first = again
        self._last = first
        return first


def iso(epoch_s: float) -> str:
    """ISO 8601 in UTC to the microsecond, such as '2024-03-01T18:00:00Z'."""
    text = datetime.fromtimestamp(epoch_s, timezone.utc).isoformat()
    return text.replace("+00:00", "Z")
