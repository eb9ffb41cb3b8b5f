"""Any log of lines, by a regular expression with named groups: --pattern 'at (?P<time>\\S+): (?P<download_mbps>\\S+)'.

Groups are time, download, upload, rtt, jitter, loss and home, with a unit behind where the log has none: time_ms,
download_kbps, rtt_us, loss_pct.
"""

from __future__ import annotations

import re

from testbed.errors import InputError, nearest
from testbed.traces import units_of
from testbed.traces.formats import Format, Options
from testbed.traces.infer import KEYS, column_factor
from testbed.traces.named import time_columns
from testbed.traces.numbers import number, with_unit
from testbed.traces.plan import RELATIVE, TIME_OF_DAY
from testbed.traces.records import FIELDS, LinkRecords
from testbed.traces.source import Source
from testbed.traces.times import Clock

LONGEST = 2000  # characters of a line that are looked at
_FIELD = {word: field for field, word in KEYS.items()}


def compiled(text: str) -> tuple[re.Pattern, dict[str, tuple[str, str | None]]]:
    """The expression, and of each group the quantity and its unit.

    Raises:
        InputError: no regular expression, or a group that names no quantity.
    """
    where = "--pattern"
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise InputError(where, f"{text!r} is no regular expression: {error}") from None
    groups: dict[str, tuple[str, str | None]] = {}
    for name in pattern.groupindex:
        word, _, unit = name.partition("_")
        field = _FIELD.get(word, word if word in ("time", "home") else None)
        if field is None:
            near = nearest(word, [*_FIELD, "time", "home"])
            raise InputError(
                where,
                f"group {name!r} names no quantity; expected time, home, {', '.join(_FIELD)}",
                hint=f"did you mean {near!r}?" if near else None,
            )
        known = units_of.time_factor if field == "time" else units_of.FACTORS.get(field)
        if unit and (known is None or known(unit) is None):
            raise InputError(where, f"{unit!r} of group {name!r} is no unit of {word}")
        groups[name] = (field, unit or None)
    if not {field for field, _ in groups.values()} & set(FIELDS):
        raise InputError(where, f"names no quantity; expected a group such as (?P<download_mbps>…) in {text!r}")
    return pattern, groups


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report
    if options.pattern is None:
        raise InputError("--pattern", "is not given; expected a regular expression with named groups")
    pattern, groups = compiled(options.pattern)
    sample = [m.groupdict() for line in source.sample.lines if (m := pattern.search(line[:LONGEST]))]
    if not sample:
        raise report.error(
            f"no line matches --pattern {options.pattern!r}; the first is {source.sample.lines[0][:80]!r}"
        )
    factors, clock = {}, Clock(report, options.zone, options.dates)
    delays = any(field in ("rtt_s", "jitter_s") for field, _ in groups.values())
    time, kind = None, None
    for name, (field, unit) in groups.items():
        cells = [row[name] or "" for row in sample]
        if field == "time":
            time = name
            kind = time_columns(cells, 0, -1, unit, name, report)
            clock.learn(cells)
        elif field in FIELDS:
            factors[name] = (
                units_of.factor(field, unit) if unit else column_factor(field, name, cells, report, speed_test=delays)
            )
    if time is None:
        report.assumed["time"] = "a row an hour (the pattern names no time; --every states another)"
    absolute = kind is not None and kind.kind not in (RELATIVE, TIME_OF_DAY)
    records = records or LinkRecords(
        report, zero=options.zero or "failed", absolute=absolute, floor_bps=options.floor_bps,
        labels={field: name for name, (field, _) in groups.items()},
    )  # fmt: skip
    lines = kept = 0
    for line, text in source.lines():
        if not text.strip():
            continue
        lines += 1
        match = pattern.search(text[:LONGEST])
        if match is None:
            continue
        found, home = dict.fromkeys(FIELDS), None
        try:
            at = _time(match[time], kind, clock) if time else kept * (options.every_s or 3600.0)
            for name, (field, _) in groups.items():
                if field == "home":
                    home = match[name]
                elif field in FIELDS and match[name]:
                    found[field] = _value(match[name], field, factors[name])
        except ValueError as error:
            report.rows += 1
            report.repair("unreadable rows dropped", str(error), line)
            continue
        kept += 1
        values = [float("nan") if v is None else v for v in found.values()]
        records.add(line, home or options.home or source.stem, at, *values)
    report.note(f"{kept} of {lines} lines match the pattern")
    return records


def _time(cell: str | None, kind, clock: Clock) -> float:
    if not cell:
        raise ValueError("has no time")
    if kind.kind == TIME_OF_DAY:
        return clock.time_of_day(cell)
    if kind.kind != RELATIVE:
        return clock.epoch(cell)
    value = number(cell)
    if value is None:
        raise ValueError(f"{cell!r} is no time")
    return units_of.scaled(value, kind.factor)


def _value(cell: str, field: str, factor: float | None) -> float | None:
    pair = with_unit(cell)
    if pair:
        own = units_of.factor(field, pair[1])
        if own is None:
            raise ValueError(f"{pair[1]!r} of {cell!r} is no unit that is known")
        return units_of.scaled(pair[0], own)
    value = number(cell)
    if value is not None and factor is None:
        raise ValueError(f"{cell!r} has no unit")
    return None if value is None else units_of.scaled(value, factor)


FORMATS = (Format("pattern", "links", "lines that --pattern reads", lambda sample: 0.0, read),)
