"""M-Lab NDT7: the client's JSON summary (Mbit/s, ms), the server's results (bytes and µs), Murakami's lines.

A summary's retransmissions are a share of bytes sent again, not of packets lost over the round trip; they are
taken as the loss, since the file has nothing nearer to it.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.json_records import json_records
from testbed.traces.json_text import get, number_at
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.units_of import rate_factor, scaled, share_factor, time_factor


def _first(sample: Sample):
    return next((v for v in sample.json if isinstance(v, dict)), None) if isinstance(sample.json, list) else sample.json


def detect(sample: Sample) -> float:
    value = _first(sample)
    if get(value, "TestName") in ("ndt7", "ndt5"):
        return 1.0
    if get(value, "Download", "Value") is not None or get(value, "Download", "Throughput", "Value") is not None:
        return 1.0
    if get(value, "StartTime") and (get(value, "Download", "UUID") or get(value, "Upload", "UUID")):
        return 1.0
    return 0.7 if get(value, "Key") in ("measurement", "starting", "connected") and get(value, "Value") else 0.0


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report

    def row(value, clock):
        if get(value, "TestName") in ("ndt7", "ndt5"):
            return _murakami(value, clock)
        if get(value, "Key") is not None:
            return None  # progress events of -format json before the summary
        if (
            get(value, "Download", "ServerMeasurements") is not None
            or get(value, "Upload", "ServerMeasurements") is not None
        ):
            return _server(value, clock)
        return _summary(value, clock)

    report.drop("ClientIP", "ServerIP", "client metadata")
    return json_records(
        source,
        options,
        row,
        scale=(1.0,) * 5,
        records=records,
        sparse=True,
        labels={"down_bps": "Download", "up_bps": "Upload", "rtt_s": "MinRTT"},
    )


def _quantity(value, factor, *path: str) -> float | None:
    """{"Value": v, "Unit": u} in SI units; a value of 0 without unit is one that was not measured."""
    number, unit = number_at(value, *path, "Value"), get(value, *path, "Unit")
    if number is None or not unit:
        return None
    scale = factor(str(unit))
    if scale is None:
        raise ValueError(f"{'.'.join(path)} has the unknown unit {unit!r}")
    return scaled(number, scale)


def _summary(value, clock):
    down = _quantity(value, rate_factor, "Download", "Throughput") or _quantity(value, rate_factor, "Download")
    up = _quantity(value, rate_factor, "Upload", "Throughput") or _quantity(value, rate_factor, "Upload")
    if down is None and up is None:
        return "no throughput"
    rtt = next(
        (
            r
            for r in (
                _quantity(value, time_factor, *path)
                for path in (("MinRTT",), ("Download", "Latency"), ("RTT",), ("Upload", "Latency"))
            )
            if r is not None
        ),
        None,
    )
    loss = _quantity(value, share_factor, "DownloadRetrans")
    if loss is None:
        loss = _quantity(value, share_factor, "Download", "Retransmission")
    time = get(value, "TestStartTime") or get(value, "timestamp") or get(value, "StartTime")
    return (clock.epoch(str(time)) if time else None, down, up, rtt, None, loss)


def _murakami(value, clock):
    if get(value, "DownloadError") or (get(value, "DownloadValue") is None and get(value, "UploadValue") is None):
        return str(get(value, "DownloadError") or get(value, "error") or "no value")
    out = []
    for key, factor in (
        ("Download", rate_factor),
        ("Upload", rate_factor),
        ("MinRTT", time_factor),
        ("DownloadRetrans", share_factor),
    ):
        number, unit = number_at(value, f"{key}Value"), get(value, f"{key}Unit")
        scale = factor(str(unit)) if unit else None
        if number is not None and scale is None:
            raise ValueError(f"{key}Unit is {unit!r}")
        out.append(None if number is None else scaled(number, scale))
    return (clock.epoch(str(value["TestStartTime"])), out[0], out[1], out[2], None, out[3])


def _server(value, clock):
    """A server's archive of one test in one direction; the last TCPInfo holds totals.

    BytesAcked counts what a download delivered, BytesReceived what an upload brought; times are µs.
    """
    down = up = rtt = jitter = loss = None
    for direction in ("Download", "Upload"):
        snapshots = [
            m for m in get(value, direction, "ServerMeasurements") or [] if isinstance(get(m, "TCPInfo"), dict)
        ]
        if not snapshots:
            continue
        last = snapshots[-1]["TCPInfo"]
        elapsed = number_at(last, "ElapsedTime")
        count = number_at(last, "BytesAcked" if direction == "Download" else "BytesReceived")
        if not elapsed or count is None:
            continue
        rate = count * 8e6 / elapsed
        down, up = (rate, up) if direction == "Download" else (down, rate)
        least = number_at(last, "MinRTT")
        rtt = rtt if least is None else least / 1e6
        sent, again = number_at(last, "BytesSent"), number_at(last, "BytesRetrans")
        if direction == "Download" and sent and again is not None:
            loss = again / sent
    if down is None and up is None:
        return "no measurement by the server"
    return (clock.epoch(str(value["StartTime"])), down, up, rtt, jitter, loss)


FORMATS = (Format("ndt7", "links", "M-Lab NDT7 results (JSON)", detect, read, family="ndt7"),)
