"""Our own table of availability: one row an interval during which a device may be used.

    # span_s: 86400
    device,start_s,end_s
    phone-1,3600,21600

A device that is never available has one row with start and end empty.
"""

from __future__ import annotations

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build
from testbed.traces.numbers import number
from testbed.traces.source import Sample, Source
from testbed.traces.table import Table, sniff_delimiter, split

HEADER = ("device", "start_s", "end_s")


def detect(sample: Sample) -> float:
    header = next((line for line in sample.lines if not line.startswith("#")), "")
    names = [c.lower() for c in split(header, sniff_delimiter([header]))]
    return 1.0 if set(HEADER) <= set(names) else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report = source.report
    table = Table(source, sniff_delimiter(source.sample.lines))
    found: dict[str, list[tuple[float, float]]] = {}
    at: list[int] = []
    for line, cells in table.rows():
        if not at:
            names = [name.lower() for name in table.header]
            for name in HEADER:
                if name not in names:
                    raise report.error(f"has the columns {', '.join(table.header)}; "
                                       f"expected {', '.join(HEADER)}")
            at = [names.index(name) for name in HEADER]
        if len(cells) != len(table.header):
            raise report.error(f"has {len(cells)} cells; the header has {len(table.header)}", line)
        device, texts = cells[at[0]], [cells[i] for i in at[1:]]
        report.rows += 1
        if not device:
            raise report.error("is empty; expected a device's name", line, "device")
        intervals = found.setdefault(device, [])
        if texts == ["", ""]:
            continue
        edges = []
        for name, text in zip(HEADER[1:], texts):
            try:
                value = number(text)
            except ValueError as error:
                raise report.error(str(error), line, name) from None
            if value is None or value < 0:
                raise report.error(f"{text!r}; expected seconds from 0 on", line, name)
            edges.append(value)
        if edges[1] <= edges[0]:
            raise report.error(f"{edges[1]:g} is not after the start, {edges[0]:g}", line, "end_s")
        intervals.append((edges[0], edges[1]))
    span = None
    if "span_s" in table.meta:
        try:
            span = number(table.meta["span_s"])
        except ValueError as error:
            raise report.error(f"span_s: {error}") from None
    return build({d: np.array(i, dtype=float).reshape(-1, 2) for d, i in found.items()}, report, span_s=span)


FORMATS = (
    Format("testbed-availability", "availability", "a testbed availability table (CSV)", detect, read),
)
