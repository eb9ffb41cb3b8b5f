"""Several runs of one experiment: means with 95 % intervals, since one run proves nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.report import text
from testbed.report.run_summary import RunSummary, summarize


@dataclass(frozen=True)
class Estimate:
    """Mean of n runs with the half-width of its t-interval (None below two runs), and the runs' values."""

    mean: float | None
    half_width: float | None
    n: int
    values: list[float]


@dataclass(frozen=True)
class Repeats:
    """Over repeats: each run's median step time, goodput, final loss, mean detection and recovery time."""

    runs: list[str]
    verdicts: list[str]
    confidence: float
    step_time_s: Estimate
    samples_per_s: Estimate
    tokens_per_s: Estimate
    final_loss: Estimate
    detection_s: Estimate
    recovery_s: Estimate

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def estimate(values: Sequence[float | None], confidence: float = 0.95) -> Estimate:
    """Mean and Student's t-interval of independent runs; values that are None or not finite are left out."""
    known = [float(v) for v in values if v is not None and np.isfinite(v)]
    if not known:
        return Estimate(None, None, 0, [])
    mean, n = float(np.mean(known)), len(known)
    if n < 2:
        return Estimate(mean, None, n, known)
    from scipy import stats  # takes half a second to load

    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1) * np.std(known, ddof=1) / np.sqrt(n))
    return Estimate(mean, half, n, known)


def summarize_repeats(run_dirs: Sequence[str | Path | RunSummary], confidence: float = 0.95) -> Repeats:
    """Over repeats of one experiment; runs of any verdict count, and the verdicts are listed.

    Raises:
        InputError: one of them is no run folder.
    """
    runs = [r if isinstance(r, RunSummary) else summarize(r) for r in run_dirs]

    def over(pick) -> Estimate:
        return estimate([pick(r) for r in runs], confidence)

    return Repeats(
        runs=[r.path for r in runs],
        verdicts=[r.verdict for r in runs],
        confidence=confidence,
        step_time_s=over(lambda r: r.step_time_median_s),
        samples_per_s=over(lambda r: r.samples_per_s),
        tokens_per_s=over(lambda r: r.tokens_per_s),
        final_loss=over(lambda r: r.final_loss),
        detection_s=over(lambda r: np.mean(r.detection_s) if r.detection_s else None),
        recovery_s=over(lambda r: np.mean(r.recovery_s) if r.recovery_s else None),
    )


def render_repeats(repeats: Repeats) -> RenderableType:
    """A table for the command line."""
    percent = f"{100 * repeats.confidence:g} %"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", style="cyan", no_wrap=True)
    table.add_column("mean", justify="right")
    table.add_column(f"± {percent}", justify="right")
    table.add_column("runs", justify="right", style="dim")
    shown = [
        ("Step time (median of a run)", repeats.step_time_s, text.seconds),
        ("Tokens/s", repeats.tokens_per_s, text.number),
        ("Samples/s", repeats.samples_per_s, text.number),
        ("Final loss", repeats.final_loss, text.loss),
        ("Detection", repeats.detection_s, text.seconds),
        ("Recovery", repeats.recovery_s, text.seconds),
    ]
    for name, e, show in shown:
        if e.n:
            table.add_row(name, show(e.mean), show(e.half_width) if e.half_width is not None else text.DASH, str(e.n))
    invalid = sum(v != "VALID" for v in repeats.verdicts)
    head = Text(f"{len(repeats.runs)} runs", style="bold")
    if invalid:
        head.append(
            f"  {invalid} of them not VALID: {', '.join(sorted(set(repeats.verdicts) - {'VALID'}))}", style="bold red"
        )
    if len(repeats.runs) < 2:
        head.append("  one run proves nothing: no interval", style="yellow")
    return Group(head, table)
