"""Two columns without a header: time and throughput. Pensieve and its kin write seconds and Mbit/s, Oboe ms
and kbit/s; which one a file is, its steps and values tell (a second's step and 2.5 against 400 and 3168.6).

One direction: the download. A throughput of 0 is an outage.

Two bare columns may be anything. They are taken for throughput where the values were computed (three decimals or
more, as a division leaves them) or jump as throughput does; whole numbers (counts, ids, bytes) and readings that
move slowly (temperatures) are left to --format.
"""

from __future__ import annotations

import statistics

from testbed.traces.formats import Format, Options
from testbed.traces.numbers import number
from testbed.traces.plan import RELATIVE, Column, Plan, TimeColumns
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.tabular import TableReader
from testbed.traces.times import EARLIEST

FRACTIONS = 0.02  # share of values with a fraction
COMPUTED = 0.3  # share of values with three decimals or more
JUMP = 0.1  # mean change between rows, as a share of the mean
RANGE = 2.0  # largest to smallest value
_DELIMITERS = ("\t", " ", ",", ";", "blanks")


def _pairs(sample: Sample) -> list[tuple[float, float]] | None:
    layout = sample.layout
    if layout.header or layout.delimiter == "|":
        return None
    rows = [row for row in layout.rows if len(row) == 2]
    if len(rows) < 2 or len(rows) < 0.9 * len(layout.rows):
        return None
    out = []
    for a, b in rows:
        try:
            x, y = number(a), number(b)
        except ValueError:
            continue
        if x is not None and y is not None:
            out.append((x, y))
    if len(out) < max(2, 0.9 * len(rows)):
        return None
    times = [x for x, _ in out]
    rising = sum(b > a for a, b in zip(times, times[1:]))
    if rising < 0.95 * (len(times) - 1) or times[0] < 0 or any(y < 0 for _, y in out):
        return None
    return out


def _measured(sample: Sample, pairs: list[tuple[float, float]]) -> bool:
    """Whether the values look like throughput, not like counts or slow readings."""
    values = [y for _, y in pairs]
    if sum(y != int(y) for y in values) < FRACTIONS * len(values):
        return False
    long = sum(len(row[-1].strip().rpartition(".")[2]) >= 3 for row in sample.layout.rows if "." in row[-1])
    if long >= COMPUTED * len(values):
        return True
    jump = statistics.mean(abs(b - a) for a, b in zip(values, values[1:])) / (statistics.mean(values) or 1.0)
    low = min((y for y in values if y > 0), default=0.0)
    return jump >= JUMP and (max(values) >= RANGE * low or low >= 50)


def _is_oboe(pairs: list[tuple[float, float]]) -> bool | None:
    """True for ms and kbit/s, False for s and Mbit/s, None when it could be either."""
    steps = [b[0] - a[0] for a, b in zip(pairs, pairs[1:])]
    step, value = statistics.median(steps), statistics.median(y for _, y in pairs)
    if step >= 80 and value >= 50:
        return True
    if step < 80 and value < 20_000:
        return False
    return None


def detect_pensieve(sample: Sample) -> float:
    pairs = _pairs(sample)
    if pairs is None or _is_oboe(pairs) is not False or pairs[0][0] > EARLIEST:
        return 0.0
    return 0.6 if _measured(sample, pairs) else 0.0


def detect_oboe(sample: Sample) -> float:
    pairs = _pairs(sample)
    return 0.6 if pairs is not None and _is_oboe(pairs) and _measured(sample, pairs) else 0.0


def _reader(time_factor: float, rate_factor: float, unit: str):
    def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
        layout = source.sample.layout
        plan = Plan(
            (Column("down_bps", 1, rate_factor, f"throughput ({unit})"),),
            TimeColumns(RELATIVE, 0, factor=time_factor, label="time"),
            width=2,
            zero="outage",
        )
        source.report.tell_guess(f"two columns without names are {unit}, the download")
        records = TableReader(source, options, layout, plan, records).read()
        first = min((rows.times[0] for rows in records.homes.values() if len(rows.times)), default=0.0)
        if first > 0:  # a piece cut from a longer trace keeps that one's times
            for rows in records.homes.values():
                for i in range(len(rows.times)):
                    rows.times[i] -= first
            source.report.note(f"times begin at {first:g} s: counted from there")
        pairs = _pairs(source.sample)
        if pairs is not None and _is_oboe(pairs) is not (time_factor < 1):
            source.report.warn(f"the values look unlike {unit}; are the units right?")
        return records

    return read


FORMATS = (
    Format(
        "pensieve",
        "links",
        "a throughput trace of seconds and Mbit/s (Pensieve)",
        detect_pensieve,
        _reader(1.0, 1e6, "s, Mbit/s"),
    ),
    Format(
        "oboe", "links", "a throughput trace of ms and kbit/s (Oboe)", detect_oboe, _reader(1e-3, 1e3, "ms, kbit/s")
    ),
)
