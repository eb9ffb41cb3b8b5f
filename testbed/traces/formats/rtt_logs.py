"""Logs of round trips alone: fping (-D -l, -c, -C, -Q), ping (-D), epoch, sequence and ms in bare columns, tables.

They hold RTT and losses but no rate, which comes from elsewhere: `links: {trace: rtt.txt, download: …, upload: …}`. A
loss is the share of WINDOW probes around it that were not answered.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from testbed.traces.formats import Format, Options
from testbed.traces.named import plan_by_names
from testbed.traces.names import recognise
from testbed.traces.numbers import number
from testbed.traces.records import NAN, LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.tabular import TableReader
from testbed.traces.times import EARLIEST, LATEST, Clock

WINDOW = 20  # probes
_PREFIX = r"(?:\[(?P<epoch>\d{9,10}(?:\.\d+)?)\]\s*)?"
_FPING = re.compile(
    _PREFIX + r"(?P<host>\S+)\s*: \[(?P<seq>\d+)\], "
    r"(?:\d+ bytes, (?P<rtt>[\d.]+) ms|(?P<lost>timed out|error)|(?P<rtt2>[\d.]+) ms)"
)
_FPING_SUMMARY = re.compile(
    _PREFIX + r"(?P<host>\S+)\s*: xmt/rcv/%loss = (?P<sent>\d+)/(?P<back>\d+)/[\d.]+%"
    r"(?:, min/avg/max = [\d.]+/(?P<rtt>[\d.]+)/[\d.]+)?"
)
_FPING_ROW = re.compile(_PREFIX + r"(?P<host>[^\s:]+)\s+: (?P<rtts>(?:(?:[\d.]+|-)(?:\s+|\Z)){2,})\s*\Z")
_PING = re.compile(
    _PREFIX
    + r"(?:\d+ bytes from (?P<host>\S+?):?(?: \(\S+\))?:? .*?icmp_seq=(?P<seq>\d+).*?time[=<](?P<rtt>[\d.]+) ?ms"
    r"|(?:no answer yet for|Request timeout for|From \S+ |.*?unreachable).*?icmp_seq[= ](?P<lost>\d+))"
)
_OF_LINES = (_FPING, _FPING_SUMMARY, _FPING_ROW, _PING)
_CLOCK_LINE = re.compile(r"\[(\d{2}:\d{2}:\d{2})\]\s*\Z")
Probe = tuple[int, str, float | None, float, float]  # line, host, time, rtt [s] or NaN, loss or NaN


def detect_lines(sample: Sample) -> float:
    lines = sample.lines[:100]
    return 0.98 if sum(any(p.match(line) for p in _OF_LINES) for line in lines) >= 0.5 * len(lines) and lines else 0.0


def read_lines(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report
    clock = Clock(report, options.zone, options.dates)
    hosts: dict[str, list[tuple[int, float | None, float, float]]] = {}
    absolute = True
    for line, host, time, rtt, loss in _probes(source, clock):
        report.rows += 1
        hosts.setdefault(host, []).append((line, time, rtt, loss))
        absolute = absolute and time is not None and time >= EARLIEST
    every = options.every_s or 1.0
    if any(time is None for probes in hosts.values() for _, time, _, _ in probes):
        report.assumed["time"] = f"a probe every {every:g} s (the file has no times; --every states another)"
    records = records or _records(report, absolute, options)
    for k, probes in enumerate(hosts.values(), 1):
        name = options.home or source.stem
        name = name if len(hosts) == 1 else f"{name}-{k}"
        timed = [(i * every if time is None else time, rtt, loss) for i, (_, time, rtt, loss) in enumerate(probes)]
        _add(records, name, timed)
    report.drop("addresses that were probed")
    return records


def _probes(source: Source, clock: Clock) -> Iterator[Probe]:
    now: float | None = None
    for line, text in source.lines():
        heading = _CLOCK_LINE.match(text.strip())
        if heading:
            now = clock.time_of_day(heading[1])
            continue
        match = next((m for p in _OF_LINES if (m := p.match(text.strip()))), None)
        if match is None:
            continue  # a summary, a heading, a resolver's message
        found = match.groupdict()
        time = float(found["epoch"]) if found["epoch"] else now
        host = found.get("host") or ""
        if "rtts" in found:
            for cell in found["rtts"].split():
                yield line, host, time, NAN if cell == "-" else float(cell) / 1e3, NAN
        elif "sent" in found:
            sent, back = int(found["sent"]), int(found["back"])
            if sent:
                yield line, host, time, float(found["rtt"]) / 1e3 if found["rtt"] else NAN, 1 - min(back, sent) / sent
        else:
            rtt = found.get("rtt") or found.get("rtt2")
            yield line, host, time, float(rtt) / 1e3 if rtt else NAN, NAN


def _records(report, absolute: bool, options: Options) -> LinkRecords:
    return LinkRecords(
        report, absolute=absolute, floor_bps=options.floor_bps, sparse=True, repeats=True,
        labels={"rtt_s": "RTT", "loss": "loss"},
    )  # fmt: skip


def _add(records: LinkRecords, home: str, probes: list[tuple[float, float, float]]) -> None:
    """Probes of (time, rtt or NaN, loss or NaN) in order; losses that are not stated from the unanswered ones."""
    lost = [rtt != rtt for _, rtt, _ in probes]
    for k, (time, rtt, loss) in enumerate(probes):
        first = min(max(0, k - WINDOW // 2), max(0, len(lost) - WINDOW))
        window = lost[first : first + WINDOW]
        if loss != loss and any(lost):
            loss = sum(window) / len(window)
        records.report.rows -= 1  # counted by the caller
        records.add(None, home, time, rtt=rtt, loss=loss)


def _columns(sample: Sample) -> bool:
    """Whether rows are epoch, sequence and ms: the first a Unix time, the second rising by ones, the third delays."""
    layout = sample.layout
    rows = [row for row in layout.rows[:300] if len(row) == 3]
    if layout.header or len(rows) < 5 or len(rows) < 0.9 * len(layout.rows[:300]):
        return False
    try:
        values = [[number(cell) for cell in row] for row in rows]
    except ValueError:
        return False
    if any(v[0] is None or v[1] is None or v[1] != int(v[1]) for v in values):
        return False
    steps = [b[1] - a[1] for a, b in zip(values, values[1:])]
    delays = [v[2] for v in values if v[2] is not None and v[2] > 0]
    return (
        all(EARLIEST <= v[0] <= LATEST for v in values)
        and sum(1 <= step <= 10 for step in steps) > 0.9 * len(steps)
        and bool(delays)
        and 0.5 <= statistics.median(delays) < 3000
        and sum("." in row[2] for row in rows) > 0.3 * len(rows)
    )


def detect_columns(sample: Sample) -> float:
    return 0.9 if _columns(sample) else 0.0


def read_columns(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report, layout = source.report, source.sample.layout
    from testbed.traces.table import split

    report.tell_guess("three columns without names are Unix time, sequence number and RTT in ms")
    probes: list[tuple[float, float, float]] = []
    before: tuple[float, int] | None = None
    for line, text in source.lines():
        if not text.strip() or text.startswith("#"):
            continue
        report.rows += 1
        try:
            time, sequence, delay = (number(cell) for cell in split(text, layout.delimiter))
            if time is None or sequence is None or not EARLIEST <= time <= LATEST:
                raise ValueError("has no time or no sequence number")
        except ValueError as error:
            report.repair("unreadable rows dropped", str(error)[:80], line)
            continue
        if before is not None and 1 < sequence - before[1] <= 1000:  # unanswered probes have no row
            gap = int(sequence - before[1])
            step = (time - before[0]) / gap
            probes += [(before[0] + step * k, NAN, NAN) for k in range(1, gap)]
            report.rows += gap - 1
        probes.append((time, NAN if delay is None or delay < 0 else delay / 1e3, NAN))
        before = time, int(sequence)
    records = records or _records(report, True, options)
    _add(records, options.home or source.stem, probes)
    return records


def detect_table(sample: Sample) -> float:
    layout = sample.layout
    fields = {n.field for n in recognise(layout.header, layout.rows[:50])} if layout.header else set()
    return 0.2 if "rtt_s" in fields and not fields & {"down_bps", "up_bps"} else 0.0


def read_table(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    layout = source.sample.layout
    plan = plan_by_names(layout, options, source.report, rates=False)
    return TableReader(source, options, layout, plan, records).read()


FORMATS = (
    Format("ping-log", "links", "RTT: output of ping or fping", detect_lines, read_lines),
    Format("rtt-columns", "links", "RTT: epoch, sequence and ms", detect_columns, read_columns),
    Format("rtt-table", "links", "RTT: a table with a named delay and no rate", detect_table, read_table),
)
