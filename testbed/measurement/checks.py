"""The checks behind the fidelity verdict: each turns events into one measured number beside its threshold.

Accuracy of the emulated network is judged in emulated seconds; the machine's own behaviour in real seconds, which are
emulated seconds x tdf. A check without data to judge has ok = None: not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from testbed import units
from testbed.measurement.events import select
from testbed.measurement.rates import WIRE_PER_GOODPUT, highest_setting, rate_windows
from testbed.measurement.thresholds import Thresholds

PROBED = ("rate_down", "rate_up", "rtt")


@dataclass(frozen=True)
class Check:
    """One measured number beside its threshold.

    name: of the check. measured, threshold: in `unit` ('' = a fraction, 's', 'packets', 'links'); None: not measured.
    ok: None when not measured. where: the worst link, device or moment. text: a sentence for people.
    at_s: emulated time of the first violation.
    """

    name: str
    title: str
    measured: float | None
    threshold: float | None
    unit: str
    ok: bool | None
    where: str = ""
    text: str = ""
    at_s: float | None = None


@dataclass(frozen=True)
class Context:
    """What every check gets."""

    events: pd.DataFrame
    limits: Thresholds
    tdf: float = 1.0


def shown(value: float | None, unit: str) -> str:
    """A check's number for people: '2.3 %', '12 ms', '3 packets', or a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "s":
        return units.duration(value)
    return f"{value:.3g} {unit}" if unit else f"{100 * value:.3g} %"


def _unmeasured(name: str, title: str, threshold: float, unit: str, text: str) -> Check:
    return Check(name, title, None, threshold, unit, None, text=text)


def _judged(name, title, measured, threshold, unit, text, where="", at_s=None) -> Check:
    ok = bool(measured <= threshold)
    at_s = float(at_s) if at_s is not None and not ok and math.isfinite(at_s) else None
    return Check(name, title, float(measured), float(threshold), unit, ok, where, text, at_s)


def probes_present(c: Context) -> Check:
    """Every home's link was probed in both directions and for its RTT."""
    title = "Links without a probe"
    links = select(c.events, "link")
    links = sorted(set(links[links["role"].fillna("home") == "home"]["node"].dropna()) - {"server"})
    probes = select(c.events, "probe")
    probes = probes[probes["measured"].notna()]
    have = set(zip(probes["node"], probes["quantity"]))
    missing = {n: [q for q in PROBED if (n, q) not in have] for n in links}
    missing = {n: q for n, q in missing.items() if q}
    if not len(probes):
        return Check("probes", title, None, 0.0, "links", False, text="no link was measured")
    text = f"{len(links)} links, each in both directions and for its RTT"
    if missing:
        worst = next(iter(missing))
        text = f"{len(missing)} of {len(links)} links lack a probe: {worst} has no {', '.join(missing[worst])}"
    return _judged("probes", title, len(missing), 0, "links", text, next(iter(missing), ""), 0.0)


def rate_error(c: Context) -> list[Check]:
    """Probed against set rate: mean and worst over links and directions."""
    probes = select(c.events, "probe")
    probes = probes[probes["quantity"].isin(["rate_up", "rate_down"]) & (probes["set"] > 0)]
    probes = probes[probes["measured"].notna()]
    mean, worst = "Probed rate, mean error", "Probed rate, worst error"
    if not len(probes):
        no = "no rate was probed"
        return [
            _unmeasured("rate_error_mean", mean, c.limits.rate_error_mean, "", no),
            _unmeasured("rate_error_worst", worst, c.limits.rate_error_worst, "", no),
        ]
    error = (probes["measured"] / probes["set"] - 1).abs()
    at = probes.loc[error.idxmax()]
    where = f"{at['node']} {'uplink' if at['quantity'] == 'rate_up' else 'downlink'}"
    pair = f"{where}: {units.rate(at['measured'])} measured, {units.rate(at['set'])} set"
    bad = probes[error > c.limits.rate_error_worst]
    many = f"; {len(bad)} of {len(probes)} are beyond the threshold" if len(bad) > 1 else ""
    first = probes["t"].min()
    return [
        _judged("rate_error_mean", mean, error.mean(), c.limits.rate_error_mean, "",
                f"over {len(probes)} directions of links", "all links", first),
        _judged("rate_error_worst", worst, error.max(), c.limits.rate_error_worst, "",
                pair + many, where, bad["t"].min() if len(bad) else None),
    ]  # fmt: skip


