"""Failure Trace Archive, event_trace.tab: nodes' states, Unix start and stop; event_type 1 is available."""

from __future__ import annotations

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build
from testbed.traces.source import Sample, Source
from testbed.traces.times import EARLIEST, LATEST

_NEEDS = {"node_id", "event_type", "event_start_time"}


def _header(sample: Sample) -> list[str] | None:
    for line in sample.lines[:5]:
        names = line.lstrip("# ").lower().split()
        if set(names) >= _NEEDS:
            return names
    return None


def detect(sample: Sample) -> float:
    return 1.0 if _header(sample) else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report = source.report
    names = _header(source.sample)
    if names is None:
        raise report.error("has no header with node_id, event_type, event_start_time")
    at = {name: names.index(name) for name in names}
    stop_at = next((at[n] for n in ("event_stop_time", "event_end_time") if n in at), None)
    if stop_at is None:
        raise report.error("has no column event_stop_time")
    found: dict[str, list[tuple[float, float]]] = {}
    first = last = None
    for line, text in source.lines():
        cells = text.split()
        if not cells or text.lstrip().startswith("#") or [c.lower() for c in cells] == names:
            continue
        report.rows += 1
        try:
            if len(cells) <= max(stop_at, at["node_id"], at["event_type"], at["event_start_time"]):
                raise ValueError(f"{len(cells)} cells; expected {len(names)}")
            start, stop = float(cells[at["event_start_time"]]), float(cells[stop_at])
            if not EARLIEST <= start <= LATEST or not EARLIEST <= stop <= LATEST:
                raise ValueError(f"{start:g} to {stop:g} is no Unix time")
            if cells[at["event_type"]] not in ("0", "1"):
                raise ValueError(f"event_type {cells[at['event_type']]!r}; expected 0 or 1")
            if stop < start:
                raise ValueError(f"ends at {stop:g}, before it starts at {start:g}")
        except ValueError as error:
            report.repair("unreadable rows dropped", str(error), line)
            continue
        intervals = found.setdefault(f"node-{cells[at['node_id']]}", [])
        if cells[at["event_type"]] == "1" and stop > start:
            intervals.append((start, stop))
        first = start if first is None else min(first, start)
        last = stop if last is None else max(last, stop)
    if first is None:
        raise report.error("holds no readable event")
    return build(
        {n: np.array(i, dtype=float).reshape(-1, 2) for n, i in found.items()},
        report,
        span_s=last - first,
        origin_s=first,
        start_epoch_s=first,
    )


FORMATS = (Format("failure-trace-archive", "availability", "a Failure Trace Archive table", detect, read),)
