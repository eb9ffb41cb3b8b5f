"""How well one engine's runs predict the other's: errors of step time, traffic and recovery, case by case.

A case is one experiment, run one or more times by each engine. Its error in a metric is (simulated - emulated) /
emulated of the means over runs. Reads run folders only.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from testbed.measurement.run_folder import json_text
from testbed.report.compare import Interval, interval
from testbed.report.compare_figures import METRICS, RunFigures, run_figures
from testbed.report.text import DASH

COMPARED = (
    "step_time_s",
    "device_down_bytes",
    "device_up_bytes",
    "server_egress_bytes",
    "outage_s",
    "detection_s",
    "recovery_s",
)
# What a simulation is asked for: largest median, 90 % quantile and maximum of the absolute errors; None: not asked.
# Recovery after detection alone is shown, not judged: for Cleave it is tens of milliseconds, whatever was under way.
LIMITS: dict[str, tuple[float | None, float | None, float | None]] = {
    "step_time_s": (0.10, 0.20, None), "outage_s": (None, None, 0.25),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One experiment in both engines. emulated, simulated: by metric; errors: relative, where both have a value."""

    name: str
    runner: str
    devices: int
    emulated: dict[str, Interval]
    simulated: dict[str, Interval]
    errors: dict[str, float]
    verdicts: list[str]
    problems: list[str]
    runs: list[str]

    @property
    def valid(self) -> bool:
        """Whether every emulated run was VALID, and all runs completed."""
        return not self.problems and all(v == "VALID" for v in self.verdicts)


@dataclass(frozen=True)
class ErrorSummary:
    """Absolute relative errors of a metric over cases. met: whether it is within LIMITS; None: nothing asked."""

    metric: str
    cases: int
    median: float
    p90: float
    largest: float
    bias: float  # median of the signed errors
    met: bool | None


@dataclass(frozen=True)
class Validation:
    cases: list[Case]
    over_valid: list[ErrorSummary]
    over_all: list[ErrorSummary]

    @property
    def met(self) -> bool:
        """Whether all that is asked for is met, over the cases whose emulation was VALID; False without any."""
        asked = [s.met for s in self.over_valid if s.met is not None]
        return bool(asked) and all(asked)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met, "limits": LIMITS}


def case_of(
    name: str, emulated: Sequence[str | Path], simulated: Sequence[str | Path], confidence: float = 0.95
) -> Case:
    """Read a case from its run folders. Raises InputError: one is no run folder."""
    real, virtual = ([run_figures(path) for path in paths] for paths in (emulated, simulated))
    means = [{m: interval([f.metrics[m] for f in runs], confidence) for m in COMPARED} for runs in (real, virtual)]
    errors = {}
    for m in COMPARED:
        measured, predicted = means[0][m].mean, means[1][m].mean
        if measured and predicted is not None:
            errors[m] = predicted / measured - 1
    first = (real or virtual)[0]
    return Case(
        name,
        first.runner,
        first.devices,
        *means,
        errors,
        [f.verdict for f in real],
        _problems(real, virtual),
        [Path(f.path).name for f in (*real, *virtual)],
    )


def _problems(real: list[RunFigures], virtual: list[RunFigures]) -> list[str]:
    problems = [f"{f.engine} run {f.status}" for f in (*real, *virtual) if f.status != "complete"]
    for m in ("step_time_s", "outage_s"):
        known = [any(f.metrics[m] is not None for f in runs) for runs in (real, virtual)]
        if known[0] != known[1]:
            problems.append(f"{METRICS[m].title.lower()} in the {'emulation' if known[0] else 'simulation'} alone")
    return problems


def validation(cases: Sequence[Case]) -> Validation:
    return Validation(list(cases), _summaries([c for c in cases if c.valid]), _summaries(cases))


def _summaries(cases: Sequence[Case]) -> list[ErrorSummary]:
    summaries = []
    for m in COMPARED:
        signed = np.array([c.errors[m] for c in cases if m in c.errors])
        if not len(signed):
            continue
        size = np.abs(signed)
        found = float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max())
        limits = LIMITS.get(m)
        met = None if limits is None else all(limit is None or f <= limit for f, limit in zip(found, limits))
        summaries.append(ErrorSummary(m, len(size), *found, float(np.median(signed)), met))
    return summaries


