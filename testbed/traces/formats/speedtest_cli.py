"""speedtest-cli (sivel/speedtest-cli): `--csv`, with or without its header. Rates are bit/s, ping is ms.

Columns: Server ID, Sponsor, Server Name, Timestamp, Distance, Ping, Download, Upload, and from version 2
Share, IP Address. A failed test leaves an error message, an empty line or zeros.
"""

from __future__ import annotations

from testbed.traces.formats import Format, Options
from testbed.traces.numbers import number
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import Table, split
from testbed.traces.times import Clock

COLUMNS = ("Server ID", "Sponsor", "Server Name", "Timestamp", "Distance", "Ping", "Download", "Upload",
           "Share", "IP Address")
_TIME, _PING, _DOWN, _UP = 3, 5, 6, 7


def detect(sample: Sample) -> float:
    for line in sample.lines[:20]:
        cells = split(line)
        if tuple(cells) in (COLUMNS, COLUMNS[:8]):
            return 1.0
        if (len(cells) in (8, 10) and cells[0].isdigit() and _is_stamp(cells[_TIME])
                and _are_numbers(cells[4:8])):
            return 0.9
    return 0.0


def _is_stamp(cell: str) -> bool:
    return len(cell) >= 19 and cell[4:5] == "-" and cell[10:11] == "T"


def _are_numbers(cells) -> bool:
    try:
        return all(number(cell) is not None for cell in cells)
    except ValueError:
        return False


def read(source: Source, options: Options) -> LinkRecords:
    report = source.report
    records = LinkRecords(report, zero="failed", absolute=True, labels={
        "down_bps": "Download", "up_bps": "Upload", "rtt_s": "Ping", "time": "Timestamp"})
    clock = Clock(report, options.zone)
    home = options.home or source.stem
    table = Table(source)
    for line, cells in table.rows(has_header=False):
        if tuple(cells[:8]) == COLUMNS[:8]:
            if report.rows:
                report.repair("header repeated in the middle: skipped", line=line)
            if len(cells) > 8:
                report.drop("IP Address", "Share")
            continue
        if len(cells) not in (8, 10):
            report.rows += 1
            records.failed(line, ",".join(cells)[:60])
            continue
        if len(cells) == 10:
            report.drop("IP Address", "Share")
        column = "Timestamp"
        try:
            time = clock.epoch(cells[_TIME])
            values = []
            for i in (_DOWN, _UP, _PING):
                column = COLUMNS[i]
                values.append(number(cells[i]))
        except ValueError as error:
            raise report.error(str(error), line, column) from None
        down, up, ping = values
        if down is None or up is None or ping is None:
            report.rows += 1
            records.failed(line, "empty value")
            continue
        records.add(line, home, time, down, up, ping / 1e3)
    report.drop("Server Name", "Sponsor")
    return records


FORMATS = (Format("speedtest-cli-csv", "links", "a speedtest-cli log (--csv)", detect, read),)
