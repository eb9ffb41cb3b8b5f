"""Link measurements as a reader delivers them: columns that grow, checked value by value."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

import numpy as np

from testbed.traces.remarks import Remarks
from testbed.traces.report import Report
from testbed.units import CENTURY_S

FIELDS = ("down_bps", "up_bps", "rtt_s", "jitter_s", "loss")
NAN = math.nan

FAILED_RATE = -1.0  # how loggers note a failed test, whatever the unit
# Beyond these no home link lies: refused as a wrong unit or a broken file.
IMPOSSIBLE_BPS = 1e12
IMPOSSIBLE_S = 600.0
# Beyond these a value is kept, and a warning says so.
PLAUSIBLE_BPS = 1.2e10
PLAUSIBLE_S = 10.0
SMALLEST_BPS = 1e3

EXPECTED = {
    "down_bps": "a rate above 0 and below 1 Tbit/s",
    "up_bps": "a rate above 0 and below 1 Tbit/s",
    "rtt_s": "a delay of 0 to 600 s",
    "jitter_s": "a delay of 0 to 600 s",
    "loss": "a share of 0 to 1 (0 to 100 %)",
    "time": "a time of less than a century",
}
_UNITS = {"down_bps": " bit/s", "up_bps": " bit/s", "rtt_s": " s", "jitter_s": " s", "time": " s"}


class Rows:
    """The rows of one home in file order. A column is None until its first value."""

    def __init__(self, typecode: str):
        self.typecode = typecode
        self.times = array("d")
        self.columns: dict[str, array | None] = dict.fromkeys(FIELDS)

    def append(self, time: float, values: tuple[float, ...]) -> None:
        for name, value in zip(FIELDS, values):
            column = self.columns[name]
            if column is None:
                if value != value:  # NaN
                    continue
                column = self._begin(name)
            column.append(value)
        self.times.append(time)

    def extend(self, times: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        for name in FIELDS:
            column = self.columns[name]
            if name in columns:
                column = self._begin(name) if column is None else column
                column.frombytes(columns[name].astype(self.typecode).tobytes())
            elif column is not None:
                column.frombytes(np.full(len(times), NAN, self.typecode).tobytes())
        self.times.frombytes(times.astype("d").tobytes())

    def _begin(self, name: str) -> array:
        column = self.columns[name] = array(self.typecode)
        column.frombytes(np.full(len(self.times), NAN, self.typecode).tobytes())
        return column


class LinkRecords:
    """What was read: rows by home, times [s], FIELDS in SI units, NaN where the file had nothing.

    zero: what a rate of 0 means in this format: 'error', 'failed' (a test that failed: the row is dropped) or
    'outage' (no throughput at that time: the rate becomes the floor).
    sparse: rows carry some quantities each by design, so that holding the others is no repair.
    repeats: several rows of one time are one test by design, and the last one is its result.
    joined: rows come from several files, so that their order is no one's fault.
    labels: field -> the column's name in the file, for messages. absolute: times are Unix times.
    compact: keep values in single precision (files of millions of rows).
    span_s, hold_s: the traces' length and how long a last sample holds, where the format states them.
    remarks: what the file says of single homes.
    """

    def __init__(
        self,
        report: Report,
        *,
        zero: str = "error",
        labels: dict[str, str] | None = None,
        absolute: bool = False,
        floor_bps: float = 8000.0,
        sparse: bool = False,
        repeats: bool = False,
        compact: bool = False,
    ):
        self.report = report
        self.zero = zero
        self.labels = labels or {}
        self.absolute = absolute
        self.floor_bps = floor_bps
        self.sparse = sparse
        self.repeats = repeats
        self.joined = False
        self.typecode = "f" if compact else "d"
        self.span_s: float | None = None
        self.hold_s: float | None = None
        self.remarks: Remarks | None = None
        self.homes: dict[str, Rows] = {}
        self.aliases: dict[str, str] = {}

    def alias(self, prefix: str, name: str) -> str:
        """'client-00001' for a name (an address, a person's) that is not to be carried over."""
        return self.aliases.setdefault(name, f"{prefix}-{len(self.aliases) + 1:05d}")

    def __len__(self) -> int:
        return sum(len(rows.times) for rows in self.homes.values())

    def home(self, name: str) -> Rows:
        rows = self.homes.get(name)
        if rows is None:
            rows = self.homes[name] = Rows(self.typecode)
        return rows

    def add(
        self,
        line: int | None,
        home: str,
        time: float,
        down: float = NAN,
        up: float = NAN,
        rtt: float = NAN,
        jitter: float = NAN,
        loss: float = NAN,
    ) -> bool:
        """Check and append one row; False when it was a failed test and dropped.

        Raises:
            InputError: an impossible value, with its place.
        """
        self.report.rows += 1
        if not math.isfinite(time) or (abs(time) > CENTURY_S and not self.absolute):
            raise self.error(line, "time", time)
        values = [down, up, rtt, jitter, loss]
        for i in (0, 1):
            if values[i] == 0 or (values[i] == FAILED_RATE and self.zero == "failed"):
                if self.zero == "failed":
                    self.failed(line, f"{self.labels.get(FIELDS[i], FIELDS[i])} is {values[i]:g}")
                    return False
                if self.zero == "outage":
                    self.outages(1, line)
                    values[i] = self.floor_bps
        if all(value != value for value in values):
            if not self.sparse:
                self.failed(line, "no value")
            return False
        for name, value in zip(FIELDS, values):
            if value == value and not possible(name, value):
                raise self.error(line, name, value)
        self.home(home).append(time, tuple(values))
        return True

    def failed(self, line: int | None, why: str = "") -> None:
        """Count a failed test, of which nothing is kept."""
        self.report.failed += 1
        self.report.repair("failed tests dropped", why, line)

    def outages(self, count: int, line: int | None = None) -> None:
        """Count rates of 0 that became the floor."""
        floor = f"{self.floor_bps / 1e3:g} kbit/s"
        self.report.repair(f"no throughput: raised to the floor of {floor}", line=line, count=count)

    def error(self, line, field, value):
        """The error for an impossible value of a field."""
        return self.report.error(
            f"{value:g}{_UNITS.get(field, '')}; expected {EXPECTED[field]}", line, self.labels.get(field, field)
        )


def possible(field: str, value: float) -> bool:
    """Whether a link can have this value (SI units)."""
    if field in ("down_bps", "up_bps"):
        return 0 < value <= IMPOSSIBLE_BPS
    if field == "loss":
        return 0 <= value <= 1
    return 0 <= value <= IMPOSSIBLE_S


def all_possible(field: str, values: np.ndarray) -> bool:
    """Whether every value is possible; NaN counts as possible."""
    missing = np.isnan(values)
    if field in ("down_bps", "up_bps"):
        good = (values > 0) & (values <= IMPOSSIBLE_BPS)
    else:
        good = (values >= 0) & (values <= (1 if field == "loss" else IMPOSSIBLE_S))
    return bool((good | missing).all())
