"""A plan for a table from the names of its columns."""

from __future__ import annotations

import re

from testbed.errors import InputError
from testbed.traces import units_of
from testbed.traces.infer import KEYS, column_factor, speaks_of_a_rate
from testbed.traces.names import Named, is_personal, private, recognise
from testbed.traces.numbers import number, with_unit
from testbed.traces.plan import EVEN, RELATIVE, STAMP, TIME_OF_DAY, Column, Plan, TimeColumns
from testbed.traces.records import FIELDS
from testbed.traces.report import Report
from testbed.traces.table import Layout, check_once
from testbed.traces.times import is_stamp, is_time_of_day


def has_rate(layout: Layout) -> bool:
    """Whether the header names a download or an upload."""
    return any(n.field in ("down_bps", "up_bps") for n in recognise(layout.header, layout.rows[:50]))


def plan_by_names(layout: Layout, options, report: Report, rates: bool = True) -> Plan:
    """The plan of a table by its header. rates: whether it must have any.

    Raises:
        InputError: no rate among the columns, or units that can't be told.
    """
    named = {n.field: n for n in recognise(layout.header, layout.rows[:50])}
    if rates and "down_bps" not in named and "up_bps" not in named:
        raise report.error(
            f"names no download and no upload among its columns ({', '.join(layout.header[:12])})",
            hint="name the columns: --map download=COLUMN:UNIT …; see docs/traces.md",
        )
    comma = decimal_comma(layout, [named[f].index for f in FIELDS if f in named])
    columns = tuple(_column(named[f], layout, report, comma, named) for f in FIELDS if f in named)
    time = _time(named, layout, options, report)
    homes = (named["home"].index,) if "home" in named else ()
    alias = "home" if homes and is_personal(named["home"].name) else None
    used = {c.index for c in columns} | {time.index, time.second, *homes}
    check_once(layout, used, report)
    return Plan(
        columns,
        time,
        homes,
        width=len(layout.header),
        zero="failed",
        decimal_comma=comma,
        sparse=_sparse(layout, columns),
        alias=alias,
        private=(*private(layout.header, used), *([named["home"].name] if alias else [])),
    )


def decimal_comma(layout: Layout, indices: list[int]) -> bool:
    """Whether numbers are written as '94,73'."""
    if layout.delimiter == ",":
        cells = [row[i] for row in layout.rows for i in indices if i < len(row)]
        return any("," in cell for cell in cells)  # only within quotes
    cells = [row[i] for row in layout.rows for i in indices if i < len(row)]
    return any("," in cell and "." not in cell for cell in cells)


def _column(named: Named, layout: Layout, report: Report, comma: bool, every: dict[str, Named]) -> Column:
    if named.unit is not None:
        factor = units_of.factor(named.field, named.unit)
        if factor is None:
            raise report.error(f"{named.unit!r} is no unit of {named.name!r}", column=named.name)
        return Column(named.field, named.index, factor, named.name)
    cells = [row[named.index] for row in layout.rows if named.index < len(row)]
    beside = [n for n in every.values() if n.field in FIELDS and n.field != named.field]
    speed_test = any(n.field in ("rtt_s", "jitter_s") or n.unit or speaks_of_a_rate(n.name) for n in beside)
    hint = f"state it: {stated(every, layout)}"
    factor = column_factor(named.field, named.name, cells, report, comma, speed_test=speed_test, hint=hint)
    return Column(named.field, named.index, factor, named.name)


def stated(named: dict[str, Named], layout: Layout) -> str:
    """The options that say what each column is, with UNIT where the file does not."""
    parts = []
    if "time" in named:
        parts.append("time=" + named["time"].name + (f"+{named['clock'].name}" if "clock" in named else ""))
    for field in FIELDS:
        if field in named:
            cells = [row[named[field].index] for row in layout.rows if named[field].index < len(row)]
            own = named[field].unit is None and any(map(with_unit, cells))
            parts.append(f"{KEYS[field]}={named[field].name}" + ("" if own else f":{named[field].unit or 'UNIT'}"))
    if "home" in named:
        parts.append(f"home={named['home'].name}")
    return " ".join(f"--map '{part}'" if re.search(r"[^\w=:+/%.-]", part) else f"--map {part}" for part in parts)