def rtt_error(c: Context) -> Check:
    """Probed median RTT against the set one. Where the set jitter makes medians scatter, three standard errors more."""
    title = "Probed RTT, worst error"
    probes = select(c.events, "probe")
    probes = probes[(probes["quantity"] == "rtt") & probes["measured"].notna() & probes["set"].notna()]
    if not len(probes):
        return _unmeasured("rtt_error", title, c.limits.rtt_error_s, "s", "no RTT was probed")
    jitter = select(c.events, "link").groupby("node")["jitter_s"].first()
    # jitter = mean |difference of successive RTTs| = 2 sigma / sqrt(pi) for a Gaussian RTT of deviation sigma, and the
    # median of n values scatters by sqrt(pi / 2) sigma / sqrt(n)
    sigma = probes["node"].map(jitter).astype(float).fillna(0.0) * math.sqrt(math.pi) / 2
    scatter = math.sqrt(math.pi / 2) * sigma / np.sqrt(probes["count"].fillna(10).clip(lower=1))
    allowed = c.limits.rtt_error_s + c.limits.rtt_error_fraction * probes["set"] + 3 * scatter
    error = (probes["measured"] - probes["set"]).abs()
    worst = (error / allowed).idxmax()
    at, bad = probes.loc[worst], probes[error > allowed]
    text = f"{at['node']}: {units.duration(at['measured'])} measured, {units.duration(at['set'])} set"
    if len(bad) > 1:
        text += f"; {len(bad)} of {len(probes)} links are beyond their threshold"
    return _judged("rtt_error", title, error[worst], allowed[worst], "s", text, at["node"], bad["t"].min())


def leak(c: Context) -> Check:
    """No bottleneck lets more through than was set, in any window."""
    title = "Traffic above the set rate, worst window"
    windows = rate_windows(c.events, c.limits.leak_window_s)
    set_bps = highest_setting(c.events, windows, slack_s=c.limits.replay_late_s / c.tdf) * WIRE_PER_GOODPUT
    windows, set_bps = windows[set_bps > 0], set_bps[set_bps > 0]
    if not len(windows):
        return _unmeasured("leak", title, c.limits.rate_excess, "", "no counters of bottleneck queues")
    allowance_bps = c.limits.leak_allowance_bytes * 8 / (windows["end_s"] - windows["start_s"])
    excess = (windows["rate_bps"] - allowance_bps) / set_bps - 1
    worst, bad = windows.loc[excess.idxmax()], windows[excess > c.limits.rate_excess]
    where = f"{worst['node']} {worst['direction']}link"
    text = (
        f"{where}: {units.rate(worst['rate_bps'])} on the wire against {units.rate(set_bps[excess.idxmax()])} "
        f"allowed, at {worst['start_s']:.1f} s; {len(bad)} of {len(windows)} windows"
    )
    return _judged("leak", title, max(excess.max(), 0.0), c.limits.rate_excess, "", text, where, bad["start_s"].min())


def overflow(c: Context) -> Check:
    """Packets that the emulation's own queues dropped: no setting explains them. Bottleneck drops are the buffer's."""
    title = "Drops that no setting explains"
    hosts = select(c.events, "host")
    buffer_drops = int(select(c.events, "throughput")["drops"].sum())
    explained = f"{buffer_drops} drops at full bottleneck buffers are as set"
    if hosts["delay_overflowed"].isna().all():
        text = f"the delay line reports none; {explained}"
        return _unmeasured("overflow", title, c.limits.overflow_drops, "packets", text)
    bad = hosts[hosts["delay_overflowed"] > 0]
    text = f"dropped because the delay line's queue was full; {explained}"
    return _judged("overflow", title, hosts["delay_overflowed"].sum(), c.limits.overflow_drops, "packets", text,
                   "delay line", bad["t"].min())  # fmt: skip


def _late(c: Context, kind: str, name: str, title: str, limit_s: float) -> Check:
    rows = select(c.events, kind)
    rows = rows[rows["late"].notna()]
    if not len(rows):
        return _unmeasured(name, title, limit_s, "s", "none was due")
    late_s = rows["late"] * c.tdf
    worst, bad = rows.loc[late_s.idxmax()], rows[late_s > limit_s]
    text = f"{worst['node']} at {worst['t']:.1f} s; {len(bad)} of {len(rows)} later than the threshold"
    return _judged(name, title, late_s.max(), limit_s, "s", text, worst["node"], bad["t"].min())


def replay_late(c: Context) -> Check:
    return _late(c, "link", "replay_late", "Link changes applied late, worst", c.limits.replay_late_s)


def churn_late(c: Context) -> Check:
    return _late(c, "churn", "churn_late", "Devices toggled late, worst", c.limits.churn_late_s)


def _per_second(c: Context, field: str, name: str, title: str, limit: float, quantile: float, text: str) -> Check:
    hosts = select(c.events, "host")
    hosts = hosts[hosts[field].notna()]
    if not len(hosts):
        return _unmeasured(name, title, limit, "s", "not reported")
    # 'higher': a value that really occurred, and the only one of a short run is not diluted
    measured = float(np.quantile(hosts[field], quantile, method="higher"))
    bad = hosts[hosts[field] > limit]
    text = f"{text}; {len(bad)} of {len(hosts)} s above the threshold"
    return _judged(name, title, measured, limit, "s", text, "", bad["t"].min())


