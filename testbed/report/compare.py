"""Runs side by side: repeats of one experiment are one group, with intervals over its runs.

Runs are repeats when their resolved experiments are the same but for seed, description and outputs, and the same engine
ran them. What tells groups apart is found by comparing their experiments, setting by setting.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from testbed.errors import InputError, looking
from testbed.measurement.events import natural
from testbed.measurement.run_folder import MANIFEST, RunFolder
from testbed.report.compare_figures import RunFigures, run_figures

METHODS = ("t", "bootstrap")
_NOT_SETTINGS = ("seed", "description", "outputs", "name", "engine", "simulation")
_RESAMPLES = 9999


@dataclass(frozen=True)
class Interval:
    """Mean of n runs and its confidence interval; low, high None where there is none (n = 1)."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    values: list[float]


@dataclass(frozen=True)
class Group:
    """Repeats of one experiment. metrics: by name, see compare_figures.METRICS; settings: where groups differ."""

    label: str
    name: str
    engine: str
    runner: str
    devices: int
    settings: dict[str, Any]
    runs: list[str]
    verdicts: list[str]
    statuses: list[str]
    metrics: dict[str, Interval]
    powered_devices: int

    @property
    def doubtful(self) -> int:
        """Runs whose numbers should not be relied on: INVALID, or not complete."""
        return sum(v == "INVALID" or s != "complete" for v, s in zip(self.verdicts, self.statuses))


@dataclass(frozen=True)
class Comparison:
    groups: list[Group]
    confidence: float
    method: str
    g_co2_per_kwh: float
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@looking()
def find_runs(arguments: Sequence[str | Path]) -> list[Path]:
    """Run folders by path, name, glob pattern, or as the runs in a folder, each once, in natural order.

    Raises:
        InputError: an argument stands for no run.
    """
    found: dict[Path, None] = {}
    for argument in map(str, arguments):
        pattern = any(c in argument for c in "*?[")
        paths = [Path(p) for p in sorted(glob.glob(argument), key=natural)] if pattern else [Path(argument)]
        runs = []
        for path in paths:
            inner = sorted(p.parent for p in path.glob(f"*/{MANIFEST}")) if path.is_dir() else []
            if (path / MANIFEST).exists() or not (inner or pattern):
                runs.append(RunFolder.open(path).path)
            else:
                runs += sorted(inner, key=lambda p: natural(p.name))
        if not runs:
            raise InputError(argument, "stands for no run folder", hint="run folders are made by `testbed run`")
        found.update(dict.fromkeys(p.resolve() for p in runs))
    return list(found)


def compare(
    runs: Sequence[str | Path], *, confidence: float = 0.95, method: str = "t", g_co2_per_kwh: float
) -> Comparison:
    """Group runs and estimate each metric's mean.

    method: 't' (Student's interval of the mean, runs independent and about normal) or 'bootstrap' (BCa, 9,999
    resamples, fixed seed; it needs some ten runs to be worth more). g_co2_per_kwh: of the electricity.

    Raises:
        InputError: a path is no run folder.
    """
    read = [run_figures(path, g_co2_per_kwh=g_co2_per_kwh) for path in runs]
    by_key: dict[str, list[RunFigures]] = {}
    for figures in read:
        by_key.setdefault(_key(figures), []).append(figures)
    members = list(by_key.values())
    flats = [_flat(m[0].experiment) for m in members]
    groups = []
    for own, label, settings in zip(members, *_labels(members, flats)):
        first = own[0]
        metrics = {name: interval([f.metrics[name] for f in own], confidence, method) for name in first.metrics}
        groups.append(Group(
            label, first.name, first.engine, first.runner, first.devices, settings, [f.path for f in own],
            [f.verdict for f in own], [f.status for f in own], metrics, first.powered_devices,
        ))  # fmt: skip
    return Comparison(groups, confidence, method, g_co2_per_kwh, _notes(groups, confidence, method))


def interval(values: Sequence[float | None], confidence: float = 0.95, method: str = "t") -> Interval:
    """Mean with its interval over independent runs; values that are None or not finite are left out."""
    known = np.array([float(v) for v in values if v is not None and np.isfinite(v)])
    if not len(known):
        return Interval(None, None, None, 0, [])
    mean, n = float(known.mean()), len(known)
    if n < 2:
        return Interval(mean, None, None, n, known.tolist())
    if np.ptp(known) == 0:
        return Interval(mean, mean, mean, n, known.tolist())
    if method == "bootstrap":
        low, high = stats.bootstrap(
            (known,),
            np.mean,
            confidence_level=confidence,
            n_resamples=_RESAMPLES,
            random_state=np.random.default_rng(0),
        ).confidence_interval
    else:
        half = stats.t.ppf(0.5 + confidence / 2, n - 1) * known.std(ddof=1) / np.sqrt(n)
        low, high = mean - half, mean + half
    return Interval(mean, float(low), float(high), n, known.tolist())


def _key(figures: RunFigures) -> str:
    settings = {k: v for k, v in figures.experiment.items() if k not in _NOT_SETTINGS}
    return json.dumps([figures.name, figures.engine, settings], sort_keys=True, default=str)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """{'training.batch': 16, …}; lists and empty sections as they are."""
    if isinstance(value, Mapping) and value:
        parts = [_flat(inner, f"{prefix}.{key}" if prefix else str(key)) for key, inner in value.items()]
        return {k: v for part in parts for k, v in part.items()}
    return {prefix: value}


def _labels(members: list[list[RunFigures]], flats: list[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """A label for each group, and the settings in which the groups differ."""
    keys = sorted({k for flat in flats for k in flat if k.split(".")[0] not in _NOT_SETTINGS})
    differing = [k for k in keys if len({json.dumps(f.get(k), sort_keys=True, default=str) for f in flats}) > 1]
    settings = [{k: flat.get(k) for k in differing} for flat in flats]
    engines = {m[0].engine for m in members}
    labels = []
    for own, flat in zip(members, flats):
        namesakes = [f for m, f in zip(members, flats) if m[0].name == own[0].name]
        own_keys = [k for k in differing if len({json.dumps(f.get(k), default=str) for f in namesakes}) > 1]
        parts = [f"{k.split('.')[-1]}={_short(flat.get(k))}" for k in own_keys]
        if len(engines) > 1:
            parts.append(own[0].engine)
        labels.append(" ".join([own[0].name, *parts]))
    return labels, settings


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:23] + "…"


def _notes(groups: list[Group], confidence: float, method: str) -> list[str]:
    percent = f"{100 * confidence:g} %"
    how = {
        "t": "by Student's t (runs independent, about normal)",
        "bootstrap": f"by bootstrap (BCa, {_RESAMPLES:,} resamples)",
    }[method]
    notes = [f"{percent} intervals of the mean over runs, {how}; ± is half their width."]
    if any(len(g.runs) == 1 for g in groups):
        notes.append("One run has no interval: n = 1 says nothing about chance.")
    same = [
        g.label
        for g in groups
        if len(g.runs) > 1 and g.engine == "simulation" and all(i.n < 2 or i.low == i.high for i in g.metrics.values())
    ]
    if same:
        notes.append(
            f"All repeats alike ({', '.join(same[:4])}): a simulation gives the same run for the same seed; "
            "vary the seed for an interval."
        )
    doubtful = [f"{g.label}: {g.doubtful} of {len(g.runs)}" for g in groups if g.doubtful]
    if doubtful:
        notes.append(
            f"INVALID or incomplete runs are in these means and should not be relied on: {'; '.join(doubtful)}."
        )
    return notes