# -- as text


def _error(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:+.1f} %"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _asked(metric: str) -> str:
    words = ("median", "p90", "largest")
    return ", ".join(f"{w} ≤ {100 * x:.0f} %" for w, x in zip(words, LIMITS.get(metric, ())) if x is not None)


def _pair(case: Case, metric: str) -> str:
    about, real, virtual = METRICS[metric], case.emulated[metric], case.simulated[metric]
    if not real.n and not virtual.n:
        return DASH
    spread = f" ± {about.show((real.high - real.low) / 2)}" if real.low is not None and real.high > real.low else ""
    return f"{about.show(virtual.mean)} / {about.show(real.mean)}{spread}"


def _traffic_error(case: Case) -> float | None:
    """Of a device's bytes, down or up, whichever is larger."""
    errors = [case.errors[m] for m in ("device_down_bytes", "device_up_bytes") if m in case.errors]
    return max(errors, key=abs, default=None)


CASE_HEAD = (
    "Case",
    "Step time: simulated / emulated",
    "Error",
    "Traffic",
    "Loss to recovery: simulated / emulated",
    "Error",
    "Emulation",
)
SUMMARY_HEAD = ("Error of", "Cases", "Median", "90 % quantile", "Largest", "Bias", "Asked", "Met")


def case_rows(v: Validation) -> list[list[str]]:
    """As CASE_HEAD."""
    return [
        [c.name, _pair(c, "step_time_s"), _error(c.errors.get("step_time_s")), _error(_traffic_error(c)),
         _pair(c, "outage_s"), _error(c.errors.get("outage_s")),
         "; ".join([", ".join(sorted(set(c.verdicts))), *c.problems])]
        for c in v.cases
    ]  # fmt: skip


def summary_rows(summaries: Sequence[ErrorSummary]) -> list[list[str]]:
    """As SUMMARY_HEAD."""
    return [
        [METRICS[s.metric].title, str(s.cases), _percent(s.median), _percent(s.p90), _percent(s.largest),
         _error(s.bias), _asked(s.metric) or DASH, {True: "yes", False: "NO", None: DASH}[s.met]]
        for s in summaries
    ]  # fmt: skip


def _blocks(v: Validation) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    doubtful = sum(not c.valid for c in v.cases)
    blocks = [("Cases", CASE_HEAD, case_rows(v))]
    if v.over_valid:
        blocks.append(
            (
                f"Errors over the {len(v.cases) - doubtful} cases whose emulation was VALID",
                SUMMARY_HEAD,
                summary_rows(v.over_valid),
            )
        )
    if doubtful:
        blocks.append(
            (
                f"Errors over all {len(v.cases)} cases, {doubtful} of them not to be relied on",
                SUMMARY_HEAD,
                summary_rows(v.over_all),
            )
        )
    return blocks


def render_validation(v: Validation) -> RenderableType:
    """For the terminal."""
    parts: list[RenderableType] = []
    for title, head, rows in _blocks(v):
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        for i, name in enumerate(head):
            table.add_column(name, justify="left" if i == 0 or name == "Emulation" else "right", overflow="fold")
        for row in rows:
            table.add_row(*row, style="red" if "NO" in row or "INVALID" in row[-1] else "")
        parts += [table, Text("")]
    return Lines(*parts)


def markdown(v: Validation) -> str:
    lines = []
    for title, head, rows in _blocks(v):
        lines += [f"**{title}**", "", "| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
        lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def json_of(v: Validation) -> str:
    return json_text(v.as_dict())


def csv_text(v: Validation) -> str:
    """A row a case and metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "case",
            "runner",
            "devices",
            "metric",
            "unit",
            "emulated",
            "emulated_low",
            "emulated_high",
            "runs",
            "simulated",
            "error",
            "valid",
        ]
    )
    for c in v.cases:
        for m, error in c.errors.items():
            e = c.emulated[m]
            writer.writerow(
                [
                    c.name,
                    c.runner,
                    c.devices,
                    m,
                    METRICS[m].unit,
                    e.mean,
                    e.low,
                    e.high,
                    e.n,
                    c.simulated[m].mean,
                    error,
                    c.valid,
                ]
            )
    return out.getvalue()
