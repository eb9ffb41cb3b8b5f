"""Our own table of access links: written by `convert` and `generate`, read without any guess.

    # span_s: 86400
    time_s,home,download_mbps,upload_mbps,rtt_ms,jitter_ms,loss_pct
    0,home-1,52.1,9.8,14.2,0.3,0.02

Every column but the time carries its unit; home may be left out when there is one home.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.numbers import number
from testbed.traces.records import NAN, LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Table, sniff_delimiter, split
from testbed.traces.times import Clock

_RATES = {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
COLUMNS: dict[str, tuple[str, float]] = {
    **{f"download_{u}": ("down_bps", k) for u, k in _RATES.items()},
    **{f"upload_{u}": ("up_bps", k) for u, k in _RATES.items()},
    **{f"rtt_{u}": ("rtt_s", k) for u, k in _TIMES.items()},
    **{f"jitter_{u}": ("jitter_s", k) for u, k in _TIMES.items()},
    "loss": ("loss", 1.0), "loss_pct": ("loss", 1e-2),
}
_KEY = {"down_bps": "down", "up_bps": "up", "rtt_s": "rtt", "jitter_s": "jitter", "loss": "loss"}


def detect(sample: Sample) -> float:
    header = next((line for line in sample.lines if not line.startswith("#")), "")
    names = [c.lower() for c in split(header, sniff_delimiter([header]))]
    known = sum(name in COLUMNS or name in ("time", "time_s", "home") for name in names)
    has_rate = any(n in COLUMNS and COLUMNS[n][0] in ("down_bps", "up_bps") for n in names)
    has_time = "time" in names or "time_s" in names
    return 0.95 if has_rate and has_time and known >= 0.5 * len(names) else 0.0


def read(source: Source, options: Options) -> LinkRecords:
    report = source.report
    table = Table(source, sniff_delimiter(source.sample.lines))
    records = LinkRecords(report, zero="error")
    clock = Clock(report, options.zone)
    plan: list[tuple[int, str, float]] = []
    at_time = at_home = -1
    for line, cells in table.rows():
        if not plan:
            at_time, at_home, plan = _plan(table.header, report)
            records.absolute = table.header[at_time].lower() == "time"
            records.labels = {field: table.header[i] for i, field, _ in plan}
            records.labels["time"] = table.header[at_time]
        if len(cells) != len(table.header):
            if len(cells) < len(table.header) and _is_last(source, line):
                report.repair("last line cut short: dropped", line=line)
                continue
            raise report.error(f"has {len(cells)} cells; the header has {len(table.header)}", line)
        values = {}
        try:
            column = table.header[at_time]
            time = clock.epoch(cells[at_time]) if records.absolute else number(cells[at_time])
            if time is None:
                raise ValueError("is empty; expected a time")
            for i, field, factor in plan:
                column = table.header[i]
                value = number(cells[i])
                values[_KEY[field]] = NAN if value is None else value * factor
        except ValueError as error:
            raise report.error(str(error), line, column) from None
        home = cells[at_home] if at_home >= 0 else options.home or source.stem
        records.add(line, home, time, **values)
    if "span_s" in table.meta:
        try:
            records.span_s = number(table.meta["span_s"])
        except ValueError as error:
            raise report.error(f"span_s: {error}") from None
    return records


def _plan(header: list[str], report) -> tuple[int, int, list[tuple[int, str, float]]]:
    names = [name.lower() for name in header]
    times = [i for i, name in enumerate(names) if name in ("time_s", "time")]
    if len(times) != 1:
        raise report.error(f"has the columns {', '.join(header)}; expected one named time_s or time")
    plan, seen = [], {}
    for i, name in enumerate(names):
        if name in COLUMNS:
            field, factor = COLUMNS[name]
            if field in seen:
                raise report.error(f"gives {field} twice ({seen[field]} and {header[i]})")
            seen[field] = header[i]
            plan.append((i, field, factor))
        elif name not in ("time", "time_s", "home"):
            report.note(f"column {header[i]!r} is not used")
    if "down_bps" not in seen and "up_bps" not in seen:
        raise report.error("has no rate; expected download_mbps, upload_mbps (or _bps, _kbps, _gbps)")
    return times[0], names.index("home") if "home" in names else -1, plan


def _is_last(source: Source, line: int) -> bool:
    last = 0
    for number_, _, ended in source.byte_lines():
        last, unended = number_, not ended
    return last == line and unended


FORMATS = (Format("testbed", "links", "a testbed link table (CSV)", detect, read),)
