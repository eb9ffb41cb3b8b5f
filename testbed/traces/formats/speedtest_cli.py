"""speedtest-cli (sivel/speedtest-cli): `--csv` with or without its header, `--json`; bit/s, ping in ms.

A failed test leaves an error message, an empty line or zeros.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.json_records import json_records
from testbed.traces.json_text import get, number_at
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Layout, is_value
from testbed.traces.table_format import TableFormat
from testbed.traces.times import is_stamp

COLUMNS = (
    "Server ID",
    "Sponsor",
    "Server Name",
    "Timestamp",
    "Distance",
    "Ping",
    "Download",
    "Upload",
    "Share",
    "IP Address",
)


def _unheaded(layout: Layout) -> dict[str, int] | None:
    rows = [row for row in layout.rows if len(row) in (8, 10)]
    good = [r for r in rows if r[0].isdigit() and is_stamp(r[3]) and all(is_value(c) for c in r[4:8])]
    if not good or len(good) < 0.3 * len(layout.rows):
        return None
    return {name: i for i, name in enumerate(COLUMNS[: len(good[0])])}


CSV = TableFormat(
    "speedtest-cli-csv",
    "a speedtest-cli log (--csv)",
    needs=COLUMNS[:8],
    columns={"down_bps": (("Download",), "bit/s"), "up_bps": (("Upload",), "bit/s"), "rtt_s": (("Ping",), "ms")},
    time=(("Timestamp",),),
    unheaded=_unheaded,
    drops=("Sponsor", "Server Name", "Share", "IP Address"),
)

# speedtest-cli's Python results written as a table: the same names and units as its JSON
DICT = TableFormat(
    "speedtest-cli-table",
    "speedtest-cli results as a table",
    needs=("download", "upload", "ping", "timestamp", "bytes_sent", "bytes_received"),
    columns=CSV.columns,
    time=(("timestamp",),),
)


def detect_json(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    keys = set(value) if isinstance(value, dict) else set()
    return (
        1.0
        if {"download", "upload", "ping", "bytes_sent", "bytes_received", "server"} <= keys
        and get(value, "server", "sponsor") is not None
        else 0.0
    )


def read_json(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    def row(value, clock):
        return (
            clock.epoch(str(value["timestamp"])),
            number_at(value, "download"),
            number_at(value, "upload"),
            number_at(value, "ping"),
            None,
            None,
        )

    source.report.drop("client (address, coordinates, provider)", "server", "share")
    return json_records(
        source,
        options,
        row,
        scale=(1.0, 1.0, 1e-3, 1e-3, 1e-2),
        records=records,
        labels={"down_bps": "download", "up_bps": "upload", "rtt_s": "ping"},
    )


FORMATS = (
    CSV.format(),
    DICT.format(),
    Format("speedtest-cli-json", "links", "speedtest-cli results (--json)", detect_json, read_json),
)
