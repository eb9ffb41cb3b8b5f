"""Ookla's Speedtest CLI, `-f json`, `jsonl`, `csv`, `tsv`: bandwidth in bytes/s, latency in ms, loss in %.

The CSV has no time: people put one before or after it. Also the CSV export of the web account (Mbit/s), that
of the mobile app (kbit/s), and Murakami's flat JSON of the same tool.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.json_records import json_records
from testbed.traces.json_text import get, number_at
from testbed.traces.numbers import number
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Layout
from testbed.traces.table_format import TableFormat
from testbed.traces.times import is_stamp

_BYTES = "bytes/s"
_NAMES = (
    "server name",
    "server id",
    "latency",
    "jitter",
    "packet loss",
    "download",
    "upload",
    "download bytes",
    "upload bytes",
    "share url",
)


def _unheaded(layout: Layout) -> dict[str, int] | None:
    for row in layout.rows[:20]:
        at = next((i for i in range(len(row) - 8) if _is_core(row[i : i + 9])), None)
        if at is None:
            continue
        where = {name: at + i for i, name in enumerate(_NAMES) if at + i < len(row)}
        stamps = [
            i for i, cell in enumerate(row) if not at <= i < at + 9 and is_stamp(cell) and not cell.strip().isdigit()
        ]
        if stamps:
            where["timestamp"] = stamps[0]
        return where
    return None


def _is_core(cells) -> bool:
    """server, id, latency, jitter, loss, four whole numbers of which bytes exceed bandwidths."""
    if not cells[1].isdigit() or cells[0].replace(".", "").isdigit() or not cells[0]:
        return False
    try:
        latency, jitter, loss = (number(c) for c in cells[2:5])
    except ValueError:
        return False
    return (
        latency is not None
        and jitter is not None
        and (loss is None or 0 <= loss <= 100)
        and all(c.isdigit() for c in cells[5:9])
    )


CSV = TableFormat(
    "ookla-csv",
    "a Speedtest CLI log (-f csv or tsv)",
    needs=("server name", "server id", "packet loss", "download", "upload", "download bytes", "upload bytes"),
    columns={
        "down_bps": (("download",), _BYTES),
        "up_bps": (("upload",), _BYTES),
        "rtt_s": (("idle latency", "latency"), "ms"),
        "jitter_s": (("idle jitter", "jitter"), "ms"),
        "loss": (("packet loss",), "%"),
    },
    time=(("timestamp", "date", "time", "datetime"),),
    unheaded=_unheaded,
    drops=("server name", "share url"),
)


def _other_zone(layout: Layout, source: Source) -> None:
    names = [n.upper() for n in layout.header]
    if "TIME_ZONE" in names:
        at = names.index("TIME_ZONE")
        zones = {row[at] for row in layout.rows if at < len(row)} - {"GMT", "UTC", ""}
        if zones:
            source.report.warn(
                f"TIME_ZONE says {', '.join(sorted(zones)[:3])}, the times are read as UTC unless --tz states the zone"
            )


WEB = TableFormat(
    "ookla-web",
    "a Speedtest web account's export",
    needs=("TEST_DATE", "DOWNLOAD_MEGABITS", "UPLOAD_MEGABITS"),
    columns={
        "down_bps": (("DOWNLOAD_MEGABITS",), "Mbit/s"),
        "up_bps": (("UPLOAD_MEGABITS",), "Mbit/s"),
        "rtt_s": (("LATENCY_MS",), "ms"),
    },
    time=(("TEST_DATE",),),
    drops=("IP_ADDRESS", "SERVER_NAME", "TEST_ID"),
    check=_other_zone,
)

APP = TableFormat(
    "ookla-app",
    "a Speedtest mobile app's export",
    needs=("Date", "ConnType", "Download", "Upload", "Latency"),
    columns={"down_bps": (("Download",), "kbit/s"), "up_bps": (("Upload",), "kbit/s"), "rtt_s": (("Latency",), "ms")},
    time=(("Date",),),
    drops=("Lat", "Lon", "ServerName", "InternalIp", "ExternalIp"),
)


def _first(sample: Sample):
    return next((v for v in sample.json if isinstance(v, dict)), None) if isinstance(sample.json, list) else sample.json


def detect_json(sample: Sample) -> float:
    values = sample.json if isinstance(sample.json, list) else [sample.json]
    for value in values:
        if get(value, "download", "bandwidth") is not None and get(value, "upload") is not None:
            return 1.0
    value = _first(sample)
    kind = get(value, "type")
    if get(value, "timestamp") and (kind in ("log", "testStart", "result") or isinstance(get(value, kind or ""), dict)):
        return 0.8
    return 1.0 if get(value, "DownloadBandwidth") is not None else 0.0


def read_json(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    def row(value, clock):
        kind = get(value, "type")
        if get(value, "error") or (kind == "log" and get(value, "level") == "error"):
            return str(get(value, "error") or get(value, "message") or "error")
        if kind not in ("result", None):
            return None  # progress of a test that is under way
        if get(value, "DownloadBandwidth") is not None:  # Murakami: flat, and its 'Bit/s' is bytes/s in truth
            time = clock.epoch(str(get(value, "Timestamp") or value["TestStartTime"]))
            return (
                time,
                *(
                    number_at(value, k)
                    for k in ("DownloadBandwidth", "UploadBandwidth", "PingLatency", "PingJitter", "PacketLoss")
                ),
            )
        return (
            clock.epoch(str(value["timestamp"])),
            number_at(value, "download", "bandwidth"),
            number_at(value, "upload", "bandwidth"),
            number_at(value, "ping", "latency"),
            number_at(value, "ping", "jitter"),
            number_at(value, "packetLoss"),
        )

    source.report.drop("interface (addresses)", "isp", "server", "result (share URL)")
    return json_records(
        source,
        options,
        row,
        scale=(8.0, 8.0, 1e-3, 1e-3, 1e-2),
        records=records,
        labels={
            "down_bps": "download.bandwidth",
            "up_bps": "upload.bandwidth",
            "rtt_s": "ping.latency",
            "jitter_s": "ping.jitter",
            "loss": "packetLoss",
        },
    )


FORMATS = (
    CSV.format(),
    WEB.format(),
    APP.format(),
    Format("ookla-json", "links", "Speedtest CLI results (-f json or jsonl)", detect_json, read_json),
)
