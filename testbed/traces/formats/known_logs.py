"""Logs of tools and data sets whose header leaves the units to their documentation."""

from __future__ import annotations

from testbed.traces.table import Layout, is_value
from testbed.traces.table_format import TableFormat
from testbed.traces.times import is_stamp

NETRICS = TableFormat(
    "netrics",
    "a Netrics export",
    needs=("time", "speedtest_ookla_download", "speedtest_ookla_upload"),
    columns={
        "down_bps": (("speedtest_ookla_download",), "Mbit/s"),
        "up_bps": (("speedtest_ookla_upload",), "Mbit/s"),
        "rtt_s": (("speedtest_ookla_latency",), "ms"),
        "jitter_s": (("speedtest_ookla_jitter",), "ms"),
        "loss": (("speedtest_ookla_pktloss2", "speedtest_ookla_pktloss"), "%"),
    },
    time=(("time",),),
    homes=("install",),
    sparse=True,
)

# G-NetTrack (Android): kbit/s and ms; 0 is a second without traffic; '-' where no ping was under way
GNETTRACK = TableFormat(
    "g-nettrack",
    "a G-NetTrack log",
    needs=("Timestamp", "DL_bitrate", "UL_bitrate", "NetworkMode"),
    columns={
        "down_bps": (("DL_bitrate",), "kbit/s"),
        "up_bps": (("UL_bitrate",), "kbit/s"),
        "rtt_s": (("PINGAVG",), "ms"),
        "jitter_s": (("PINGSTDEV",), "ms"),
        "loss": (("PINGLOSS",), "%"),
    },
    time=(("Timestamp",),),
    zero="outage",
    sparse=True,
    repeats=True,
    drops=("Longitude", "Latitude", "Operatorname", "CellID"),
)


def _tespeed(layout: Layout) -> dict[str, int] | None:
    rows = [
        r
        for r in layout.rows[:20]
        if len(r) == 5 and is_stamp(r[0]) and r[3] in ("Mbit", "Mbit/s") and is_value(r[1]) and is_value(r[2])
    ]
    return {"time": 0, "down": 1, "up": 2, "unit": 3, "servers": 4} if rows else None


TESPEED = TableFormat(
    "tespeed",
    "a tespeed log",
    needs=("time", "down", "up", "unit", "servers"),
    columns={"down_bps": (("down",), "Mbit/s"), "up_bps": (("up",), "Mbit/s")},
    time=(("time",),),
    unheaded=_tespeed,
    drops=("servers",),
)

FORMATS = tuple(f.format() for f in (NETRICS, GNETTRACK, TESPEED))
