"""iperf3 `-J`: one rate an interval in bits_per_second, RTT in µs (sender), jitter in ms and loss in % (UDP).

The direction is the client's: a plain test is an upload, `-R` a download, `--bidir` both. iperf3 3.7 to 3.10
writes the key "sum" twice in each interval of `--bidir`, which "sender" tells apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.traces.formats import Format, Options
from testbed.traces.json_objects import objects
from testbed.traces.json_text import Repeated, RepeatedKey, get, number_at
from testbed.traces.records import NAN, LinkRecords
from testbed.traces.source import Sample, Source


def detect(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    if get(value, "start", "test_start") is not None or get(value, "intervals") is not None:
        return 1.0
    if get(value, "event") in ("start", "interval", "end") and get(value, "data") is not None:
        return 1.0
    if (
        isinstance(value, dict)
        and set(value) <= {"start", "end", "intervals", "error", "title"}
        and get(value, "error") is not None
    ):
        return 0.9
    return 0.9 if get(value, "start", "connected") is not None or get(value, "event") == "interval" else 0.0


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report
    records = records or LinkRecords(
        report,
        zero="outage",
        absolute=True,
        floor_bps=options.floor_bps,
        sparse=True,
        labels={"down_bps": "bits_per_second", "up_bps": "bits_per_second"},
    )
    report.drop("local_host, remote_host", "cookie", "system_info")
    found, told = 0, ""
    for line, document in _documents(objects(source)):
        if not isinstance(document, dict):
            raise report.error("is no iperf3 result; expected an object with 'start' and 'intervals'", line)
        if get(document, "error") and not get(document, "intervals"):
            report.rows += 1
            told = told or str(get(document, "error"))[:200]
            records.failed(line, str(get(document, "error"))[:80])
            continue
        found += 1
        _document(document, records, options.home or source.stem, report, line)
    if told and not found:
        raise report.error(f"holds no measurement, only iperf3's error: {told}")
    if not found and not report.failed:
        raise report.error("holds no iperf3 result; expected an object with 'intervals'")
    return records


def _documents(values: Iterator) -> Iterator:
    """Results as they are; the events of --json-stream ({"event": …, "data": …}) put together to results."""
    result: dict | None = None
    at = None
    for line, value in values:
        event, data = get(value, "event"), get(value, "data")
        if event is None or "data" not in value:
            yield line, value
            continue
        if event == "start" or result is None:
            if result is not None:
                yield at, result
            result, at = {"start": {}, "intervals": []}, line
        if event == "interval":
            result["intervals"].append(data)
        elif event == "error":
            result["error"] = data
        elif event in ("start", "end"):
            result[event] = data
    if result is not None:
        yield at, result


def _document(document: dict, records: LinkRecords, home: str, report, line) -> None:
    start = get(document, "start", "timestamp", "timesecs")
    if not isinstance(start, (int, float)) or isinstance(start, bool):
        start = 0.0
        records.absolute = False
    setup = get(document, "start", "test_start")
    reverse = bool(get(setup, "reverse"))
    hold = get(setup, "interval")
    intervals = get(document, "intervals")
    if not isinstance(intervals, list):
        raise report.error("has no list of intervals; expected the result of iperf3 -J", line)
    for k, interval in enumerate(intervals):
        try:
            _interval(interval, start, reverse, records, home, line)
        except RepeatedKey:
            raise
        except (ValueError, TypeError) as error:
            report.rows += 1
            report.repair("unreadable intervals dropped", f"interval {k + 1}: {str(error)[:80]}", line)
    if isinstance(hold, (int, float)) and hold > 0:
        records.hold_s = float(hold)
    if get(setup, "protocol") == "UDP" and intervals:
        # the sender learns jitter and loss at the end alone
        lost, jitter = (number_at(document, "end", "sum", key) for key in ("lost_percent", "jitter_ms"))
        if lost is not None or jitter is not None:
            report.rows -= 1  # not a row of its own
            records.add(
                line,
                home,
                start + (number_at(intervals[0], "sum", "start") or 0.0),
                jitter=NAN if jitter is None else jitter / 1e3,
                loss=NAN if lost is None else lost / 1e2,
            )


def _interval(interval: Any, start: float, reverse: bool, records: LinkRecords, home: str, line) -> None:
    total, back = _sums(interval)
    if total is None:
        streams = get(interval, "streams") or []
        if not streams:
            raise ValueError("has neither 'sum' nor 'streams'")
        total = {**streams[0], "bits_per_second": sum(number_at(s, "bits_per_second") or 0.0 for s in streams)}
    if get(total, "omitted"):
        return
    rate, at = number_at(total, "bits_per_second"), number_at(total, "start")
    if rate is None or at is None:
        raise ValueError("has no bits_per_second or no start")
    rtts = [r for r in (number_at(s, "rtt") for s in get(interval, "streams") or []) if r]
    down, up = (rate, NAN) if reverse else (NAN if back is None else back, rate)
    jitter, loss = number_at(total, "jitter_ms"), number_at(total, "lost_percent")
    records.add(
        line,
        home,
        start + at,
        down,
        up,
        sum(rtts) / len(rtts) / 1e6 if rtts else NAN,
        NAN if jitter is None else jitter / 1e3,
        NAN if loss is None else loss / 1e2,
    )


def _sums(interval: Any) -> tuple[Any, float | None]:
    """The interval's sum, and the rate of the other direction where the test has both."""
    if isinstance(interval, Repeated) and "sum" in interval.repeated:
        sums = {get(total, "sender"): total for total in interval.repeated["sum"]}
        if set(sums) != {True, False} or len(interval.repeated["sum"]) != 2:
            raise RepeatedKey("'sum' stands more than once, and 'sender' does not tell which is which")
        return sums[True], number_at(sums[False], "bits_per_second")
    return get(interval, "sum"), number_at(interval, "sum_bidir_reverse", "bits_per_second")


FORMATS = (Format("iperf3-json", "links", "iperf3 results (-J)", detect, read, family="iperf3"),)
