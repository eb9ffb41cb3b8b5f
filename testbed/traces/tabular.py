"""Read the rows of a table by a plan: in bulk where a piece of the file is clean, else line by line.

The line-by-line reader defines what a file means; the bulk reader only ever takes pieces in which every cell
is a plain value, and leaves all others to it.
"""

from __future__ import annotations

import math

from testbed.traces.bulk import BulkReader
from testbed.traces.named import realigned
from testbed.traces.numbers import MISSING, number, with_unit
from testbed.traces.plan import EVEN, RELATIVE, TIME_OF_DAY, Column, Plan
from testbed.traces.records import FAILED_RATE, FIELDS, NAN, LinkRecords
from testbed.traces.remarks import Remarks
from testbed.traces.source import Source
from testbed.traces.table import Layout, split
from testbed.traces.times import Clock, check_time
from testbed.traces.units_of import factor as unit_factor
from testbed.traces.units_of import scaled

COMPACT_ABOVE = 128 << 20  # bytes of text from which values are kept in single precision
SMALLEST_PIECE = 4096  # bytes below which a piece is not worth the bulk reader's call
WARN_LOST = 0.1  # share of rows that are lost, from which a warning says so
BROKEN = 0.5  # a file with a larger share of unreadable rows is of another format


class _Unreadable(ValueError):
    def __init__(self, message: str, column: str):
        super().__init__(message)
        self.column = column


