"""The statistics of verification: intervals of proportions, deviations of gaps, where a step took effect. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta


def binomial_interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's exact interval for a probability of which `trials` draws gave `hits`.

    It covers the true value in at least `confidence` of all cases, however rare the event. (C. J. Clopper,
    E. S. Pearson: The use of confidence or fiducial limits illustrated in the case of the binomial,
    Biometrika 26, 1934.)

    Raises:
        ValueError: no trials, or more hits than trials.
    """
    if not 0 <= hits <= trials or trials < 1:
        raise ValueError(f"{hits} of {trials}: expected 0 to {trials} hits of at least one trial")
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


@dataclass(frozen=True)
class Spread:
    """Median, 90th and 99th percentile."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        """NaN for no values."""
        if not len(values):
            return cls(math.nan, math.nan, math.nan)
        return cls(*(float(x) for x in np.percentile(values, (50, 90, 99))))


def gap_deviations(arrivals_s: np.ndarray, gap_s: float) -> np.ndarray:
    """|gap - ideal| / ideal of successive packets, the fidelity measure of Mininet-HiFi.

    Packets of a queue that never runs empty should be one transmission time apart. (N. Handigol et al.:
    Reproducible network experiments using container-based emulation, CoNEXT 2012, section 3.4.)
    """
    return np.abs(np.diff(arrivals_s) - gap_s) / gap_s


def window_deviations(arrivals_s: np.ndarray, gap_s: float, window_s: float) -> np.ndarray:
    """|packets that arrived - packets due| / due over consecutive spans of as many packets as `window_s` takes.

    The same measure over longer stretches: what is left of a late packet when those after it catch up.
    """
    every = max(1, round(window_s / gap_s))
    ends = arrivals_s[::every]
    return np.abs(np.diff(ends) - every * gap_s) / (every * gap_s)


def step_up(times_s: np.ndarray, values: np.ndarray, before: float, after: float) -> float | None:
    """The time from which on values are `after` rather than `before`: the split with the least squared error.

    Returns:
        Time of the first value after the split; None when it lies at either end (no step was seen).
    """
    if len(values) < 2:
        return None
    left = np.concatenate(([0.0], np.cumsum((values - before) ** 2)))
    right = np.concatenate((np.cumsum(((values - after) ** 2)[::-1])[::-1], [0.0]))
    split = int(np.argmin(left + right))
    return float(times_s[split]) if 0 < split < len(values) else None


def deviation_error(sigma: float, count: int) -> float:
    """Standard error of a measured standard deviation of `count` Gaussian values."""
    return sigma / math.sqrt(2 * max(1, count - 1))
