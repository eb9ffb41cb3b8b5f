"""What the columns of a table mean, from their names: 'Download (Mbit/s)', 'downlink_Mbps', 'ping' …"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.traces import units_of
from testbed.traces.numbers import with_unit


def _words_of(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


_FIELDS = {
    "time": _words_of(
        "timestamp, datetime, date time, date/time, time, t, ts, dtime, when, datetimestart, "
        "timestamp start, timestamp_start, start time, starttime, time s, time ms, epoch, unix, "
        "unixtime, date, day, test date, messzeitpunkt, datum, fecha, zeitstempel, test time, "
        "testtime, created at, measured at, local time, utc"
    ),
    "clock": _words_of("time, uhrzeit, hour, time of day, hora, clock"),
    "down_bps": _words_of(
        "download, dl, down, downlink, downstream, download speed, download rate, download bandwidth, "
        "speedtest dl, dl bitrate, down speed, downspeed, downloadspeed, downlink speed, avg d, "
        "descarga, throughput down, download throughput"
    ),
    "up_bps": _words_of(
        "upload, ul, up, uplink, upstream, upload speed, upload rate, upload bandwidth, speedtest ul, "
        "ul bitrate, up speed, upspeed, uploadspeed, uplink speed, avg u, subida, throughput up, "
        "upload throughput"
    ),
    "rtt_s": _words_of(
        "ping, latency, rtt, idle latency, laufzeit, pingavg, ping avg, rtt avg, avg rtt, round trip, "
        "round trip time, ping time, avg lat, latencia, min rtt, minrtt"
    ),
    "jitter_s": _words_of("jitter, idle jitter, ping jitter, jitter avg"),
    "loss": _words_of("loss, packet loss, packetloss, pktloss, lost, ping loss, pingloss, loss rate, packet loss rate"),
    "home": _words_of(
        "home, home id, unit id, unit, house, household, device, device id, node, install, site, "
        "probe, probe id, prb id, line, user, user id, host, hostname, client, client id, customer, "
        "email"
    ),
}
_AVERAGES = ("average", "avg", "mean", "time", "ms")
_CLOSE = {field: [name.replace(" ", "") for name in names] for field, names in _FIELDS.items()}
_PRIVATE = re.compile(
    r"^(?:lat|lon|lng|long)$"
    r"|(?:^|[ _])(?:ip|ips|ipv4|ipv6|address|addr|isp|isprv|ipext|iphost|share|url|link|latitude|longitude"
    r"|ssid|bssid|mac|imei|imsi|location|ue location|city|state|zip|postcode|email|sponsor|server name|host"
    r"|carrier|operatorname|cellid|provider|test id|testid|quadkey|tile|geo)(?:$|[ _])|(?:ip|url|ssid|mac)$"
)
_UNIT_AT_END = re.compile(r"[(\[]\s*([^)\]]+?)\s*[)\]]\s*\Z|\s+in\s+(\S+)\s*\Z|[\s_]([A-Za-zµ%/]+)\Z")


# Columns that tell homes apart by a name that says whose they are: numbered on reading
PERSONAL = ("user", "user id", "host", "hostname", "client", "client id", "customer", "email")


LONGEST_NAME = 80  # characters; a longer header cell is no name, and would keep the patterns busy


@dataclass(frozen=True)
class Named:
    """One recognised column. unit: as written in the header, or None."""

    field: str
    index: int
    unit: str | None
    name: str


def recognise(header: tuple[str, ...], rows: Sequence[Sequence[str]] = ()) -> list[Named]:
    """The columns of a header whose names are known; of several for one quantity, one with a unit.

    rows: of a sample. A column whose cells state their unit ('15ms', '0.0%', '8.2 Mb/s') is known by a name that is
    nearly right, too ('packketloss'), and one of delays by 'average'.
    """
    found: dict[str, Named] = {}
    for index, name in enumerate(header):
        named = _one(index, name)
        if named is None:
            continue
        known = found.get(named.field)
        if named.field == "time" and known is not None and _words(name) == "time":
            found.setdefault("clock", Named("clock", index, None, name))
        elif known is None or (known.unit is None and named.unit is not None):
            found[named.field] = named
    taken = {named.index for named in found.values()}
    for index, name in enumerate(header):
        if index not in taken and len(name) <= LONGEST_NAME:
            field = _by_cells(name, [row[index] for row in rows if index < len(row)])
            if field is not None:
                found.setdefault(field, Named(field, index, None, name))
    return list(found.values())


def _by_cells(name: str, cells: list[str]) -> str | None:
    """The quantity of a column by the units of its cells and a name that is nearly one of a quantity's."""
    units = [pair[1] for pair in map(with_unit, cells) if pair]
    if not units or len(units) < 0.5 * sum(bool(cell.strip()) for cell in cells):
        return None
    plain = _words(name)
    for field, factor in units_of.FACTORS.items():
        if factor(units[0]) is None:
            continue
        if field == "rtt_s" and plain in _AVERAGES:
            return field
        if difflib.get_close_matches(plain.replace(" ", ""), _CLOSE[field], n=1, cutoff=0.8):
            return field
    return None


def private(header: tuple[str, ...], used: set[int]) -> list[str]:
    """The names of columns that hold personal or identifying data."""
    return [
        name
        for i, name in enumerate(header)
        if i not in used and len(name) <= LONGEST_NAME and _PRIVATE.search(_words(name))
    ]


def _one(index: int, name: str) -> Named | None:
    if len(name) > LONGEST_NAME:
        return None
    plain = _words(name)
    for field, names in _FIELDS.items():
        if plain in names and field != "clock":
            return Named(field, index, None, name)
    if plain == "uhrzeit":
        return Named("clock", index, None, name)
    match = _UNIT_AT_END.search(name.strip())
    if not match:
        return None
    unit = match[1] or match[2] or match[3]
    stem = _words(name.strip()[: match.start()])
    for field, names in _FIELDS.items():
        if stem in names and field in units_of.FACTORS and units_of.factor(field, unit) is not None:
            return Named(field, index, unit, name)
        if stem in names and field == "time" and units_of.time_factor(unit) is not None:
            return Named(field, index, unit, name)
    return None


def _words(name: str) -> str:
    """Lower case, words apart: 'Download_Speed' and 'downloadSpeed' -> 'download speed'."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.strip().strip("\"'"))
    return " ".join(re.sub(r"[_\-.]+", " ", spaced).lower().split())


def is_personal(name: str) -> bool:
    """Whether a column of homes' names says whose they are."""
    return _words(name) in PERSONAL