def _time(named: dict[str, Named], layout: Layout, options, report: Report) -> TimeColumns:
    time, clock = named.get("time"), named.get("clock")
    if time is None and clock is None:
        if options.every_s is None:
            report.assumed["time"] = "a row an hour (the file has no time column; --every states another)"
        return TimeColumns(EVEN, factor=options.every_s or 3600.0)
    if time is None:
        time, clock = clock, None
    assert time is not None
    cells = [row[time.index] for row in layout.rows if time.index < len(row) and row[time.index]]
    return time_columns(cells, time.index, clock.index if clock else -1, time.unit, time.name, report)


def time_columns(cells: list[str], index: int, second: int, unit: str | None, name: str, report: Report) -> TimeColumns:
    """How to read a column of times, from some of its cells."""
    good = [c for c in cells if c][:200]
    if sum(is_stamp(c) for c in good) >= 0.5 * len(good):
        return TimeColumns(STAMP, index, second, label=name)
    if sum(is_time_of_day(c) for c in good) >= 0.5 * len(good):
        report.note("times of day without a date: a new day begins where they fall back")
        return TimeColumns(TIME_OF_DAY, index, label=name)
    factor = units_of.time_factor(unit) if unit else None
    if factor is None:
        factor = 1.0
        values = [v for v in map(_plain_number, good) if v is not None]
        steps = [b - a for a, b in zip(values, values[1:]) if b > a]
        if steps and min(steps) >= 1000 and all(v % 1000 == 0 for v in values):
            raise report.error(
                f"does not state the unit of {name!r}, and whole thousands such as {values[-1]:g} could be ms or s",
                hint=f"state it: --map time={name}:UNIT (with the other columns)",
            )
        report.guess(f"{name} is in seconds")
        report.warn(f"the unit of {name!r} is not stated: read as seconds; --map states another")
    return TimeColumns(RELATIVE, index, factor=factor, label=name)


def realigned(layout: Layout) -> str:
    """How to read rows that are wider than the header: the place of the first cell too many, told from the cells."""
    rows = [row for row in layout.rows if len(row) == layout.row_width]
    spare = layout.row_width - len(layout.header)
    best, names = -1.0, layout.header
    for at in range(len(layout.header), -1, -1):
        shifted = (*layout.header[:at], *[""] * spare, *layout.header[at:])
        found = recognise(shifted, rows)
        fits = sum(all(_fits(n, row[n.index]) for row in rows[:20]) for n in found)
        if fits > best:
            best, names = fits, shifted
    found = [Named(n.field, n.index, n.unit, str(n.index + 1)) for n in recognise(names, rows)]
    extra = next((i for i, name in enumerate(names) if not name), -1)
    pairs = [pair for row in rows[:20] if (pair := with_unit(row[extra]))]
    for field, factor in units_of.FACTORS.items():
        if pairs and factor(pairs[0][1]) is not None and field not in {n.field for n in found} and field != "jitter_s":
            found.append(Named(field, extra, None, str(extra + 1)))
    wide = Layout(layout.delimiter, names, tuple(rows))
    return (
        f"the header has {len(layout.header)} names, most rows have {layout.row_width} cells; if a column was added "
        f"after '{names[extra - 1] if extra > 0 else ''}': {stated({n.field: n for n in found}, wide)}"
    )


def _fits(named: Named, cell: str) -> bool:
    """Whether a cell can be what its column's name says."""
    if named.field in ("time", "clock", "home"):
        return named.field == "home" or is_stamp(cell) or is_time_of_day(cell)
    pair = with_unit(cell)
    if pair:
        return units_of.factor(named.field, pair[1]) is not None
    return _plain_number(cell) is not None


def _plain_number(cell: str) -> float | None:
    try:
        return number(cell)
    except ValueError:
        return None