def delay_lag(c: Context) -> list[Check]:
    """How late the delay line released packets, in real seconds."""
    return [
        _per_second(c, "delay_lag_p99", "delay_lag_p99", "Packets released late, p99 of a second",
                    c.limits.delay_lag_p99_s, 0.95, "exceeded in at most 5 % of the seconds"),
        _per_second(c, "delay_lag_max", "delay_lag_max", "Packets released late, worst",
                    c.limits.delay_lag_max_s, 1.0, "any packet"),
        _per_second(c, "delay_age", "delay_stuck", "Delay line without a sign of life, worst",
                    c.limits.delay_stuck_s, 1.0, "age of its counters"),
    ]  # fmt: skip


def sched_delay(c: Context) -> Check:
    """How late the engine's own thread was woken, in real seconds."""
    return _per_second(c, "sched_delay", "sched_delay", "Late wake-ups, worst of a second",
                       c.limits.sched_delay_s, 0.95, "exceeded in at most 5 % of the seconds")  # fmt: skip


def overruns(c: Context) -> list[Check]:
    """Computations that took longer than the emulated device would have."""
    time, count = "Compute overruns, of all paced time", "Computations with a noticeable overrun"
    rows = select(c.events, "compute")
    overrun = rows["overrun"].fillna(0.0)
    paced = (rows["end"] - rows["start"] - overrun).clip(lower=0)
    if not len(rows) or paced.sum() <= 0:
        no = "no paced computation"
        return [
            _unmeasured("overrun_time", time, c.limits.overrun_time, "", no),
            _unmeasured("overrun_count", count, c.limits.overrun_count, "", no),
        ]
    by_node = overrun.groupby(rows["node"]).sum()
    worst = by_node.idxmax()
    noticeable = overrun > c.limits.overrun_noticeable * paced
    first = rows["t"][noticeable].min()
    total = f"{units.duration(overrun.sum())} of {units.duration(paced.sum())}"
    return [
        _judged("overrun_time", time, overrun.sum() / paced.sum(), c.limits.overrun_time, "",
                f"{total}, most on {worst}", worst, rows["t"][overrun > c.limits.overrun_time * paced].min()),
        _judged("overrun_count", count, noticeable.mean(), c.limits.overrun_count, "",
                f"{noticeable.sum()} of {len(rows)} by more than {100 * c.limits.overrun_noticeable:g} %",
                rows["node"][overrun.idxmax()], first),
    ]  # fmt: skip


def machine(c: Context) -> list[Check]:
    """CPU saturation and memory pressure, and whether anybody looked."""
    hosts = select(c.events, "host")
    watched, cpu = "Seconds in which the machine was watched", "Seconds with the CPU saturated"
    memory, stall = "Memory in use, most", "Waiting for memory, worst 10 s"
    real_s = (c.events["t"].max() - max(c.events["t"].min(), 0)) * c.tdf if len(c.events) else 0.0
    if real_s < 2 and not len(hosts):
        no = "the run is too short to say"
        coverage = _unmeasured("host_coverage", watched, c.limits.host_coverage, "", no)
    else:
        share = min(1.0, len(hosts[hosts["t"] >= 0]) / max(real_s - 1, 1))  # the first figure comes after a second
        ok = share >= c.limits.host_coverage
        coverage = Check("host_coverage", watched, share, c.limits.host_coverage, "", ok,
                         text=f"{len(hosts)} samples in {units.duration(real_s)}; at least the threshold")  # fmt: skip
    if not len(hosts):
        return [coverage]
    busy = hosts["cpu"] > c.limits.cpu_busy
    steal = f", {100 * hosts['steal'].mean():.2g} % stolen by other machines" if hosts["steal"].mean() > 0.005 else ""
    text = f"mean {100 * hosts['cpu'].mean():.3g} % busy{steal}; saturated = above {100 * c.limits.cpu_busy:g} %"
    checks = [
        coverage,
        _judged("cpu", cpu, busy.mean(), c.limits.cpu_saturated_time, "", text, "", hosts["t"][busy].min()),
    ]
    total = hosts["memory_bytes"] + hosts["memory_available_bytes"]
    used = hosts["memory_bytes"] / total
    if used.notna().any():
        limit, peak = 1 - c.limits.memory_available, hosts.loc[used.idxmax()]
        text = f"{units.size(peak['memory_bytes'])} of {units.size(total[used.idxmax()])} at {peak['t']:.1f} s"
        checks.append(_judged("memory", memory, used.max(), limit, "", text, "", hosts["t"][used > limit].min()))
    stalls = hosts["memory_stall"]
    if stalls.notna().any():
        bad = hosts["t"][stalls > c.limits.memory_stall].min()
        text = "share of time in which every process waited"
        checks.append(_judged("memory_stall", stall, stalls.max(), c.limits.memory_stall, "", text, "", bad))
    return checks


CHECKS: tuple[Callable[[Context], Check | list[Check]], ...] = (
    probes_present, rate_error, rtt_error, leak, overflow, replay_late, churn_late, delay_lag, sched_delay, overruns,
    machine,
)  # fmt: skip
