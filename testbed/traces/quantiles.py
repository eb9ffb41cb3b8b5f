"""A distribution given by its quantiles, and draws from it that keep them."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from testbed.traces.presets import LEVELS, Quantiles

_NORMAL = NormalDist()
_TAIL = 0.01  # nothing is drawn beyond the quantiles at 1 and 99 %


def normal_score(p: np.ndarray) -> np.ndarray:
    """Standard normal quantiles."""
    return np.array([_NORMAL.inv_cdf(float(x)) for x in np.ravel(p)]).reshape(np.shape(p))


def at_level(quantiles: Quantiles, p: np.ndarray) -> np.ndarray:
    """The distribution's quantiles at levels `p`, from the known ones at LEVELS.

    Their logarithms are joined by straight lines over the normal score, the outermost ones going on to 1 and
    99 %. Where one of them is 0, the values themselves are joined.
    """
    known = np.array(quantiles, dtype=float)
    z, score = normal_score(np.array(LEVELS)), normal_score(np.clip(p, _TAIL, 1 - _TAIL))
    positive = bool((known > 0).all())
    y = np.log(known) if positive else known
    piece = np.clip(np.searchsorted(z, score, side="right") - 1, 0, len(z) - 2)
    value = y[piece] + (y[piece + 1] - y[piece]) / (z[piece + 1] - z[piece]) * (score - z[piece])
    return np.exp(value) if positive else np.maximum(value, 0.0)


def levels(n: int) -> np.ndarray:
    """n levels at which a sample's own quantiles are those of the distribution.

    The outermost ones lie as far within as the middles of n equal parts, so that small samples are typical.
    """
    if n == 1:
        return np.array([0.5])
    return np.clip(np.arange(n) / (n - 1), 0.5 / n, 1 - 0.5 / n)


class Stratified:
    """Uniform draws of which every `size` in a row fall into as many equal parts of [0, 1], one into each."""

    def __init__(self, random: np.random.RandomState, size: int = 400):
        self.random, self.size = random, size
        self.left: list[float] = []

    def draw(self) -> float:
        if not self.left:
            parts = self.random.permutation(self.size) + self.random.random_sample(self.size)
            self.left = (parts / self.size).tolist()
        return self.left.pop()


def correlated_ranks(random: np.random.RandomState, n: int, correlations: tuple[float, ...]) -> list[np.ndarray]:
    """Permutations of 0 to n-1, the second and later ones with those Spearman correlations to the first.

    A Gaussian copula: Pearson's r = 2 sin(pi rho / 6) of the normal scores gives Spearman's rho.
    """
    lead = random.standard_normal(n)
    out = [ranks(lead)]
    for rho in correlations:
        r = 2 * np.sin(np.pi * rho / 6)
        out.append(ranks(r * lead + np.sqrt(1 - r * r) * random.standard_normal(n)))
    return out


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, from 0."""
    out = np.empty(len(values), dtype=int)
    out[np.argsort(values, kind="stable")] = np.arange(len(values))
    return out
