"""Write traces in our own formats. SI units keep every bit; readable units are for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TextIO

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace
from testbed.traces.remarks import exact, write_common, write_own

SI = ("download_bps", "upload_bps", "rtt_s", "jitter_s", "loss")
READABLE = ("download_mbps", "upload_mbps", "rtt_ms", "jitter_ms", "loss_pct")
_FACTORS = (1e-6, 1e-6, 1e3, 1e3, 1e2)
_ROWS = 50_000  # formatted at a time


def write_links(
    traces: Mapping[str, LinkTrace], out: TextIO, *, readable: bool = False, comments: tuple[str, ...] = ()
) -> None:
    """All homes in one table, home after home. readable: Mbit/s, ms and % to 4 significant digits."""
    for line in comments:
        out.write(f"# {line}\n")
    left = write_common(traces.values(), out)
    out.write(",".join(("time_s", "home", *(READABLE if readable else SI))) + "\n")
    for home, trace in traces.items():
        write_own(home, trace, left, out)
        name = quoted(home)
        columns = (trace.down_bps, trace.up_bps, trace.rtt_s, trace.jitter_s, trace.loss)
        for k in range(0, len(trace), _ROWS):
            times = map(exact, trace.times_s[k : k + _ROWS].tolist())
            if readable:
                cells = [_each(c[k : k + _ROWS] * f, "{:.4g}".format) for c, f in zip(columns, _FACTORS)]
            else:
                cells = [_each(c[k : k + _ROWS], exact) for c in columns]
            out.writelines(f"{t},{name},{','.join(row)}\n" for t, *row in zip(times, *cells))


def write_availability(traces: Mapping[str, Availability], out: TextIO, *, comments: tuple[str, ...] = ()) -> None:
    """All devices in one table; a device that is never available has a row of empty times."""
    for line in comments:
        out.write(f"# {line}\n")
    left = write_common(traces.values(), out)
    out.write("device,start_s,end_s\n")
    for device, trace in traces.items():
        write_own(device, trace, left, out)
        name = quoted(device)
        out.writelines(f"{name},{exact(a)},{exact(b)}\n" for a, b in trace.intervals_s.tolist())
        if not len(trace.intervals_s):
            out.write(f"{name},,\n")


def _each(values: np.ndarray, text: Callable[[float], str]) -> list[str]:
    if values.dtype == np.float32:  # nine digits tell any two of them apart
        text = "{:.9g}".format
    return [text(v) for v in values.tolist()]


def quoted(name: str) -> str:
    """A name as a CSV cell; one that would begin a comment is quoted too."""
    plain = not any(c in name for c in ',;|\t"') and not name.startswith("#")
    return name if plain else '"' + name.replace('"', '""') + '"'
