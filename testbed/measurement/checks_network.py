"""Checks of the emulated network: did each link do what was set? Judged in emulated seconds."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from testbed import units
from testbed.measurement.checks import Check, Context, judged, unmeasured
from testbed.measurement.events import select
from testbed.measurement.rates import WIRE_PER_GOODPUT, highest_setting, rate_windows

PROBED = ("rate_down", "rate_up", "rtt")


def _probes(c: Context, *quantities: str) -> pd.DataFrame:
    """Probes of these quantities that brought an answer, where there is something to compare it to."""
    probes = select(c.events, "probe")
    usable = np.isfinite(probes["measured"]) & np.isfinite(probes["set"]) & (probes["set"] > 0)
    return probes[usable & probes["quantity"].isin(quantities)]


def unjudged(events: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Why a rate was not judged, by home and quantity: its link could not be filled, so nobody knows it."""
    probes = select(events, "probe")
    probes = probes[probes["measured"].isna() & probes["text"].notna()]
    return {(row.node, row.quantity): row.text for row in probes.itertuples()}


def probes_present(c: Context) -> Check:
    """Every home's link was probed in both directions and for its RTT."""
    title = "Links without a measurement"
    links = select(c.events, "link")
    links = sorted(set(links[links["role"].fillna("home") == "home"]["node"].dropna()) - {"server"})
    probes = _probes(c, *PROBED)
    have = set(zip(probes["node"], probes["quantity"])) | set(unjudged(c.events))
    missing = {n: [q for q in PROBED if (n, q) not in have] for n in links}
    missing = {n: q for n, q in missing.items() if q}
    if not len(probes):
        return Check("probes", title, None, 0.0, "links", False, text="no link was measured")
    text = f"{len(links)} links, each in both directions and for its RTT"
    if missing:
        worst = next(iter(missing))
        what = ", ".join(missing[worst])
        text = f"{len(missing)} of {len(links)} links gave no answer or were not asked: {worst}, {what}"
    return judged("probes", title, len(missing), 0, "links", text, next(iter(missing), ""), 0.0)


def rate_error(c: Context) -> list[Check]:
    """Probed against set rate: mean and worst over links and directions."""
    probes = _probes(c, "rate_up", "rate_down")
    mean, worst = "Probed rate, mean error", "Probed rate, worst error"
    open_questions = unjudged(c.events)
    if not len(probes):
        no = next((f"not judged: {text}" for text in open_questions.values()), "no rate was probed")
        return [
            unmeasured("rate_error_mean", mean, c.limits.rate_error_mean, "", no),
            unmeasured("rate_error_worst", worst, c.limits.rate_error_worst, "", no),
        ]
    error = (probes["measured"] / probes["set"] - 1).abs()
    at = probes.loc[error.idxmax()]
    where = f"{at['node']} {'uplink' if at['quantity'] == 'rate_up' else 'downlink'}"
    pair = f"{where}: {units.rate(at['measured'])} measured, {units.rate(at['set'])} set"
    bad = probes[error > c.limits.rate_error_worst]
    many = f"; {len(bad)} of {len(probes)} are beyond the threshold" if len(bad) > 1 else ""
    first = probes["t"].min()
    return [
        judged(
            "rate_error_mean",
            mean,
            error.mean(),
            c.limits.rate_error_mean,
            "",
            f"over {len(probes)} directions of links"
            + (f"; {len(open_questions)} were not judged" if open_questions else ""),
            "all links",
            first,
        ),
        judged(
            "rate_error_worst",
            worst,
            error.max(),
            c.limits.rate_error_worst,
            "",
            pair + many,
            where,
            bad["t"].min() if len(bad) else None,
        ),
    ]


