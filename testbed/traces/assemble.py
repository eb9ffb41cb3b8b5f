"""From a file's rows to one trace per home: order, duplicates, gaps in columns, defaults, plausibility."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from testbed import units
from testbed.traces.links import LinkTrace
from testbed.traces.records import FIELDS, PLAUSIBLE_BPS, PLAUSIBLE_S, SMALLEST_BPS, LinkRecords

ALIGNMENTS = ("clock", "home")


@dataclass(frozen=True)
class Defaults:
    """Used where a file has nothing at all to say about a quantity of a home."""

    rtt_s: float = 0.020
    jitter_s: float = 0.0
    loss: float = 0.0
    up_per_down: float = 1.0  # of a one-directional file


def assemble(records: LinkRecords, defaults: Defaults, align: str = "clock") -> dict[str, LinkTrace]:
    """The traces in `records`, by home, in order of appearance.

    align: 'clock' gives all homes of the file one time zero, the earliest sample; 'home' starts each at
    its own first sample.

    Raises:
        InputError: no home has a usable row.
    """
    report = records.report
    if not len(records):
        raise report.error(f"holds no usable measurement ({report.rows} rows, {report.failed} failed tests)")
    times = np.frombuffer(records.times, dtype=np.float64)
    columns = {name: np.frombuffer(records.columns[name], dtype=np.float64) for name in FIELDS}
    codes = np.frombuffer(records.codes, dtype=np.intc)
    origin = float(times.min()) if records.absolute else min(0.0, float(times.min()))
    if not records.absolute and origin < 0:
        raise report.error(f"has the negative time {origin:g} s; expected times from 0 on", column="time")
    if len(records.homes) > 1:
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(records.homes) + 1))
        groups = [order[bounds[k]:bounds[k + 1]] for k in range(len(records.homes))]
    else:
        groups = [slice(None)]
    traces = {}
    for home, rows in zip(records.homes, groups):
        zero = origin if align == "clock" else float(times[rows].min())
        traces[home] = _one(home, times[rows] - zero, {k: c[rows] for k, c in columns.items()},
                            zero if records.absolute else None, records, defaults)
    if align == "clock" and len(traces) > 1 and records.span_s is None:
        span = max(trace.span_s for trace in traces.values())
        traces = {home: replace(trace, span_s=span) for home, trace in traces.items()}
    _plausibility(columns, report)
    return traces


def _one(home, times, columns, start, records, defaults) -> LinkTrace:
    report = records.report
    backwards = int((np.diff(times) < 0).sum())
    if backwards:
        report.repair("rows out of time order: sorted", f"home {home}", count=backwards)
        order = np.argsort(times, kind="stable")
        times, columns = times[order], {k: c[order] for k, c in columns.items()}
    keep = np.append(np.diff(times) > 0, True)
    if not keep.all():
        report.repair("several rows at one time: the last one kept", f"home {home}", count=int((~keep).sum()))
        times, columns = times[keep], {k: c[keep] for k, c in columns.items()}
    columns = _filled(home, columns, report, defaults)
    steps = np.diff(times)
    hold = records.hold_s or (float(np.median(steps)) if len(steps) else 1.0)
    if times[0] > 0:  # the clock starts before this home's first sample
        times = np.insert(times, 0, 0.0)
        columns = {k: np.insert(c, 0, c[0]) for k, c in columns.items()}
    span = float(times[-1]) + hold
    if records.span_s is not None:
        if records.span_s <= times[-1]:
            raise report.error(f"states span_s {records.span_s:g} but has a row at {times[-1]:g} s")
        span = records.span_s
    return LinkTrace(home, times, **columns, span_s=span, start_epoch_s=start, source=report.path)


def _filled(home: str, columns: dict, report, defaults: Defaults) -> dict:
    """No NaN left: held from the last row that had the value, or by default where no row had it."""
    out, n = {}, len(columns["rtt_s"])
    empty = {name: bool(np.isnan(c).all()) for name, c in columns.items()}
    for name, column in columns.items():
        gaps = np.isnan(column)
        if gaps.any() and not empty[name]:
            filled_from = np.maximum.accumulate(np.where(gaps, -1, np.arange(n)))
            filled_from[filled_from < 0] = int(np.argmin(gaps))
            column = column[filled_from]
            report.repair(f"missing {name}: held from the row before", f"home {home}", count=int(gaps.sum()))
        out[name] = column
    if empty["down_bps"] and empty["up_bps"]:
        raise report.error(f"has no rate at all for home {home}; expected download, upload or both")
    if empty["up_bps"]:
        out["up_bps"] = out["down_bps"] * defaults.up_per_down
        report.assumed["upload"] = f"{defaults.up_per_down:g} of the download (the file has download only)"
    if empty["down_bps"]:
        out["down_bps"] = out["up_bps"] / defaults.up_per_down
        report.assumed["download"] = f"{1 / defaults.up_per_down:g} times the upload (it has no download)"
    for name, value, text in (("rtt_s", defaults.rtt_s, units.duration(defaults.rtt_s)),
                              ("jitter_s", defaults.jitter_s, units.duration(defaults.jitter_s)),
                              ("loss", defaults.loss, f"{defaults.loss:g}")):
        if empty[name]:
            out[name] = np.full(n, value)
            report.assumed[name.removesuffix("_s")] = text
    return out


def _plausibility(columns: dict, report) -> None:
    for name in ("down_bps", "up_bps"):
        c = columns[name]
        if (n := int((c > PLAUSIBLE_BPS).sum())):
            report.warn(f"{name}: {n} values above {units.rate(PLAUSIBLE_BPS)}, up to "
                        f"{units.rate(np.nanmax(c))}; are the units right?")
        if (n := int((c < SMALLEST_BPS).sum())):
            report.warn(f"{name}: {n} values below {units.rate(SMALLEST_BPS)}; are the units right?")
    for name in ("rtt_s", "jitter_s"):
        c = columns[name]
        if (n := int((c > PLAUSIBLE_S).sum())):
            report.warn(f"{name}: {n} values above {PLAUSIBLE_S:g} s, up to {np.nanmax(c):g} s; "
                        "are the units right?")
