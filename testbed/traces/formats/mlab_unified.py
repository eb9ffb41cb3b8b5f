"""M-Lab's unified views from BigQuery (CSV, JSON): MeanThroughputMbps, MinRTT [ms], LossRate (share).

Downloads and uploads are separate tables (unified_downloads, unified_uploads): the direction comes from the
file's name. Read both together by naming the folder that holds them. Rows are grouped by client where the
export has the client's address; the address itself is not kept.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.json_records import json_records
from testbed.traces.json_text import get, number_at
from testbed.traces.named import time_columns
from testbed.traces.plan import STAMP, Column, Plan, TimeColumns
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Layout
from testbed.traces.tabular import TableReader

_DROPPED = ("client address", "client coordinates", "client network", "server")


def _last_part(name: str) -> str:
    """'a.MeanThroughputMbps', 'a_MeanThroughputMbps' -> 'meanthroughputmbps'."""
    return name.lower().replace(".", "_").split("_")[-1]


def _columns(layout: Layout) -> dict[str, int]:
    where: dict[str, int] = {}
    for i, name in enumerate(layout.header):
        where.setdefault(_last_part(name), i)
    return where


def detect_csv(sample: Sample) -> float:
    return 0.97 if "meanthroughputmbps" in _columns(sample.layout) else 0.0


def is_upload(source: Source) -> bool:
    """Whether the file's name says that it holds uploads."""
    upload = "upload" in source.path.name.lower()
    if not upload and "download" not in source.path.name.lower():
        source.report.warn(
            "neither the rows nor the file's name say whether these are downloads or uploads: "
            "read as downloads (a name with 'upload' states the other)"
        )
    return upload


def read_csv(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    layout, report = source.sample.layout, source.report
    where = _columns(layout)
    if "meanthroughputmbps" not in where:
        raise report.error("has no column MeanThroughputMbps")
    rate = "up_bps" if is_upload(source) else "down_bps"
    columns = [Column(rate, where["meanthroughputmbps"], 1e6, layout.header[where["meanthroughputmbps"]])]
    if "minrtt" in where:
        columns.append(Column("rtt_s", where["minrtt"], 1e-3, layout.header[where["minrtt"]]))
    if "lossrate" in where and rate == "down_bps":
        columns.append(Column("loss", where["lossrate"], 1.0, layout.header[where["lossrate"]]))
    at = next((where[n] for n in ("testtime", "date", "time") if n in where), -1)
    if at < 0:
        raise report.error("has no column TestTime or date")
    cells = [row[at] for row in layout.rows if at < len(row)]
    time = time_columns(cells, at, -1, None, layout.header[at], report)
    report.drop(*(d for d in _DROPPED if any(d.split()[0] in n.lower() for n in layout.header)))
    homes = (where["ipaddress"],) if "ipaddress" in where else ()
    plan = Plan(
        tuple(columns),
        TimeColumns(STAMP, at, label=time.label),
        homes,
        width=len(layout.header),
        sparse=True,
        alias="client",
    )
    return TableReader(source, options, layout, plan, records).read()


def detect_json(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    return (
        1.0
        if get(value, "a", "MeanThroughputMbps") is not None or get(value, "MeanThroughputMbps") is not None
        else 0.0
    )


def read_json(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    upload = is_upload(source)

    def row(value, clock):
        a = get(value, "a") or value
        time = get(a, "TestTime") or get(value, "date")
        rate = number_at(a, "MeanThroughputMbps")
        loss = number_at(a, "LossRate")
        return (
            clock.epoch(str(time).removesuffix(" UTC") + ("Z" if str(time).endswith(" UTC") else "")),
            None if upload else rate,
            rate if upload else None,
            number_at(a, "MinRTT"),
            None,
            None if upload else loss,
        )

    def client(value, records: LinkRecords):
        address = get(value, "client", "IPAddress") or get(value, "raw", "ClientIP")
        return records.alias("client", str(address)) if address else None

    source.report.drop(*_DROPPED)
    return json_records(
        source,
        options,
        row,
        scale=(1e6, 1e6, 1e-3, 1e-3, 1.0),
        records=records,
        home=client,
        sparse=True,
        labels={
            "down_bps": "a.MeanThroughputMbps",
            "up_bps": "a.MeanThroughputMbps",
            "rtt_s": "a.MinRTT",
            "loss": "a.LossRate",
        },
    )


FORMATS = (
    Format("mlab-unified-csv", "links", "an M-Lab unified view (CSV)", detect_csv, read_csv, family="mlab-unified"),
    Format("mlab-unified-json", "links", "an M-Lab unified view (JSON)", detect_json, read_json, family="mlab-unified"),
)