def _sparse(layout: Layout, columns: tuple[Column, ...]) -> bool:
    """Whether most rows leave some of the columns empty."""
    rows = [row for row in layout.rows if len(row) == len(layout.header)]
    holes = sum(any(not row[c.index] for c in columns) for row in rows)
    return bool(rows) and holes > 0.5 * len(rows)


def plan_by_map(layout: Layout, options, report: Report) -> Plan:
    """The plan of a table by `options.map`: 'download=COLUMN:UNIT', 'time=COLUMN[:UNIT]', 'home=COLUMN' …

    COLUMN is a name of the header or a number from 1; 'time=DATE+CLOCK' names two.

    Raises:
        InputError: an unknown quantity, column or unit.
    """
    fields = {"download": "down_bps", "upload": "up_bps", "rtt": "rtt_s", "jitter": "jitter_s", "loss": "loss"}
    columns, homes, time = [], (), None
    for entry in options.map:
        key, _, rest = entry.partition("=")
        column, _, unit = rest.rpartition(":") if ":" in rest else (rest, "", "")
        where = f"--map {entry}"
        if key not in (*fields, "time", "home"):
            raise InputError(where, f"unknown quantity {key!r}; expected time, home, {', '.join(fields)}")
        column, _, clock = column.partition("+") if key == "time" else (column, "", "")
        index = _index(column, layout, where, report)
        second = _index(clock, layout, where, report) if clock else -1
        cells = [row[index] for row in layout.rows if index < len(row)]
        if key == "home":
            homes = (index,)
        elif key == "time":
            if unit and units_of.time_factor(unit) is None and unit not in ("iso", "epoch", "stamp"):
                raise InputError(where, f"{unit!r} is no unit of time; expected s, ms, min, h … or stamp")
            stamped = unit in ("iso", "epoch", "stamp") or second >= 0
            time = (
                TimeColumns(STAMP, index, second, label=column)
                if stamped
                else TimeColumns(RELATIVE, index, factor=units_of.time_factor(unit), label=column)
                if unit
                else time_columns(cells, index, -1, None, column, report)
            )
        else:
            factor = units_of.factor(fields[key], unit) if unit else None
            if unit and factor is None:
                raise InputError(where, f"{unit!r} is no unit of {key}; expected {_EXAMPLES[fields[key]]}")
            if not unit:
                factor = column_factor(fields[key], column, cells, report)
            columns.append(Column(fields[key], index, factor, column))
    if not columns:
        raise InputError("--map", "names no quantity; expected download, upload, rtt, jitter or loss")
    if time is None:
        if options.every_s is None:
            report.assumed["time"] = "a row an hour (--map names no time; --every states another)"
        time = TimeColumns(EVEN, factor=options.every_s or 3600.0)
    comma = decimal_comma(layout, [c.index for c in columns])
    used = {c.index for c in columns} | {time.index, time.second, *homes}
    return Plan(
        tuple(columns),
        time,
        homes,
        width=layout.row_width or None,
        zero=options.zero or "failed",
        decimal_comma=comma,
        private=tuple(private(layout.header, used)),
    )


_EXAMPLES = {
    "down_bps": "Mbps, kbit/s, bit/s, MB/s, bytes/s …",
    "up_bps": "Mbps, kbit/s, bit/s, MB/s, bytes/s …",
    "rtt_s": "ms, s, us",
    "jitter_s": "ms, s, us",
    "loss": "% or ratio",
}


def _index(column: str, layout: Layout, where: str, report: Report) -> int:
    if column in layout.header:
        index = layout.header.index(column)
        check_once(layout, [index], report)
        return index
    if column.isdigit() and 1 <= int(column) <= max(layout.width, layout.row_width):
        return int(column) - 1
    from testbed.errors import nearest

    near = nearest(column, layout.header)
    expected = f"one of {', '.join(layout.header[:12])}" if layout.header else "no header to name it by"
    raise InputError(
        where,
        f"no column {column!r}; expected a number from 1 to {layout.width} or {expected}",
        hint=f"did you mean {near!r}?" if near else None,
    )
