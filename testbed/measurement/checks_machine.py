"""Checks of the machine and the engine: were they in time, and did they have room? Judged in real seconds."""

from __future__ import annotations

import math

import numpy as np

from testbed import units
from testbed.measurement.checks import Check, Context, judged, unmeasured
from testbed.measurement.events import select


def _late(c: Context, kind: str, overdue: str, name: str, title: str, limit_s: float) -> Check:
    """How late things were done, and for how long something has been due that was not done (yet)."""
    rows, hosts = select(c.events, kind), select(c.events, "host")
    rows = rows[rows["late"].notna()]
    waited = hosts[hosts[overdue] > limit_s]
    if not len(rows) and not len(waited):
        return unmeasured(name, title, limit_s, "s", "none was due")
    late_s = rows["late"] * c.tdf
    bad = rows[late_s > limit_s]
    first = min((t for t in (bad["t"].min(), waited["t"].min()) if np.isfinite(t)), default=None)
    if len(waited) and not waited[overdue].max() <= late_s.max():
        at = waited.loc[waited[overdue].idxmax()]
        text = f"at {at['t']:.1f} s one had been due for that long and was not done"
        return judged(name, title, at[overdue], limit_s, "s", text, "", first)
    worst = rows.loc[late_s.idxmax()]
    text = f"{worst['node']} at {worst['t']:.1f} s; {len(bad)} of {len(rows)} later than the threshold"
    return judged(name, title, late_s.max(), limit_s, "s", text, worst["node"], first)


def replay_late(c: Context) -> Check:
    title = "Link changes applied late, worst"
    return _late(c, "link", "replay_overdue", "replay_late", title, c.limits.replay_late_s)


def churn_late(c: Context) -> Check:
    title = "Devices toggled late, worst"
    return _late(c, "churn", "churn_overdue", "churn_late", title, c.limits.churn_late_s)


QUANTILE = 0.95  # of the seconds, in which lag and wake-ups must be within their thresholds


def tolerated(seconds: int) -> int:
    """How many of a run's seconds may be above such a threshold, as `_per_second` judges by QUANTILE."""
    return max(seconds, 1) - 1 - math.ceil((max(seconds, 1) - 1) * QUANTILE)


def _per_second(c: Context, field: str, name: str, title: str, limit: float, quantile: float, text: str) -> Check:
    hosts = select(c.events, "host")
    hosts = hosts[hosts[field].notna()]
    if not len(hosts):
        return unmeasured(name, title, limit, "s", "not reported")
    # 'higher': a value that really occurred, and the only one of a short run is not diluted
    measured = float(np.quantile(hosts[field], quantile, method="higher"))
    bad = hosts[hosts[field] > limit]
    text = f"{text}; {len(bad)} of {len(hosts)} s above the threshold"
    return judged(name, title, measured, limit, "s", text, "", bad["t"].min())


def delay_lag(c: Context) -> list[Check]:
    """How late the delay line released packets, in real seconds."""
    return [
        _per_second(
            c,
            "delay_lag_p99",
            "delay_lag_p99",
            "Packets released late, p99 of a second",
            c.limits.delay_lag_p99_s,
            QUANTILE,
            "without the worst 5 % of the seconds",
        ),
        _per_second(
            c,
            "delay_lag_max",
            "delay_lag_max",
            "Packets released late, worst",
            c.limits.delay_lag_max_s,
            1.0,
            "any packet",
        ),
        _per_second(
            c,
            "delay_age",
            "delay_stuck",
            "Delay line without a sign of life, worst",
            c.limits.delay_stuck_s,
            1.0,
            "age of its counters",
        ),
        _pauses(c),
    ]


def _pauses(c: Context) -> Check:
    """The delay line's process was stopped by a signal: every packet waited, however short it was."""
    title, limit = "Delay line paused", c.limits.delay_pauses
    hosts = select(c.events, "host")
    hosts = hosts[hosts["delay_paused"].notna()]
    if not len(hosts):
        return unmeasured("delay_paused", title, limit, "times", "not reported")
    bad = hosts[hosts["delay_paused"] > 0]
    text = "its process was stopped and continued by a signal"
    return judged(
        "delay_paused", title, hosts["delay_paused"].sum(), limit, "times", text, "delay line", bad["t"].min()
    )


