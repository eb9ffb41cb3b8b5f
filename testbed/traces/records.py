"""Link measurements as a reader delivers them: columns that grow, checked value by value."""

from __future__ import annotations

import math
from array import array

from testbed.traces.report import Report

FIELDS = ("down_bps", "up_bps", "rtt_s", "jitter_s", "loss")
NAN = math.nan

# Beyond these no home link lies: refused as a wrong unit or a broken file.
IMPOSSIBLE_BPS = 1e13
IMPOSSIBLE_S = 600.0
# Beyond these a value is kept, and a warning says so.
PLAUSIBLE_BPS = 1.2e10
PLAUSIBLE_S = 10.0
SMALLEST_BPS = 1e3


class LinkRecords:
    """Rows of a file in file order: home, time [s], and FIELDS in SI units, NaN where the file had nothing.

    zero: what a rate of 0 means in this format: 'error', 'failed' (a test that failed: the row is dropped) or
    'outage' (no throughput at that time: the rate becomes the floor).
    labels: field -> the column's name in the file, for messages. absolute: times are Unix times.
    """

    def __init__(self, report: Report, *, zero: str = "error", labels: dict[str, str] | None = None,
                 absolute: bool = False, floor_bps: float = 8000.0):
        self.report = report
        self.zero = zero
        self.labels = labels or {}
        self.absolute = absolute
        self.floor_bps = floor_bps
        self.span_s: float | None = None  # where the file states it
        self.hold_s: float | None = None  # how long the last sample holds, where the file states it
        self.times = array("d")
        self.columns = {name: array("d") for name in FIELDS}
        self.homes: dict[str, int] = {}
        self.codes = array("i")

    def __len__(self) -> int:
        return len(self.times)

    def add(self, line: int | None, home: str, time: float, down: float = NAN, up: float = NAN,
            rtt: float = NAN, jitter: float = NAN, loss: float = NAN) -> bool:
        """Check and append one row; False when it was a failed test and dropped.

        Raises:
            InputError: an impossible value, with its place.
        """
        self.report.rows += 1
        if not math.isfinite(time):
            raise self._error(line, "time", time, "a finite time")
        down, drop_down = self._rate(line, "down_bps", down)
        up, drop_up = self._rate(line, "up_bps", up)
        if drop_down or drop_up:
            self.failed(line, "a rate of 0")
            return False
        if math.isnan(down) and math.isnan(up) and math.isnan(rtt):
            self.failed(line, "no value")
            return False
        self._delay(line, "rtt_s", rtt)
        self._delay(line, "jitter_s", jitter)
        if not math.isnan(loss) and not 0 <= loss <= 1:
            raise self._error(line, "loss", loss, "a share of 0 to 1 (0 to 100 %)")
        self.times.append(time)
        for name, value in zip(FIELDS, (down, up, rtt, jitter, loss)):
            self.columns[name].append(value)
        self.codes.append(self.homes.setdefault(home, len(self.homes)))
        return True

    def failed(self, line: int | None, why: str = "") -> None:
        """Count a failed test, of which nothing is kept."""
        self.report.failed += 1
        self.report.repair("failed tests dropped", why, line)

    def _rate(self, line, field, value) -> tuple[float, bool]:
        if math.isnan(value):
            return value, False
        if value == 0 or (value == -1 and self.zero == "failed"):
            if self.zero == "failed":
                return NAN, True
            if self.zero == "outage":
                self.report.repair(f"no throughput: raised to the floor of {self.floor_bps / 1e3:g} kbit/s",
                                   line=line)
                return self.floor_bps, False
        if not 0 < value <= IMPOSSIBLE_BPS:
            raise self._error(line, field, value, "a rate above 0 (and below 10 Tbit/s)", "bit/s")
        return value, False

    def _delay(self, line, field, value) -> None:
        if not math.isnan(value) and not 0 <= value <= IMPOSSIBLE_S:
            raise self._error(line, field, value, "a delay of 0 to 600 s", "s")

    def _error(self, line, field, value, expected, unit=""):
        return self.report.error(f"{value:g}{' ' + unit if unit else ''}; expected {expected}", line,
                                 self.labels.get(field, field))
