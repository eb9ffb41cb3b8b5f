"""Time stamps as people's loggers write them, to Unix seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from testbed.errors import unknown
from testbed.traces import dates
from testbed.traces.report import Report

EARLIEST = 631152000.0  # 1990
LATEST = 4102444800.0  # 2100
ORDERS = ("dmy", "mdy")

_HALF = r"\s*(AM|PM|am|pm|a\.m\.|p\.m\.)?"
_CLOCK = re.compile(rf"(\d{{1,2}}):(\d{{2}})(?::(\d{{2}})(?:[.,](\d{{1,9}}))?)?{_HALF}\Z", re.ASCII)
_TIME = rf"(\d{{1,2}})[:.](\d{{2}})(?:[:.](\d{{2}})(?:[.,](\d{{1,9}}))?)?{_HALF}"
_ZONE = r"\s*(Z|UTC|GMT|[+-]\d{2}:?(?:\d{2})?)?"
_YMD = re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}})(?:[T_ ,]+{_TIME})?{_ZONE}\Z", re.ASCII)
_PARTS = re.compile(rf"(\d{{1,2}})([-/.])(\d{{1,2}})\2(\d{{4}}|\d{{2}})(?:[T ,]+{_TIME})?{_ZONE}\Z", re.ASCII)
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


LONGEST = 64  # characters of a cell that may be a time


def is_stamp(text: str) -> bool:
    """Whether a cell is a date (with or without a time of day) or a Unix time."""
    text = text.strip().strip("\"'")
    if len(text) > LONGEST:
        return False
    if _NUMBER.match(text):
        value = float(text)
        return any(EARLIEST <= value / k <= LATEST for k in (1, 1e3, 1e6, 1e9)) and value >= EARLIEST
    return bool(_YMD.match(text) or _PARTS.match(text) or dates.parse(text))


def check_time(cell: str, report: Report, line: int, column: str | None = None) -> None:
    """That a cell which can't be read is no number that no time can be: nan, inf, 1e300.

    Raises:
        InputError: it is. Such a value is told, where rows that can't be read are left out.
    """
    try:
        value = float(cell.strip("\"' "))
    except ValueError:
        return
    if not abs(value) <= LATEST * 1e9:  # what it may be in ns
        raise report.error(f"found {cell[:40]!r}; expected a time", line, column)


def is_time_of_day(text: str) -> bool:
    return len(text) <= LONGEST and bool(_CLOCK.match(text.strip().strip("\"'")))


class Clock:
    """Reads the time stamps of one file: notes a missing zone, follows the clock over daylight saving.

    order: 'dmy' or 'mdy' for dates such as 02/10/21; None to find it out from `learn`.
    """

    def __init__(self, report: Report, zone_name: str | None = None, order: str | None = None):
        self.report = report
        self.zone = zone(zone_name)
        self.stated = zone_name is not None
        if order is not None and order not in ORDERS:
            raise unknown("--dates", "order of dates", order, ORDERS)
        self.order = order
        self._last: float | None = None
        self._days = self._years = 0
        self._last_day: tuple[int, int] | None = None
        self._last_of_day: float | None = None

    def learn(self, cells: Iterable[str]) -> None:
        """Find out from a sample whether dates begin with the day or the month."""
        if self.order is not None:
            return
        first, second, dots, seen = 0, 0, False, []
        for cell in cells:
            match = _PARTS.match(cell.strip().strip("\"'"))
            if match:
                first, second = max(first, int(match[1])), max(second, int(match[3]))
                dots = match[2] == "."
                seen.append((int(match[1]), int(match[3]), int(match[4])))
        if not seen:
            return
        if first > 12 or dots:
            self.order = "dmy"
        elif second > 12:
            self.order = "mdy"
        else:
            falls = [
                sum(b < a for a, b in zip(keys, keys[1:]))
                for keys in ([(y, m, d) for d, m, y in seen], [(y, m, d) for m, d, y in seen])
            ]
            if falls[0] != falls[1]:
                self.order = "dmy" if falls[0] < falls[1] else "mdy"
            else:
                self.order = "mdy"
                self.report.repair(
                    "dates that could be day/month or month/day: read as month/day (--dates dmy states the other)",
                    f"{seen[0][0]}/{seen[0][1]}",
                )
        self.report.note("dates are day, month, year" if self.order == "dmy" else "dates are month, day, year")

    def epoch(self, text: str) -> float:
        """Unix seconds of a date, an ISO stamp or a Unix time in s, ms, µs or ns.

        Raises:
            ValueError: it is none of these.
        """
        text = text.strip().strip("\"'")
        if len(text) > LONGEST:
            raise ValueError(f"{text[:20]!r}… is not a time")
        if _NUMBER.match(text):
            return self.from_unix(float(text))
        match = _YMD.match(text)
        if match:
            y, m, d = int(match[1]), int(match[2]), int(match[3])
            clock, offset = match.groups()[3:8], match[9]
        else:
            match = _PARTS.match(text)
            if not match and (parts := dates.parse(text)):
                return self._named(parts)
            if not match:
                raise ValueError(f"{text!r} is not a time; expected a date with a time of day, or a Unix time")
            if self.order is None:
                self.learn([text])
            a, b, y = int(match[1]), int(match[3]), int(match[4])
            d, m = (a, b) if self.order == "dmy" else (b, a)
            y += 2000 if y < 100 else 0
            clock, offset = match.groups()[4:9], match[10]
        return self._local(y, m, d, clock, offset)

    def from_unix(self, value: float) -> float:
        """Unix seconds from a Unix time in s, ms, µs or ns, told apart by size.

        Raises:
            ValueError: it lies outside 1990 to 2100 in each of these.
        """
        for factor, name in ((1.0, ""), (1e3, "ms"), (1e6, "µs"), (1e9, "ns")):
            if EARLIEST <= value / factor <= LATEST:
                if name:
                    self.report.note(f"Unix times in {name}")
                return value / factor
        raise ValueError(f"{value:g} is not a Unix time between 1990 and 2100 in s, ms, µs or ns")

    def time_of_day(self, text: str) -> float:
        """Seconds since midnight of the file's first day; the day goes on when the clock falls back.

        Raises:
            ValueError: it is no time of day.
        """
        match = _CLOCK.match(text.strip().strip("\"'"))
        if not match:
            raise ValueError(f"{text!r} is not a time of day")
        hour, minute, second, micro = _clock(match.groups())
        value = hour * 3600 + minute * 60 + second + micro / 1e6
        if self._last_of_day is not None and value < self._last_of_day:
            self._days += 1
        self._last_of_day = value
        return self._days * 86400 + value

    def _named(self, parts: dates.Parts) -> float:
        """Unix seconds of a date with the month's name; without a year, from a stand-in on."""
        year = parts.year
        if year is None:
            self.report.note(f"dates without a year: counted from the first one, in {dates.STAND_IN} as a stand-in")
            day = (parts.month, parts.day)
            if self._last_day is not None and day < self._last_day and self._last_day[0] - parts.month > 6:
                self._years += 1
            self._last_day = day
            year = dates.STAND_IN + self._years
        if parts.offset is None:
            return self._local(year, parts.month, parts.day, parts.clock, None)
        hour, minute, second, micro = _clock(parts.clock)
        stamp = datetime(year, parts.month, parts.day, hour, minute, min(second, 59), tzinfo=timezone(parts.offset))
        return self._in_range(_unix(stamp, (second - min(second, 59)) * 1_000_000 + micro), year)

    def _in_range(self, value: float, year: int) -> float:
        if not EARLIEST <= value <= LATEST:
            raise ValueError(f"the year {year} is outside 1990 to 2100")
        return value

    def _local(self, y, m, d, clock, offset) -> float:
        hour, minute, second, micro = _clock(clock)
        stamp = datetime(y, m, d, hour, minute, min(second, 59))
        extra = (second - min(second, 59)) * 1_000_000 + micro
        if offset:
            shift = _OFFSET.match(offset)
            delta = timedelta(0)
            if shift:
                delta = timedelta(hours=int(shift[2]), minutes=int(shift[3] or 0))
                delta = -delta if shift[1] == "-" else delta
            value = _unix(stamp.replace(tzinfo=timezone(delta)), extra)
        else:
            value = self._without_zone(stamp, extra)
        return self._in_range(value, y)

    def _without_zone(self, stamp: datetime, extra: int) -> float:
        if not self.stated:
            self.report.note("times without a zone: read as UTC (--tz states another)")
            return _unix(stamp.replace(tzinfo=timezone.utc), extra)
        value = _unix(stamp.replace(tzinfo=self.zone), extra)
        again = _unix(stamp.replace(tzinfo=self.zone, fold=1), extra)
        if again > value and self._last is not None and self._last >= value:
            self.report.note(
                "daylight saving ends within the file: the hour that comes twice is told apart by its order"
            )
            value = again
        elif again < value:
            self.report.repair("times that daylight saving skips: moved by an hour", stamp.isoformat(" "))
        self._last = value
        return value


def _unix(stamp: datetime, extra_us: int) -> float:
    """Unix seconds, correctly rounded from whole microseconds."""
    return (round(stamp.timestamp()) * 1_000_000 + extra_us) / 1e6


def _clock(groups) -> tuple[int, int, int, int]:
    """Hour, minute, second and microsecond of a matched time of day."""
    hour, minute, second = (int(g or 0) for g in groups[:3])
    half = (groups[4] or "").lower().replace(".", "")
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(f"{hour} {half} is not an hour")
        hour = hour % 12 + (12 if half == "pm" else 0)
    if hour > 23 or minute > 59 or second > 60:
        raise ValueError(f"{hour}:{minute:02d}:{second:02d} is not a time of day")
    return hour, minute, second, int((groups[3] or "0").ljust(6, "0")[:6])


def iso(epoch_s: float) -> str:
    """ISO 8601 in UTC to the microsecond, such as '2024-03-01T18:00:00Z'."""
    text = datetime.fromtimestamp(epoch_s, timezone.utc).isoformat()
    return text.replace("+00:00", "Z")


def midnight(day: date) -> float:
    """Unix seconds of a UTC day's beginning."""
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc).timestamp()
