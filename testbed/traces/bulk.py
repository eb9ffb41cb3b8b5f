"""Pieces of a table in which every cell is a plain value, parsed by pyarrow."""

from __future__ import annotations

import numpy as np

from testbed.traces.plan import RELATIVE, STAMP, Plan
from testbed.traces.records import LinkRecords, all_possible
from testbed.traces.table import BLANKS, Layout
from testbed.traces.times import EARLIEST, LATEST, Clock
from testbed.traces.units_of import scaled
from testbed.units import CENTURY_S

_ODD = (b'"', b"#", b"\x00", b"_")  # quotes, comments, damage: left to the line-by-line reader


class BulkReader:
    """Takes whole blocks into `records`, or refuses them untouched."""

    def __init__(self, layout: Layout, plan: Plan, clock: Clock, records: LinkRecords, home: str):
        self.layout, self.plan, self.clock, self.records, self.home = layout, plan, clock, records, home
        self.width = plan.width or layout.width
        stated_zone = plan.time.kind == STAMP and clock.stated
        self.usable = (
            layout.delimiter != BLANKS
            and plan.time.kind in (STAMP, RELATIVE)
            and plan.time.second < 0
            and not plan.decimal_comma
            and not plan.marks
            and not plan.only
            and plan.population is None
            and len(plan.homes) <= 1
            and self.width >= plan.cells
            and not stated_zone
            and all(column.factor is not None for column in plan.columns)
        )
        self.stamps: str | None = None  # the type that the time column was last read as
        self.taken = 0

    def take(self, block: bytes) -> int:
        """The number of rows taken, or 0 when the block is left to the other reader."""
        if not self.usable or any(odd in block for odd in _ODD):
            return 0
        table = self._parse(block)
        if table is None or not table.num_rows:
            return 0
        times = self._times(table.column("time"))
        if times is None:
            return 0
        columns, absent = {}, np.ones(len(times), dtype=bool)
        for column in self.plan.columns:
            values = table.column(str(column.index)).to_numpy().astype(float)
            values = scaled(values, column.factor)
            missing = np.isnan(values)
            if np.isinf(values).any() or not all_possible(column.field, values):
                return 0  # failed tests, outages and impossible values are told with their lines
            absent &= missing
            if not missing.all():
                columns[column.field] = values
        if self.plan.loss_pair:
            lost, received = (table.column(str(i)).to_numpy().astype(float) for i in self.plan.loss_pair)
            if not ((lost >= 0) & (received >= 0) & (lost + received > 0)).all():
                return 0
            columns["loss"], absent = lost / (lost + received), np.zeros(1, dtype=bool)
        if self.plan.alive is not None and not (table.column(str(self.plan.alive)).to_numpy() > 0).all():
            return 0
        if absent.any():
            return 0
        self._add(table, times, columns)
        self.records.report.rows += len(times)
        self.taken += len(times)
        return len(times)

    def _parse(self, block: bytes):
        import pyarrow as pa
        from pyarrow import csv

        time = self.plan.time
        names = [str(i) for i in range(self.width)]
        names[time.index] = "time"
        numbers = [c.index for c in self.plan.columns] + [*(self.plan.loss_pair or ())]
        numbers += [self.plan.alive] if self.plan.alive is not None else []
        types = {str(i): pa.float64() for i in numbers}
        wanted = ["time", *types]
        for i in self.plan.homes:
            types[str(i)] = pa.dictionary(pa.int32(), pa.string())
            wanted.append(str(i))
        kinds = ["number"] if time.kind == RELATIVE else ["number", "utc", "naive"]
        kinds = [self.stamps] if self.stamps else kinds
        for kind in kinds:
            types["time"] = {"number": pa.float64(), "utc": pa.timestamp("us", "UTC"), "naive": pa.timestamp("us")}[
                kind
            ]
            try:
                table = csv.read_csv(
                    pa.BufferReader(block),
                    csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
                    csv.ParseOptions(delimiter=self.layout.delimiter, quote_char=False),
                    csv.ConvertOptions(
                        column_types=types,
                        include_columns=list(dict.fromkeys(wanted)),
                        null_values=[""],
                        strings_can_be_null=False,
                        check_utf8=True,
                    ),
                )
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
                continue
            self.stamps = kind
            return table
        self.stamps = None
        return None

    def _times(self, column) -> np.ndarray | None:
        if column.null_count:
            return None
        if self.stamps != "number":
            if self.stamps == "naive":
                self.clock.report.note("times without a zone: read as UTC (--tz states another)")
            times = column.to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
            return times if ((times >= EARLIEST) & (times <= LATEST)).all() else None
        times = column.to_numpy()
        if not np.isfinite(times).all():
            return None
        if self.plan.time.kind == RELATIVE:
            times = scaled(times, self.plan.time.factor)
            return times if (abs(times) <= CENTURY_S).all() else None
        return times if ((times >= EARLIEST) & (times <= LATEST)).all() else None

    def _add(self, table, times: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        if not self.plan.homes:
            self.records.home(self.home).extend(times, columns)
            return
        combined = table.column(str(self.plan.homes[0])).combine_chunks()
        names = [name.strip() or self.home for name in combined.dictionary.to_pylist()]
        if self.plan.alias:
            names = [name if name == self.home else self.records.alias(self.plan.alias, name) for name in names]
        codes = combined.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
        for k, name in enumerate(names):
            rows = order[bounds[k] : bounds[k + 1]]
            self.records.home(name).extend(times[rows], {f: c[rows] for f, c in columns.items()})