class TableReader:
    """Reads one source into one LinkRecords."""

    def __init__(self, source: Source, options, layout: Layout, plan: Plan, records: LinkRecords | None = None):
        self.source, self.options, self.layout, self.plan = source, options, layout, plan
        self.report = source.report
        labels = {c.field: c.label for c in plan.columns} | {"time": plan.time.label} | plan.labels
        self.records = (
            records
            if records is not None
            else LinkRecords(
                self.report,
                zero=plan.zero,
                labels=labels,
                floor_bps=options.floor_bps,
                sparse=plan.sparse,
                absolute=plan.time.kind not in (RELATIVE, TIME_OF_DAY, EVEN),
                repeats=plan.repeats,
                compact=source.unpacked_bytes > COMPACT_ABOVE,
            )
        )
        self.home = options.home or source.stem
        self.clock = Clock(self.report, options.zone, options.dates)
        self.clock.learn(self._stamp(row) for row in layout.rows if len(row) >= plan.cells)
        self.kept = self.broken = self.timeless = self.even = self.members = 0
        self.remarks = Remarks(self.report)
        self.factors: dict[tuple[str, str], float] = {}

    def read(self) -> LinkRecords:
        """All rows.

        Raises:
            InputError: an impossible value, or more unreadable rows than readable ones.
        """
        plan, report = self.plan, self.report
        report.drop(*plan.private)
        bulk = BulkReader(self.layout, plan, self.clock, self.records, self.home)
        self.header_seen = not self.layout.header
        for first, block, ended in self._left_over(bulk):
            lines = block.split(b"\n")
            if ended:
                lines.pop()
            for i, raw in enumerate(lines):
                line = self.source.decode(raw, first + i)
                if not line.strip():
                    continue
                if line.startswith("#"):
                    self.header_seen = self.header_seen or self.layout.commented
                    self.remarks.read(line, first + i)
                    continue
                cells = split(line, self.layout.delimiter)
                if self.layout.header and tuple(cells) == self.layout.header:
                    if self.header_seen:
                        report.repair("header repeated in the middle: skipped", line=first + i)
                    self.header_seen = True
                    continue
                self._row(first + i, line, cells, ended or i < len(lines) - 1)
        if plan.time.kind == EVEN and self.kept == 1:
            report.assumed.pop("time", None)  # a single row needs no time
        if self.broken > BROKEN * (self.kept + self.broken):
            examples = next((r.examples for k, r in report.repairs.items() if k.startswith("unreadable")), [""])
            wider = self.layout.header and self.layout.row_width > len(self.layout.header)
            raise report.error(
                f"{self.broken} of {self.broken + self.kept} rows can't be read as {report.format}: {examples[0]}",
                hint=realigned(self.layout) if wider else "name another --format, or the columns by --map",
            )
        self._warn_of_losses()
        return self.records

    def _warn_of_losses(self) -> None:
        """Say so when much of the file is not used, whatever the reason: each is counted on its own."""
        for what, lost in (("rows can't be read", self.broken), ("rows have no time", self.timeless)):
            if lost > WARN_LOST * (self.kept + self.broken + self.timeless):
                self.report.warn(f"{lost} of {self.kept + self.broken + self.timeless} {what}: look at the file")

    def _left_over(self, bulk: BulkReader):
        """The blocks, and pieces of blocks, that the bulk reader leaves to be read line by line."""
        in_vain = 0
        for first, block, ended in self.source.blocks():
            if not ended or not self.header_seen or in_vain > 4:
                yield first, block, ended
                continue
            before = bulk.taken
            yield from self._halved(bulk, first, block)
            in_vain = 0 if bulk.taken > before else in_vain + 1

    def _halved(self, bulk: BulkReader, first: int, block: bytes):
        """What remains of a block after its clean parts are taken."""
        rows = bulk.take(block)
        if rows:
            self.kept += rows
            return
        cut = block.find(b"\n", len(block) // 2) + 1
        if not bulk.usable or len(block) < SMALLEST_PIECE or cut in (0, len(block)):
            yield first, block, True
            return
        yield from self._halved(bulk, first, block[:cut])
        yield from self._halved(bulk, first + block.count(b"\n", 0, cut), block[cut:])

    def _row(self, line: int, text: str, cells: list[str], ended: bool) -> None:
        plan, report = self.plan, self.report
        if plan.only and (len(cells) <= plan.only[0] or cells[plan.only[0]] != plan.only[1]):
            return
        expected = plan.width or plan.cells
        if len(cells) < plan.cells or (plan.width and len(cells) != plan.width):
            if not ended and len(cells) < expected:
                report.rows += 1
                report.repair("last line cut short: dropped", text[:60], line)
            elif len(cells) <= 2 and not plan.exact and expected > 2:
                report.rows += 1
                self.records.failed(line, text[:60])
            else:
                self._broken(line, f"{len(cells)} cells; expected {expected}", None)
            return
        try:
            time = self._time(cells)
            values = self._values(cells)
        except _Unreadable as problem:
            if not ended and not plan.exact:
                report.rows += 1
                report.repair("last line cut short: dropped", text[:60], line)
                return
            if problem.column == plan.time.label and plan.time.index >= 0:
                check_time(cells[plan.time.index], report, line, problem.column)
                if not plan.exact and cells[plan.time.index].strip("\"' ").lower() in MISSING:
                    report.rows += 1
                    self.timeless += 1
                    report.repair("rows without a time: dropped", text[:60], line)
                    return
            if not plan.exact and not any(ch.isdigit() for ch in str(problem)) and not self._has_rate(cells):
                report.rows += 1
                self.records.failed(line, str(problem))
            else:
                self._broken(line, str(problem), problem.column)
            return
        self.kept += 1
        if plan.alive is not None and cells[plan.alive] in ("0", ""):
            report.rows += 1
            self.records.failed(line, f"{plan.labels.get('alive', 'successes')} is {cells[plan.alive] or 'empty'}")
            return
        name = " ".join(filter(None, (cells[i] for i in plan.homes)))
        if plan.alias and name:
            name = self.records.alias(plan.alias, name)
        if plan.population is not None:
            self.members += 1
            name = f"{name or plan.population}-{self.members:05d}"
        self.records.add(line, name or self.home, time, *values)

    def _has_rate(self, cells: list[str]) -> bool:
        """Whether a row with an unreadable cell has a rate all the same, so that it is no failed test."""
        try:
            rates = [self._value(cells[c.index], c) for c in self.plan.columns if c.field in ("down_bps", "up_bps")]
        except _Unreadable:
            return False
        return any(rate is not None and rate > 0 for rate in rates)

    def _broken(self, line: int, message: str, column: str | None) -> None:
        if self.plan.exact:
            raise self.report.error(message, line, column)
        self.broken += 1
        self.report.rows += 1
        where = f"column {column}: " if column else ""
        self.report.repair("unreadable rows dropped", where + message, line)

    def _stamp(self, cells) -> str:
        time = self.plan.time
        if time.index < 0:
            return ""
        return f"{cells[time.index]} {cells[time.second]}" if time.second >= 0 else cells[time.index]

    def _time(self, cells: list[str]) -> float:
        time = self.plan.time
        try:
            if time.kind == EVEN:
                self.even += 1
                return (self.even - 1) * time.factor
            if time.kind == TIME_OF_DAY:
                return self.clock.time_of_day(cells[time.index])
            if time.kind == RELATIVE:
                value = number(cells[time.index], self.plan.decimal_comma)
                if value is None:
                    raise ValueError("is empty; expected a time")
                return scaled(value, time.factor)
            return self.clock.epoch(self._stamp(cells))
        except ValueError as error:
            raise _Unreadable(str(error), time.label) from None

    def _values(self, cells: list[str]) -> list[float]:
        values = [NAN] * 5
        for column in self.plan.columns:
            value = self._value(cells[column.index], column)
            if value is not None:
                values[FIELDS.index(column.field)] = value
        if self.plan.loss_pair:
            lost, received = (number(cells[i]) or 0.0 for i in self.plan.loss_pair)
            if lost < 0 or received < 0:
                raise _Unreadable(f"{lost:g} failures, {received:g} successes", "failures")
            if lost + received:
                values[4] = lost / (lost + received)
        return values

    def _value(self, cell: str, column: Column) -> float | None:
        try:
            value = number(cell, self.plan.decimal_comma)
            unit = column.factor
        except ValueError as error:
            pair = with_unit(cell, self.plan.decimal_comma)
            unit = self._cell_unit(column.field, pair[1]) if pair else None
            if pair is None or unit is None:
                raise _Unreadable(str(error), column.label) from None
            value = pair[0]
        if value is None or value in self.plan.marks:
            return None
        if value == -1 and self.plan.zero == "failed":
            return FAILED_RATE if column.field in ("down_bps", "up_bps") else None
        if unit is None:
            raise _Unreadable(f"{cell!r} has no unit", column.label)
        return scaled(value, unit) if math.isfinite(value) else None

    def _cell_unit(self, field: str, unit: str) -> float | None:
        key = (field, unit)
        if key not in self.factors:
            self.factors[key] = unit_factor(field, unit) or NAN
        return None if math.isnan(self.factors[key]) else self.factors[key]
