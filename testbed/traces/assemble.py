"""From a file's rows to one trace per home: order, duplicates, gaps in columns, defaults, plausibility."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from testbed import units
from testbed.traces.links import LinkTrace
from testbed.traces.records import FIELDS, PLAUSIBLE_BPS, PLAUSIBLE_S, SMALLEST_BPS, LinkRecords, Rows

ALIGNMENTS = ("clock", "home")
LATE_S = 86400.0  # a home that starts later than this after the first one is worth a warning
LONE_HOLD_S = 86400.0  # a single measurement stands for a day
_QUANTITY = {"down_bps": "download", "up_bps": "upload"}
_STEPS = 100_000  # steps that a trace's typical step is estimated from


@dataclass(frozen=True)
class Defaults:
    """Used where a file has nothing at all to say about a quantity of a home."""

    rtt_s: float = 0.020
    jitter_s: float = 0.0
    loss: float = 0.0
    up_per_down: float = 1.0  # of a one-directional file
    down_bps: float | None = None  # of a file without rates, which is refused without these
    up_bps: float | None = None


def assemble(records: LinkRecords, defaults: Defaults, align: str = "clock") -> dict[str, LinkTrace]:
    """The traces in `records`, by home, in order of appearance. Empties `records`: nothing is held twice.

    align: 'clock' gives all homes of the file one time zero, the earliest sample; 'home' starts each at
    its own first sample.

    Raises:
        InputError: no home has a usable row.
    """
    report = records.report
    homes = {home: rows for home, rows in records.homes.items() if len(rows.times)}
    if not homes:
        raise report.error(f"holds no usable measurement ({report.rows} rows, {report.failed} failed tests)")
    starts = {home: float(np.frombuffer(rows.times, dtype=float).min()) for home, rows in homes.items()}
    origin = min(starts.values())
    if not records.absolute:
        if origin < 0:
            raise report.error(f"has the negative time {origin:g} s; expected times from 0 on", column="time")
        origin = 0.0
    late = [home for home in homes if starts[home] - origin > LATE_S]
    if align == "clock" and late:
        report.warn(
            f"{len(late)} homes start more than a day after the first one (such as {late[0]}); their "
            "first value is held from time 0 on (--align home starts each at its own first sample)"
        )
    traces, total = {}, len(homes)
    missing: dict[str, int] = {}
    for home in list(homes):
        rows = homes.pop(home)
        records.homes.pop(home, None)
        zero = origin if align == "clock" else starts[home]
        traces[home] = _one(home, rows, zero, records, defaults, missing)
    for quantity, count in missing.items():
        report.assumed[quantity] = _assumption(quantity, defaults) + (
            "" if count == total else f" (for {count} of {total} homes)"
        )
    stated = records.span_s is not None or (records.remarks is not None and records.remarks.spans)
    if align == "clock" and len(traces) > 1 and not stated:
        span = max(trace.span_s for trace in traces.values())
        traces = {home: replace(trace, span_s=span) for home, trace in traces.items()}
    _plausibility(traces, report)
    return traces


def _assumption(quantity: str, defaults: Defaults) -> str:
    return {
        "down_bps": f"download of {units.rate(defaults.down_bps or 0)}, as stated",
        "up_bps": f"upload of {units.rate(defaults.up_bps or 0)}, as stated",
        "upload": f"{defaults.up_per_down:g} of the download (there is a download only)",
        "download": f"{1 / defaults.up_per_down:g} times the upload (there is an upload only)",
        "rtt": units.duration(defaults.rtt_s),
        "jitter": f"{defaults.jitter_s * 1e3:g} ms",
        "loss": f"{defaults.loss:g}",
    }[quantity]


def _one(
    home: str, rows: Rows, zero: float, records: LinkRecords, defaults: Defaults, missing: dict[str, int]
) -> LinkTrace:
    report = records.report
    times = np.frombuffer(rows.times, dtype=float)
    columns = {
        name: np.frombuffer(column, dtype=column.typecode) if column is not None else None
        for name, column in rows.columns.items()
    }
    if zero:
        times = times - zero
    backwards = times[1:] < times[:-1]
    if backwards.any():
        if not records.joined:
            report.repair("rows out of time order: sorted", f"home {home}", count=int(backwards.sum()))
        order = np.argsort(times, kind="stable")
        times = times[order]
        columns = {k: None if c is None else c[order] for k, c in columns.items()}
    same = times[1:] == times[:-1]
    if same.any():
        times, columns = _combined(home, times, columns, same, records)
    before = dict(missing)
    columns = _filled(home, columns, records, defaults, len(times), missing)
    assumed = frozenset(_QUANTITY.get(q, q) for q, count in missing.items() if count != before.get(q, 0))
    steps = np.diff(times[:_STEPS])
    hold = records.hold_s or (float(np.median(steps)) if len(steps) else LONE_HOLD_S)
    if times[0] > 0:  # the clock starts before this home's first sample
        times = np.insert(times, 0, 0.0)
        columns = {k: np.insert(c, 0, c[0]) for k, c in columns.items()}
    span = float(times[-1]) + hold
    stated = records.span_s if records.remarks is None else records.remarks.span(home)
    if stated is not None:
        if stated <= times[-1]:
            raise report.error(f"states span_s {stated:g} but has a row at {times[-1]:g} s for home {home}")
        span = stated
    start = zero if records.absolute else records.remarks and records.remarks.start(home)
    return LinkTrace(home, times, **columns, span_s=span, start_epoch_s=start, source=report.path, assumed=assumed)


def _combined(home, times, columns, same, records):
    """Rows of one time made one: of each quantity the last value."""
    starts = np.flatnonzero(np.append(True, ~same))
    group = np.cumsum(np.append(True, ~same)) - 1
    conflicts = 0
    out = {}
    for name, column in columns.items():
        if column is None:
            out[name] = None
            continue
        present = ~np.isnan(column)
        merged = np.full(len(starts), np.nan, column.dtype)
        merged[group[present]] = column[present]  # in order: the last one stays
        conflicts += int(present.sum() - np.bincount(group[present], minlength=len(starts)).astype(bool).sum())
        out[name] = merged
    if conflicts and not records.repeats:
        records.report.repair("several rows at one time: the last one kept", f"home {home}", count=int(same.sum()))
    return times[starts], out


def _filled(
    home: str, columns: dict, records: LinkRecords, defaults: Defaults, n: int, missing: dict[str, int]
) -> dict:
    """No NaN left: held from the last row that had the value, or by default where no row had it."""
    report, out = records.report, {}
    for name, column in columns.items():
        if column is None:
            continue
        gaps = np.isnan(column)
        if gaps.all():
            columns[name] = None
            continue
        if gaps.any():
            held = np.maximum.accumulate(np.where(gaps, -1, np.arange(n)))
            held[held < 0] = int(np.argmin(gaps))
            column = column[held]
            if records.sparse:
                report.note("rows carry different quantities: each is held until its next value")
            else:
                report.repair(f"missing {name}: held from the row before", f"home {home}", count=int(gaps.sum()))
        out[name] = column
    stated = [name for name in ("down_bps", "up_bps") if name not in out and getattr(defaults, name) is not None]
    for name in stated:
        missing[name] = missing.get(name, 0) + 1
        out[name] = np.broadcast_to(np.float64(getattr(defaults, name)), n)
    if "down_bps" not in out and "up_bps" not in out:
        raise report.error(
            f"has delays or losses but no rate for home {home}; a link needs download and upload",
            hint="state them: --down 50Mbit/s --up 10Mbit/s, or `links: {trace: …, download: …, upload: …}`",
        )
    lacking = []
    if "up_bps" not in out:
        lacking.append("upload")
        out["up_bps"] = out["down_bps"] * defaults.up_per_down
    if "down_bps" not in out:
        lacking.append("download")
        out["down_bps"] = out["up_bps"] / defaults.up_per_down
    for name, value in (("rtt_s", defaults.rtt_s), ("jitter_s", defaults.jitter_s), ("loss", defaults.loss)):
        if name not in out:
            lacking.append(name.removesuffix("_s"))
            out[name] = np.broadcast_to(np.float64(value), n)  # takes no memory
    for quantity in lacking:
        missing[quantity] = missing.get(quantity, 0) + 1
    return {name: out[name] for name in FIELDS}


def _plausibility(traces: dict[str, LinkTrace], report) -> None:
    """Warn of values that are possible, but likely in a wrong unit."""
    for name in ("down_bps", "up_bps"):
        high = [(int((c > PLAUSIBLE_BPS).sum()), float(c.max())) for c in _columns(traces, name)]
        if n := sum(count for count, _ in high):
            report.warn(
                f"{name}: {n} values above {units.rate(PLAUSIBLE_BPS)}, up to "
                f"{units.rate(max(top for _, top in high))}; are the units right?"
            )
        if n := sum(int((c < SMALLEST_BPS).sum()) for c in _columns(traces, name)):
            report.warn(f"{name}: {n} values below {units.rate(SMALLEST_BPS)}; are the units right?")
    for name in ("rtt_s", "jitter_s"):
        high = [(int((c > PLAUSIBLE_S).sum()), float(c.max())) for c in _columns(traces, name)]
        if n := sum(count for count, _ in high):
            report.warn(
                f"{name}: {n} values above {PLAUSIBLE_S:g} s, up to {max(top for _, top in high):g} s; "
                "are the units right?"
            )
    for name in ("rtt_s",):
        if n := sum(int(((c > 0) & (c < 1e-4)).sum()) for c in _columns(traces, name)):
            report.warn(f"{name}: {n} values below 0.1 ms; are the units right?")


def _columns(traces: dict[str, LinkTrace], name: str):
    return (getattr(trace, name) for trace in traces.values())
