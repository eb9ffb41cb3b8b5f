"""Our own table of access links: written by `convert` and `generate`, read without any guess.

    # span_s: 86400
    time_s,home,download_mbps,upload_mbps,rtt_ms,jitter_ms,loss_pct
    0,home-1,52.1,9.8,14.2,0.3,0.02

Every column but the time carries its unit; home may be left out when there is one home.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.names import private
from testbed.traces.plan import RELATIVE, STAMP, Column, Plan, TimeColumns
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Layout, check_once
from testbed.traces.tabular import TableReader

_RATES = {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
COLUMNS: dict[str, tuple[str, float]] = {
    **{f"download_{u}": ("down_bps", k) for u, k in _RATES.items()},
    **{f"upload_{u}": ("up_bps", k) for u, k in _RATES.items()},
    **{f"rtt_{u}": ("rtt_s", k) for u, k in _TIMES.items()},
    **{f"jitter_{u}": ("jitter_s", k) for u, k in _TIMES.items()},
    "loss": ("loss", 1.0),
    "loss_pct": ("loss", 1e-2),
}
TIMES = ("time_s", "time")


def detect(sample: Sample) -> float:
    names = [c.lower() for c in sample.layout.header]
    known = sum(name in COLUMNS or name in (*TIMES, "home") for name in names)
    has_rate = any(n in COLUMNS and COLUMNS[n][0] in ("down_bps", "up_bps") for n in names)
    return 0.99 if has_rate and any(n in TIMES for n in names) and known == len(names) else 0.0


def read(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    layout, report = source.sample.layout, source.report
    plan = _plan(layout, report)
    reader = TableReader(source, options, layout, plan, records)
    records = reader.read()
    records.remarks = reader.remarks
    return records


def _plan(layout: Layout, report) -> Plan:
    header = layout.header
    names = [name.lower() for name in header]
    times = [i for i, name in enumerate(names) if name in TIMES]
    if len(times) != 1:
        raise report.error(
            f"has the columns {', '.join(header) or '(none)'}; expected one named time_s or time", layout.line
        )
    columns, seen = [], {}
    for i, name in enumerate(names):
        if name in COLUMNS:
            field, factor = COLUMNS[name]
            if field in seen:
                message = f"gives {field} twice ({seen[field]} and {header[i]}); expected once"
                raise report.error(message, layout.line, header[i])
            seen[field] = header[i]
            columns.append(Column(field, i, factor, header[i]))
        elif name not in (*TIMES, "home"):
            report.note(f"column {header[i]!r} is not used")
    if "down_bps" not in seen and "up_bps" not in seen:
        raise report.error("has no rate; expected download_mbps, upload_mbps (or _bps, _kbps, _gbps)")
    homes = (names.index("home"),) if "home" in names else ()
    used = {c.index for c in columns} | {times[0], *homes}
    check_once(layout, used, report)
    kind = RELATIVE if names[times[0]] == "time_s" else STAMP
    return Plan(
        tuple(columns),
        TimeColumns(kind, times[0], label=header[times[0]]),
        homes,
        width=len(header),
        zero="error",
        exact=True,
        private=tuple(private(header, used)),
    )


FORMATS = (Format("testbed", "links", "a testbed link table (CSV)", detect, read),)
