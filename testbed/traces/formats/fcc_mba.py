"""FCC Measuring Broadband America, raw tables by SamKnows: rates in bytes/s, times in µs, homes by unit_id.

curr_httpgetmt (download), curr_httppostmt (upload), curr_udplatency, curr_ping (RTT, loss), curr_udpjitter.
A speed test has one row for each second (`sequence`), whose bytes_sec runs on to the test's result: the last
row of a test counts. Name the folder to read them together. Headers may be missing or begin with '#'.
"""

from __future__ import annotations

from testbed.traces.table import Layout, is_value
from testbed.traces.table_format import TableFormat
from testbed.traces.times import is_stamp

_THROUGHPUT = (
    "unit_id",
    "dtime",
    "target",
    "address",
    "fetch_time",
    "bytes_total",
    "bytes_sec",
    "bytes_sec_interval",
    "warmup_time",
    "warmup_bytes",
    "sequence",
    "threads",
    "successes",
    "failures",
    "location_id",
)
_LATENCY = (
    "unit_id",
    "dtime",
    "target",
    "rtt_avg",
    "rtt_min",
    "rtt_max",
    "rtt_std",
    "successes",
    "failures",
    "location_id",
)


def _unheaded(names: tuple[str, ...], widths: tuple[int, ...]):
    def where(layout: Layout) -> dict[str, int] | None:
        rows = [
            r
            for r in layout.rows[:50]
            if len(r) in widths
            and r[0].isdigit()
            and is_stamp(r[1])
            and not r[1].isdigit()
            and not is_value(r[2])
            and len(r[1]) >= 19
        ]
        if not rows or len(rows) < 0.9 * len(layout.rows[:50]):
            return None
        if names is _LATENCY and not all(all(c.isdigit() or not c for c in r[3:9]) for r in rows):
            return None
        return {name: i for i, name in enumerate(names[: len(rows[0])])}

    return where


def _throughput(name: str, title: str, field: str, hint: str) -> TableFormat:
    class Direction(TableFormat):
        def detect(self, sample):
            return super().detect(sample) + (0.04 if hint in sample.name.lower() else 0.0)

    return Direction(
        name,
        title,
        needs=("unit_id", "dtime", "bytes_sec", "sequence", "fetch_time", "threads"),
        columns={field: (("bytes_sec",), "bytes/s")},
        time=(("dtime",),),
        homes=("unit_id",),
        alive="successes",
        repeats=True,
        sparse=True,
        drops=("address", "target", "location_id"),
        family="fcc",
        unheaded=_unheaded(_THROUGHPUT, (14, 15)),
    )


DOWNLOAD = _throughput("fcc-httpgetmt", "FCC MBA downloads (curr_httpgetmt)", "down_bps", "get")
UPLOAD = _throughput("fcc-httppostmt", "FCC MBA uploads (curr_httppostmt)", "up_bps", "post")
LATENCY = TableFormat(
    "fcc-latency",
    "FCC MBA latency (curr_udplatency, curr_ping)",
    needs=("unit_id", "dtime", "rtt_avg", "rtt_std"),
    columns={"rtt_s": (("rtt_avg",), "us")},
    time=(("dtime",),),
    homes=("unit_id",),
    alive="successes",
    loss_pair=("failures", "successes"),
    sparse=True,
    drops=("target", "location_id"),
    family="fcc",
    unheaded=_unheaded(_LATENCY, (9, 10)),
)
JITTER = TableFormat(
    "fcc-udpjitter",
    "FCC MBA jitter (curr_udpjitter)",
    needs=("unit_id", "dtime", "jitter_up", "jitter_down"),
    columns={"jitter_s": (("jitter_down",), "us"), "rtt_s": (("latency",), "us")},
    time=(("dtime",),),
    homes=("unit_id",),
    alive="successes",
    sparse=True,
    drops=("target", "location_id"),
    family="fcc",
)

FORMATS = tuple(f.format() for f in (DOWNLOAD, UPLOAD, LATENCY, JITTER))
