"""Write traces in our own formats. SI units keep every bit; readable units are for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace
from testbed.traces.times import iso

SI = ("download_bps", "upload_bps", "rtt_s", "jitter_s", "loss")
READABLE = ("download_mbps", "upload_mbps", "rtt_ms", "jitter_ms", "loss_pct")
_FACTORS = (1e-6, 1e-6, 1e3, 1e3, 1e2)


def write_links(
    traces: Mapping[str, LinkTrace], out: TextIO, *, readable: bool = False, comments: tuple[str, ...] = ()
) -> None:
    """All homes in one table, home after home. readable: Mbit/s, ms and % to 4 significant digits."""
    _comments(out, traces.values(), comments)
    out.write(",".join(("time_s", "home", *(READABLE if readable else SI))) + "\n")
    for home, trace in traces.items():
        name = quoted(home)
        columns = [trace.down_bps, trace.up_bps, trace.rtt_s, trace.jitter_s, trace.loss]
        for t, *values in zip(trace.times_s.tolist(), *(c.tolist() for c in columns)):
            if readable:
                cells = [f"{v * k:.4g}" for v, k in zip(values, _FACTORS)]
            else:
                cells = [exact(v) for v in values]
            out.write(f"{exact(t)},{name},{','.join(cells)}\n")


def write_availability(
    traces: Mapping[str, Availability], out: TextIO, *, comments: tuple[str, ...] = ()
) -> None:
    """All devices in one table; a device that is never available has a row of empty times."""
    _comments(out, traces.values(), comments)
    out.write("device,start_s,end_s\n")
    for device, trace in traces.items():
        name = quoted(device)
        for start, stop in trace.intervals_s.tolist():
            out.write(f"{name},{exact(start)},{exact(stop)}\n")
        if not len(trace.intervals_s):
            out.write(f"{name},,\n")


def _comments(out: TextIO, traces, comments: tuple[str, ...]) -> None:
    traces = list(traces)
    for line in comments:
        out.write(f"# {line}\n")
    spans = {t.span_s for t in traces}
    if len(spans) == 1:
        out.write(f"# span_s: {exact(spans.pop())}\n")
    starts = {t.start_epoch_s for t in traces}
    if len(starts) == 1 and None not in starts:
        out.write(f"# start: {iso(starts.pop())}\n")


def exact(value: float) -> str:
    """The shortest text that reads back as the same float."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(c in name for c in ',";|\t') else name
