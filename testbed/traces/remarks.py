"""Comment lines of our own formats that say what rows can't, such as '# span_s: 86400'."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TextIO

from testbed.traces.numbers import number
from testbed.traces.report import Report
from testbed.traces.times import Clock, iso
from testbed.units import CENTURY_S

_REMARK = re.compile(r"#\s*(span_s|start)(?: of (.{1,200}))?:\s*(\S+)\s*\Z")


class Remarks:
    """Spans [s] and Unix times of time 0, for all traces (under the name None) and for single ones."""

    def __init__(self, report: Report):
        self.report = report
        self.spans: dict[str | None, float] = {}
        self.starts: dict[str | None, float] = {}

    def read(self, line: str, where: int) -> None:
        """Take in a comment line.

        Raises:
            InputError: it states a span or a start that is none.
        """
        match = _REMARK.match(line)
        if not match:
            return
        key, name, text = match.groups()
        try:
            if key == "start":
                self.starts[name] = Clock(self.report).epoch(text)
                return
            span = number(text)
        except ValueError as error:
            raise self.report.error(f"{key}: {error}", where) from None
        if span is None or not 0 < span <= CENTURY_S:
            raise self.report.error(f"span_s: {text!r}; expected seconds above 0, at most a century", where)
        self.spans[name] = span

    def span(self, name: str) -> float | None:
        return self.spans.get(name, self.spans.get(None))

    def start(self, name: str) -> float | None:
        return self.starts.get(name, self.starts.get(None))


def write_common(traces: Iterable, out: TextIO) -> Mapping[str, bool]:
    """Write what all traces share; says which of 'span_s' and 'start' are left to be said for each."""
    traces = list(traces)
    spans, starts = {t.span_s for t in traces}, {t.start_epoch_s for t in traces}
    if len(spans) == 1:
        out.write(f"# span_s: {exact(spans.pop())}\n")
    if len(starts) == 1 and None not in starts:
        out.write(f"# start: {iso(starts.pop())}\n")
    return {"span_s": len(spans) > 1, "start": len(starts) > 1}


def write_own(name: str, trace, left: Mapping[str, bool], out: TextIO) -> None:
    """Write what is left to be said for one trace."""
    if left["span_s"]:
        out.write(f"# span_s of {name}: {exact(trace.span_s)}\n")
    if left["start"] and trace.start_epoch_s is not None:
        out.write(f"# start of {name}: {iso(trace.start_epoch_s)}\n")


def exact(value: float) -> str:
    """The shortest text that reads back as the same float."""
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(value)