def rtt_error(c: Context) -> Check:
    """Probed median RTT against the set; where jitter makes medians scatter, 3 standard errors more."""
    title = "Probed RTT, worst error"
    probes = _probes(c, "rtt")
    if not len(probes):
        return unmeasured("rtt_error", title, c.limits.rtt_error_s, "s", "no RTT was probed")
    jitter = select(c.events, "link").groupby("node")["jitter_s"].first()
    # jitter = mean |difference of successive RTTs| = 2 sigma / sqrt(pi) for a Gaussian RTT of deviation
    # sigma, and the median of n values scatters by sqrt(pi / 2) sigma / sqrt(n)
    sigma = probes["node"].map(jitter).astype(float).fillna(0.0) * math.sqrt(math.pi) / 2
    scatter = math.sqrt(math.pi / 2) * sigma / np.sqrt(probes["count"].fillna(10).clip(lower=1))
    allowed = c.limits.rtt_error_s + c.limits.rtt_error_fraction * probes["set"] + 3 * scatter
    error = (probes["measured"] - probes["set"]).abs()
    worst = (error / allowed).idxmax()
    at, bad = probes.loc[worst], probes[error > allowed]
    text = f"{at['node']}: {units.duration(at['measured'])} measured, {units.duration(at['set'])} set"
    if len(bad) > 1:
        text += f"; {len(bad)} of {len(probes)} links are beyond their threshold"
    return judged("rtt_error", title, error[worst], allowed[worst], "s", text, at["node"], bad["t"].min())


def leak(c: Context) -> Check:
    """No bottleneck lets more through than was set, in any window."""
    title = "Traffic above the set rate, worst window"
    windows = rate_windows(c.events, c.limits.leak_window_s)
    set_bps = highest_setting(c.events, windows, slack_s=c.limits.replay_late_s / c.tdf) * WIRE_PER_GOODPUT
    windows, set_bps = windows[set_bps > 0], set_bps[set_bps > 0]
    if not len(windows):
        return unmeasured("leak", title, c.limits.rate_excess, "", "no counters of bottleneck queues")
    allowance_bps = c.limits.leak_allowance_bytes * 8 / (windows["end_s"] - windows["start_s"])
    excess = (windows["rate_bps"] - allowance_bps) / set_bps - 1
    worst, bad = windows.loc[excess.idxmax()], windows[excess > c.limits.rate_excess]
    where = f"{worst['node']} {worst['direction']}link"
    text = (
        f"{where}: {units.rate(worst['rate_bps'])} on the wire, {units.rate(set_bps[excess.idxmax()])} "
        f"allowed, at {worst['start_s']:.1f} s; {len(bad)} of {len(windows)} windows"
    )
    return judged("leak", title, max(excess.max(), 0.0), c.limits.rate_excess, "", text, where, bad["start_s"].min())


def overflow(c: Context) -> Check:
    """Packets that the emulation's own queues dropped. Those at the bottleneck are the buffer's, as set."""
    title = "Drops that no setting explains"
    hosts = select(c.events, "host")
    buffer_drops = int(select(c.events, "throughput")["drops"].sum())
    explained = f"{buffer_drops} drops at full bottleneck buffers are as set"
    if hosts["delay_overflowed"].isna().all():
        text = f"the delay line reports none; {explained}"
        return unmeasured("overflow", title, c.limits.overflow_drops, "packets", text)
    bad = hosts[hosts["delay_overflowed"] > 0]
    text = f"dropped because the delay line's queue was full; {explained}"
    return judged(
        "overflow",
        title,
        hosts["delay_overflowed"].sum(),
        c.limits.overflow_drops,
        "packets",
        text,
        "delay line",
        bad["t"].min(),
    )


def interference(c: Context) -> Check:
    """Rates, buffers, queues and link states that are not what the tool set: somebody else changed them."""
    title, limit = "Links changed behind the tool's back", c.limits.interference
    rows, hosts = select(c.events, "interference"), select(c.events, "host")
    if not len(rows) and not (hosts["links_watched"] > 0).any():
        return unmeasured("interference", title, limit, "changes", "the links were not watched")
    if not len(rows):
        return judged("interference", title, 0, limit, "changes", "every change was the tool's own")
    texts = [f"{text} (at {t:.1f} s)" for t, text in zip(rows["t"], rows["text"]) if isinstance(text, str)]
    more = f"; {len(texts) - 4} more" if len(texts) > 4 else ""
    nodes = ", ".join(dict.fromkeys(str(n) for n in rows["node"]))
    return judged(
        "interference", title, len(rows), limit, "changes", "; ".join(texts[:4]) + more, nodes, rows["t"].min()
    )


NETWORK_CHECKS = (probes_present, rate_error, rtt_error, leak, interference, overflow)
