"""fast-cli (sindresorhus/fast-cli) `--json`: speeds in Mbit/s, latency in ms, no time.

`uploadUnit` may stand beside an upload that was already converted to Mbit/s; a unit counts only where both
are stated, as releases wrote them that did not convert.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.json_records import json_records
from testbed.traces.json_text import get, number_at
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.units_of import rate_factor


def detect(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    return 1.0 if get(value, "downloadSpeed") is not None else 0.0


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    def row(value, clock):
        units = [get(value, "downloadUnit"), get(value, "uploadUnit")]
        factors = [1e6, 1e6]
        if all(units):
            # fast-cli writes 'Kbps' and, below that, 'Bps', which are bits
            factors = [1.0 if unit == "Bps" else rate_factor(str(unit)) for unit in units]
            if None in factors:
                raise ValueError(f"unknown unit {units}")
        time = get(value, "timestamp") or get(value, "time")
        speeds = [number_at(value, "downloadSpeed"), number_at(value, "uploadSpeed")]
        down, up = (None if v is None else v * k for v, k in zip(speeds, factors))
        return (clock.epoch(str(time)) if time else None, down, up, number_at(value, "latency"), None, None)

    source.report.drop("userIp", "userLocation")
    return json_records(
        source,
        options,
        row,
        scale=(1.0, 1.0, 1e-3, 1e-3, 1e-2),
        records=records,
        labels={"down_bps": "downloadSpeed", "up_bps": "uploadSpeed", "rtt_s": "latency"},
    )


FORMATS = (Format("fast-cli-json", "links", "fast-cli results (--json)", detect, read),)
