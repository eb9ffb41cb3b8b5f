"""Seeded availability of populations of devices, from distributions of sessions, gaps and times of day."""

from __future__ import annotations

import numpy as np

from testbed.errors import unknown
from testbed.traces.availability import Availability
from testbed.traces.presets import AVAILABILITY, RenewalPreset, SessionPreset, StagedPreset
from testbed.traces.quantiles import Stratified, at_level, levels, normal_score

DAY_S = 86400.0


def generate_availability(preset: str, devices: int, *, seed: int, days: int = 1) -> dict[str, Availability]:
    """Availability by device, named after the preset ('evening-07'), over whole days from midnight.

    A session that would run beyond the end goes on at the beginning: a looped trace has whole sessions.
    The same arguments give the same intervals on every machine.

    Raises:
        InputError: an unknown preset.
    """
    if preset not in AVAILABILITY:
        raise unknown("--preset", "availability preset", preset, AVAILABILITY)
    random = np.random.RandomState(seed)  # frozen streams, as in generate_links
    p, span = AVAILABILITY[preset], days * DAY_S
    width = max(2, len(str(devices)))
    names = [f"{preset}-{i + 1:0{width}d}" for i in range(devices)]
    if isinstance(p, SessionPreset):
        raw = _sessions(p, devices, days, random)
    elif isinstance(p, RenewalPreset):
        raw = _renewals(p, devices, span, random)
    else:
        raw, span = _staged(p, devices, random), p.span_s
    return {
        name: Availability(name, _wrapped(intervals, span), span, source=p.title) for name, intervals in zip(names, raw)
    }


def _sessions(p: SessionPreset, devices: int, days: int, random) -> list[np.ndarray]:
    always = set(random.permutation(devices)[: round(p.always_on * devices)].tolist())
    n = (devices - len(always)) * days
    lengths = at_level(p.length_min, levels(n))[random.permutation(n)] * 60 if n else np.zeros(0)
    hours, weights = (np.array(column, dtype=float) for column in zip(*p.starts))
    out, k = [], 0
    for device in range(devices):
        if device in always:
            out.append(np.array([[0.0, days * DAY_S]]))
            continue
        picked = np.searchsorted(np.cumsum(weights / weights.sum()), random.random_sample(days), side="right")
        starts = np.arange(days) * DAY_S + (hours[picked] + random.random_sample(days)) * 3600
        out.append(np.column_stack([starts, starts + lengths[k : k + days]]))
        k += days
    return out


def _renewals(p: RenewalPreset, devices: int, span: float, random) -> list[np.ndarray]:
    shape, scale = p.up_weibull
    mu, sigma = p.down_lognormal
    lengths, between, out = Stratified(random), Stratified(random), []
    for _ in range(devices):
        # begin a while before zero, so that the state at zero is that of an old process
        t, intervals = -30 * DAY_S * random.random_sample() - 30 * DAY_S, []
        while t < span:
            up = max(1.0, scale * (-np.log(1 - lengths.draw())) ** (1 / shape) * 3600)
            if t + up > 0:
                intervals.append((max(t, 0.0), min(t + up, span)))
            level = np.clip(between.draw(), 1e-9, 1 - 1e-9)
            t += up + max(1.0, np.exp(mu + sigma * float(normal_score(np.array(level)))) * 3600)
        out.append(np.array(intervals).reshape(-1, 2))
    return out


def _staged(p: StagedPreset, devices: int, random) -> list[np.ndarray]:
    leavers = random.permutation(devices)[: p.leavers].tolist()
    out = []
    for device in range(devices):
        leave, away = (low + (high - low) * random.random_sample() for low, high in (p.leave_s, p.away_s))
        edges = [0.0, leave, leave + away, p.span_s] if device in leavers else [0.0, p.span_s]
        out.append(np.array(edges).reshape(-1, 2))
    return out


def _wrapped(intervals: np.ndarray, span: float) -> np.ndarray:
    """Intervals on the circle of length `span`, cut at its border, rounded to whole seconds, united."""
    pieces = []
    for start, stop in np.round(intervals).tolist():
        if stop - start >= span:
            return np.array([[0.0, span]])
        start, stop = start % span, start % span + stop - start
        pieces += [(start, min(stop, span))] + ([(0.0, stop - span)] if stop > span else [])
    merged: list[list[float]] = []
    for start, stop in sorted(p for p in pieces if p[1] > p[0]):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return np.array(merged, dtype=float).reshape(-1, 2)
