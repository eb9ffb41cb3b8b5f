"""librespeed-cli: `--csv` (without header unless asked for) and `--json`; Mbit/s, ping and jitter in ms.

Its help says bit/s; what it writes is the Mbit/s that it prints (speedtest/helper.go, rep.Download).
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

COLUMNS = ("Timestamp", "Server Name", "Address", "Ping", "Jitter", "Download", "Upload", "Share", "IP")


def _unheaded(layout: Layout) -> dict[str, int] | None:
    for row in layout.rows[:20]:
        if len(row) == 9 and is_stamp(row[0]) and row[2].startswith("http") and all(is_value(c) for c in row[3:7]):
            return {name: i for i, name in enumerate(COLUMNS)}
    return None


CSV = TableFormat(
    "librespeed-csv",
    "a librespeed-cli log (--csv)",
    needs=COLUMNS[:7],
    columns={
        "down_bps": (("Download",), "Mbit/s"),
        "up_bps": (("Upload",), "Mbit/s"),
        "rtt_s": (("Ping",), "ms"),
        "jitter_s": (("Jitter",), "ms"),
    },
    time=(("Timestamp",),),
    unheaded=_unheaded,
    drops=("Server Name", "Address", "Share", "IP"),
)


def detect_json(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    keys = set(value) if isinstance(value, dict) else set()
    return (
        1.0
        if {"timestamp", "server", "ping", "jitter", "upload", "download"} <= keys
        and get(value, "server", "url") is not None
        and get(value, "server", "sponsor") is None
        else 0.0
    )


def read_json(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    def row(value, clock):
        return (
            clock.epoch(str(value["timestamp"])),
            number_at(value, "download"),
            number_at(value, "upload"),
            number_at(value, "ping"),
            number_at(value, "jitter"),
            None,
        )

    source.report.drop("client (address, coordinates, provider)", "server", "share")
    return json_records(
        source,
        options,
        row,
        scale=(1e6, 1e6, 1e-3, 1e-3, 1e-2),
        records=records,
        labels={"down_bps": "download", "up_bps": "upload", "rtt_s": "ping", "jitter_s": "jitter"},
    )


FORMATS = (CSV.format(), Format("librespeed-json", "links", "librespeed-cli results (--json)", detect_json, read_json))