def sched_delay(c: Context) -> list[Check]:
    """How late the engine's own thread was woken, in real seconds."""
    return [
        _per_second(
            c,
            "sched_delay",
            "sched_delay",
            "Late wake-ups, worst of a second",
            c.limits.sched_delay_s,
            QUANTILE,
            "without the worst 5 % of the seconds",
        ),
        _per_second(
            c,
            "sched_delay",
            "sched_delay_max",
            "Engine stood still, longest",
            c.limits.sched_delay_max_s,
            1.0,
            "any wake-up",
        ),
    ]


def overruns(c: Context) -> list[Check]:
    """Computations that took longer than the emulated device would have. Set-up (no FLOPs) is not paced."""
    time, count = "Compute overruns, of all paced time", "Computations with a noticeable overrun"
    rows = select(c.events, "compute")
    rows = rows[rows["flops"] > 0]
    overrun = rows["overrun"].fillna(0.0)
    paced = (rows["end"] - rows["start"] - overrun).clip(lower=0)
    if not len(rows) or paced.sum() <= 0:
        no = "no paced computation"
        return [
            unmeasured("overrun_time", time, c.limits.overrun_time, "", no),
            unmeasured("overrun_count", count, c.limits.overrun_count, "", no),
        ]
    by_node = overrun.groupby(rows["node"]).sum()
    worst = by_node.idxmax()
    noticeable = (overrun > c.limits.overrun_noticeable * paced) & (overrun * c.tdf > c.limits.overrun_noticeable_s)
    first = rows["t"][noticeable].min()
    total = f"{units.duration(overrun.sum())} of {units.duration(paced.sum())}"
    return [
        judged(
            "overrun_time",
            time,
            overrun.sum() / paced.sum(),
            c.limits.overrun_time,
            "",
            f"{total}, most on {worst}",
            worst,
            rows["t"][overrun > c.limits.overrun_time * paced].min(),
        ),
        judged(
            "overrun_count",
            count,
            noticeable.mean(),
            c.limits.overrun_count,
            "",
            f"{noticeable.sum()} of {len(rows)} by more than {100 * c.limits.overrun_noticeable:g} % "
            f"and {units.duration(c.limits.overrun_noticeable_s)}",
            rows["node"][overrun.idxmax()],
            first,
        ),
    ]


def machine(c: Context) -> list[Check]:
    """CPU saturation and memory pressure, and whether anybody looked."""
    hosts = select(c.events, "host")
    watched, cpu = "Seconds in which the machine was watched", "Seconds with the CPU saturated"
    memory, stall = "Memory in use, most", "Waiting for memory, worst 10 s"
    real_s = (c.events["t"].max() - max(c.events["t"].min(), 0)) * c.tdf if len(c.events) else 0.0
    if real_s < 2 and not len(hosts):
        no = "the run is too short to say"
        coverage = unmeasured("host_coverage", watched, c.limits.host_coverage, "", no)
    else:
        # the first sample comes after a second
        share = min(1.0, len(hosts[hosts["t"] >= 0]) / max(real_s - 1, 1))
        ok = bool(share >= c.limits.host_coverage)
        coverage = Check(
            "host_coverage",
            watched,
            share,
            c.limits.host_coverage,
            "",
            ok,
            text=f"{len(hosts)} samples in {units.duration(real_s)}; at least the threshold",
        )
    if not len(hosts):
        return [coverage]
    busy = hosts["cpu"] > c.limits.cpu_busy
    steal = f", {100 * hosts['steal'].mean():.2g} % stolen by other machines" if hosts["steal"].mean() > 0.005 else ""
    text = f"mean {100 * hosts['cpu'].mean():.3g} % busy{steal}; saturated = above {100 * c.limits.cpu_busy:g} %"
    checks = [
        coverage,
        judged("cpu", cpu, busy.mean(), c.limits.cpu_saturated_time, "", text, "", hosts["t"][busy].min()),
    ]
    total = hosts["memory_bytes"] + hosts["memory_available_bytes"]
    used = hosts["memory_bytes"] / total
    if used.notna().any():
        limit, peak = 1 - c.limits.memory_available, hosts.loc[used.idxmax()]
        text = f"{units.size(peak['memory_bytes'])} of {units.size(total[used.idxmax()])} at {peak['t']:.1f} s"
        checks.append(judged("memory", memory, used.max(), limit, "", text, "", hosts["t"][used > limit].min()))
    stalls = hosts["memory_stall"]
    if stalls.notna().any():
        bad = hosts["t"][stalls > c.limits.memory_stall].min()
        text = "share of time in which every process waited"
        checks.append(judged("memory_stall", stall, stalls.max(), c.limits.memory_stall, "", text, "", bad))
    return checks


MACHINE_CHECKS = (replay_late, churn_late, delay_lag, sched_delay, overruns, machine)
