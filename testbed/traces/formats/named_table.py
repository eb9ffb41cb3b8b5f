"""Any table or list of JSON objects whose names say what they hold: 'Download (Mbit/s)', 'ping', 'dl' …

And any table at all, by a map of its columns: --map time=1 --map download=3:Mbps.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.json_records import json_records
from testbed.traces.named import has_rate, plan_by_map, plan_by_names
from testbed.traces.names import private, recognise
from testbed.traces.records import FIELDS, LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Layout
from testbed.traces.tabular import TableReader
from testbed.traces.times import is_stamp


def detect(sample: Sample) -> float:
    if not has_rate(sample.layout):
        return 0.0
    named = {n.field for n in recognise(sample.layout.header)}
    return 0.5 if "time" in named or "clock" in named else 0.3


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    layout = source.sample.layout
    return TableReader(source, options, layout, plan_by_names(layout, options, source.report), records).read()


def read_mapped(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    layout = source.sample.layout
    return TableReader(source, options, layout, plan_by_map(layout, options, source.report), records).read()


def _objects(sample: Sample) -> list[dict]:
    values = sample.json if isinstance(sample.json, list) else [sample.json]
    return [v for v in values if isinstance(v, dict) and not any(isinstance(x, (dict, list)) for x in v.values())]


def _as_layout(objects: list[dict]) -> Layout:
    names = tuple(dict.fromkeys(str(key) for value in objects for key in value))
    rows = tuple(tuple("" if v.get(n) is None else str(v.get(n)) for n in names) for v in objects)
    return Layout(",", names, rows)


def detect_json(sample: Sample) -> float:
    objects = _objects(sample)
    if not objects:
        return 0.0
    layout = _as_layout(objects)
    named = {n.field for n in recognise(layout.header)}
    return 0.5 if has_rate(layout) and "time" in named else 0.0


def read_json(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report
    layout = _as_layout(_objects(source.sample))
    plan = plan_by_names(layout, options, report)
    keys = {c.field: layout.header[c.index] for c in plan.columns}
    factors = {c.field: c.factor for c in plan.columns}
    time_key = layout.header[plan.time.index] if plan.time.index >= 0 else None
    home_key = layout.header[plan.homes[0]] if plan.homes else None
    report.drop(*private(layout.header, {c.index for c in plan.columns}))
    if time_key is not None and not is_stamp(str(layout.rows[0][plan.time.index])):
        raise report.error(
            f"{layout.rows[0][plan.time.index]!r} is not a time that can be placed",
            column=time_key,
            hint="expected ISO 8601 or a Unix time",
        )

    def row(value, clock):
        from testbed.traces.json_text import number_at

        if time_key is not None and value.get(time_key) is None:
            raise KeyError(time_key)
        time = clock.epoch(str(value[time_key])) if time_key is not None else None
        return (time, *(number_at(value, keys[f]) if f in keys else None for f in FIELDS))

    return json_records(
        source,
        options,
        row,
        scale=tuple(factors.get(f) or 1.0 for f in FIELDS),
        labels=keys,
        records=records,
        home=(lambda v, r: _home(v, r, home_key, plan.alias)) if home_key else None,
    )


def _home(value, records: LinkRecords, key: str, alias: str | None) -> str | None:
    name = value.get(key)
    if name in (None, ""):
        return None
    return records.alias(alias, str(name)) if alias else str(name)


FORMATS = (
    Format("table", "links", "a table with named columns", detect, read),
    Format("json-table", "links", "a list of JSON objects with named values", detect_json, read_json),
    Format("map", "links", "a table whose columns --map names", lambda sample: 0.0, read_mapped),
)
