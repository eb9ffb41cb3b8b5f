"""Seeded populations of access links that keep the quantiles of a preset.

Levels: each quantity's quantile function is sampled at evenly spread levels, one a home, and shuffled with
the preset's rank correlations (a Gaussian copula); so homes' daily means have the preset's quantiles.
Variation: a home's load is the daily curve plus an AR(1) process. Its rank in [0, 1], to a power that gives
the preset's share of low time, makes the rate fall from its highest to its lowest, `dip` below the mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from testbed.errors import unknown
from testbed.traces import presets
from testbed.traces.links import LinkTrace
from testbed.traces.presets import LINKS, LinkPreset
from testbed.traces.quantiles import at_level, correlated_ranks, levels, ranks

DAY_S = 86400.0


def generate_links(
    counts: Mapping[str, int], *, seed: int, duration_s: float = DAY_S, step_s: float = 900.0, start_hour: float = 0.0
) -> dict[str, LinkTrace]:
    """Traces by home, named after their preset ('cable-03').

    counts: preset -> number of homes. duration_s, step_s: length and sampling of each trace.
    start_hour: time of day of t = 0. The same arguments give the same traces on every machine.

    Raises:
        InputError: an unknown preset.
    """
    traces: dict[str, LinkTrace] = {}
    for k, (name, homes) in enumerate(counts.items()):
        if name not in LINKS:
            raise unknown("--preset", "link preset", name, [*LINKS, "mixed"])
        # RandomState: its streams are frozen, so that a seed gives the same bytes with every version of numpy
        random = np.random.RandomState([seed, k])
        width = max(2, len(str(homes)))
        names = [f"{name}-{i + 1:0{width}d}" for i in range(homes)]
        for trace in _population(LINKS[name], names, random, duration_s, step_s, start_hour):
            traces[trace.home] = trace
    return traces


def mixed(homes: int) -> dict[str, int]:
    """Numbers of homes by technology, by the panel's national weights (largest remainders)."""
    shares = {name: p.share for name, p in LINKS.items() if p.share}
    exact = {name: homes * share / sum(shares.values()) for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda n: counts[n] - exact[n])[: homes - sum(counts.values())]:
        counts[name] += 1
    return {name: count for name, count in counts.items() if count}


def _population(p: LinkPreset, names: list[str], random, duration_s, step_s, start_hour):
    n = len(names)
    if not n:
        return
    down_rank, up_rank, rtt_rank = correlated_ranks(random, n, p.rank_correlation)
    spread = levels(n)
    down = at_level(p.down_mbps, spread)[down_rank] * 1e6
    up = at_level(p.up_mbps, spread)[up_rank] * 1e6
    rtt = at_level(p.rtt_ms, spread)[rtt_rank] * 1e-3
    jitter = at_level(p.jitter_ms, spread)[random.permutation(n)] * 1e-3
    loss = at_level(p.loss_pct, spread)[random.permutation(n)] * 1e-2
    down_dip = at_level(p.down_dip, spread)[random.permutation(n)]
    up_dip = at_level(p.up_dip, spread)[random.permutation(n)]
    days = int(np.ceil((duration_s + start_hour * 3600) / DAY_S))
    times = np.arange(0.0, days * DAY_S, step_s)
    window = (times >= start_hour * 3600) & (times < start_hour * 3600 + duration_s)
    curve = _standardised(daily_load(times))
    phi = presets.AUTOCORRELATION_15MIN ** (step_s / 900)
    for i, name in enumerate(names):
        w = presets.DAY_WEIGHT
        residual = _ar1(random, len(times), phi)
        common = presets.UP_DOWN_RESIDUAL
        other = common * residual + _rest(common) * _ar1(random, len(times), phi)
        load, up_load = w * curve + _rest(w) * residual, w * curve + _rest(w) * other
        series = {
            "down_bps": down[i] * _dips(load, down_dip[i], p.down_low_share),
            "up_bps": up[i] * _dips(up_load, up_dip[i], p.up_low_share),
            "rtt_s": rtt[i] * _swing(0.5 * load + _rest(0.5) * _ar1(random, len(times), phi), p.rtt_sigma),
            "jitter_s": jitter[i]
            * _swing(0.5 * load + _rest(0.5) * _ar1(random, len(times), phi), presets.JITTER_SIGMA),
            "loss": np.minimum(1.0, loss[i] * _swing(_ar1(random, len(times), phi), presets.LOSS_SIGMA)),
        }
        yield LinkTrace(
            name,
            times[window] - start_hour * 3600,
            **{k: v[window] for k, v in series.items()},
            span_s=float(duration_s),
            source=p.title,
        )


def daily_load(times_s: np.ndarray) -> np.ndarray:
    """Load at times of day, 0 to 1, from the preset curve."""
    hours, load = zip(*presets.DAY)
    return np.interp(times_s / 3600 % 24, hours, load, period=24)


def _ar1(random, n: int, phi: float) -> np.ndarray:
    """A stationary AR(1) process with unit variance."""
    shocks = random.standard_normal(n) * np.sqrt(1 - phi * phi)
    out, value = np.empty(n), random.standard_normal()
    for i in range(n):
        value = phi * value + shocks[i]
        out[i] = value
    return out


def _rest(weight: float) -> float:
    return float(np.sqrt(1 - weight * weight))


def _standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / (x.std() or 1.0)


def _dips(load: np.ndarray, dip: float, low_share: float) -> np.ndarray:
    """Factors with mean 1 and least value 1 - dip, falling as the load rises."""
    if len(load) < 2:
        return np.ones(len(load))
    busy = (ranks(load) / (len(load) - 1)) ** (1 / low_share - 1)
    return 1 + dip * (busy.mean() - busy) / (1 - busy.mean())


def _swing(x: np.ndarray, sigma: float) -> np.ndarray:
    """Log-normal factors with mean 1."""
    factors = np.exp(sigma * x)
    return factors / factors.mean()
