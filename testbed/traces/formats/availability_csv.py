"""Tables of intervals during which devices may be used: our own, and others of the kind.

    # span_s: 86400
    device,start_s,end_s
    phone-1,3600,21600

A device that is never available has one row with start and end empty. Other tables have columns named start
and end (Unix times, dates or seconds), perhaps a device. A column that speaks of outages turns their sense
round; a column `state` needs a rule: --rule 'state = charging'.
"""

from __future__ import annotations

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build
from testbed.traces.numbers import number
from testbed.traces.remarks import Remarks
from testbed.traces.rules import Rule
from testbed.traces.source import Sample, Source
from testbed.traces.table import check_once, split
from testbed.traces.times import Clock, is_stamp, iso
from testbed.units import CENTURY_S

HEADER = ("device", "start_s", "end_s")
_DEVICE = ("device", "device_id", "node", "node_id", "host", "client", "client_id", "id", "user", "unit_id", "name")
_START = ("start_s", "start", "start_time", "begin", "from", "on")
_END = ("end_s", "end", "end_time", "stop", "to", "off")


def _columns(header) -> dict[str, int] | None:
    names = [name.lower().strip() for name in header]
    found = {}
    for key, known in (("device", _DEVICE), ("start", _START), ("end", _END)):
        at = next((names.index(n) for n in known if n in names), None)
        if at is not None:
            found[key] = at
    if "state" in names:
        found["state"] = names.index("state")
    return found if "start" in found and "end" in found else None


def detect(sample: Sample) -> float:
    names = tuple(n.lower() for n in sample.layout.header)
    if names == HEADER:
        return 1.0
    return 0.85 if _columns(sample.layout.header) else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report, layout = source.report, source.sample.layout
    where = _columns(layout.header)
    if where is None:
        raise report.error(f"has the columns {', '.join(layout.header) or '(none)'}; expected {', '.join(HEADER)}")
    check_once(layout, where.values(), report)
    rule = Rule.parse(options.rule, report.path) if options.rule else None
    if "state" in where and rule is None:
        states = sorted({row[where["state"]] for row in layout.rows if len(row) > where["state"]})
        raise report.error(
            f"has intervals of the states {', '.join(states[:8])}; which one is available?",
            hint=f"say it: --rule 'state = {states[0] if states else 'NAME'}'",
        )
    remarks = Remarks(report)
    found, absolute = _intervals(source, options, where, rule, remarks)
    raw = {d: np.array(i, dtype=float).reshape(-1, 2) for d, i in found.items()}
    origin = min((float(i[:, 0].min()) for i in raw.values() if len(i)), default=0.0) if absolute else 0.0
    if absolute:
        report.note(f"times are counted from {iso(origin)}")
    outages = any("offline" in n.lower() or "outage" in n.lower() for n in layout.header)
    spans = {d: remarks.span(d) for d in raw} if remarks.spans else None
    starts = {d: origin if absolute else remarks.start(d) for d in raw}
    return build(raw, report, span_s=spans, origin_s=origin, start_epoch_s=starts, outages=outages)


def _intervals(source: Source, options: Options, where: dict[str, int], rule: Rule | None, remarks: Remarks):
    report, layout = source.report, source.sample.layout
    exact = tuple(n.lower() for n in layout.header) == HEADER
    clock = Clock(report, options.zone, options.dates)
    clock.learn(row[where["start"]] for row in layout.rows if len(row) > where["start"])
    found: dict[str, list[tuple[float, float]]] = {}
    absolute: bool | None = None
    header_seen = False
    for line, raw, ended in source.byte_lines():
        text = source.decode(raw, line)
        if text.startswith("#"):
            remarks.read(text, line)
        if not text.strip() or text.startswith("#"):
            continue
        cells = split(text, layout.delimiter)
        if tuple(cells) == layout.header:
            if header_seen:
                report.repair("header repeated in the middle: skipped", line=line)
            header_seen = True
            continue
        report.rows += 1
        if len(cells) != len(layout.header):
            if not ended and len(cells) < len(layout.header):
                report.repair("last line cut short: dropped", text[:60], line)
                continue
            raise report.error(f"has {len(cells)} cells; the header has {len(layout.header)}", line)
        device = cells[where["device"]] if "device" in where else options.home or source.stem
        if not device:
            raise report.error("is empty; expected a device's name", line, layout.header[where["device"]])
        if rule is not None and not rule.holds({"state": cells[where["state"]]} if "state" in where else {}):
            found.setdefault(device, [])
            continue
        intervals = found.setdefault(device, [])
        texts = [cells[where["start"]], cells[where["end"]]]
        if texts == ["", ""] and exact:
            continue
        edges = []
        for key, cell in zip(("start", "end"), texts):
            column = layout.header[where[key]]
            try:
                if absolute is None:
                    absolute = not exact and is_stamp(cell)
                value = clock.epoch(cell) if absolute else number(cell)
            except ValueError as error:
                expected = "" if absolute else "; expected seconds from 0 on"
                raise report.error(f"{error}{expected}", line, column) from None
            if value is None or value < 0 or (not absolute and value > CENTURY_S):
                raise report.error(f"{cell!r}; expected seconds from 0 on, less than a century", line, column)
            edges.append(value)
        if edges[1] <= edges[0]:
            raise report.error(f"{edges[1]:g} is not after the start, {edges[0]:g}", line, layout.header[where["end"]])
        intervals.append((edges[0], edges[1]))
    return found, bool(absolute)


FORMATS = (Format("testbed-availability", "availability", "a table of intervals (device, start, end)", detect, read),)
