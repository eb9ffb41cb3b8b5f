"""docs/results.md from what simulations gave: every number, and every sentence with a number, comes from the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.report import text
from testbed.report.compare_figures import METRICS

BASELINES = ("1f1b", "gpipe", "parameter-server", "tensor")  # at the same devices; the GPU is another matter
OWN = "cleave"
SATURATED, IDLE = 0.8, 0.9  # share of the server's link in use, of a device's time idle: then it is what binds


@dataclass(frozen=True)
class Cell:
    """What one simulation gave. status: ok, does-not-fit, failed, gave-up; message: why not."""

    status: str
    message: str | None
    metrics: Mapping[str, float | None]
    server_up: float | None
    server_down: float | None

    def value(self, metric: str) -> float | None:
        return self.metrics.get(metric) if self.status == "ok" else None


@dataclass(frozen=True)
class Table:
    """A question's answers. cells: (strategy, value) -> Cell, where it was asked."""

    name: str
    title: str
    about: str
    axis: str
    values: Sequence[str]
    numeric: bool
    strategies: Sequence[str]
    figures: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]


@dataclass(frozen=True)
class Results:
    tables: Sequence[Table]
    titles: Mapping[str, str]  # of strategies
    base: str  # the experiment that all started from, YAML
    asked: int = 0  # points of all questions, simulated or not


def cell_text(cell: Cell | None, metric: str) -> str:
    """A table's cell: the number, or why there is none."""
    if cell is None:
        return ""
    if cell.status == "ok":
        return METRICS[metric].show(cell.metrics.get(metric))
    if cell.status == "does-not-fit":
        return f"memory: {cell.message}"
    return {"gave-up": "not simulated", "failed": "failed"}[cell.status]


def _table(t: Table, titles: Mapping[str, str], metric: str, caption: str | None = None) -> list[str]:
    shown = [s for s in t.strategies if any((s, v) in t.cells for v in t.values)]
    lines = [
        f"**{caption or METRICS[metric].title}**",
        "",
        f"| {t.axis} | " + " | ".join(titles[s] for s in shown) + " |",
        "| --- " + "| ---: " * len(shown) + "|",
    ]
    for v in t.values:
        cells = [cell_text(t.cells.get((s, v)), metric) for s in shown]
        lines.append("| " + " | ".join([v if not t.numeric else text.number(float(v)), *cells]) + " |")
    return [*lines, ""]


def _reasons(t: Table, titles: Mapping[str, str]) -> list[str]:
    """Failures in full, below the tables."""
    found: dict[str, list[str]] = {}
    for (s, v), cell in t.cells.items():
        if cell.status in ("failed", "gave-up"):
            found.setdefault(f"{titles[s]}: {cell.message}", []).append(v)
    return [f"* {message} ({t.axis.lower()} {', '.join(values)})" for message, values in found.items()]


def binding(cell: Cell) -> str:
    """What a simulation says held its step up, from its own utilisations."""
    used = max((cell.server_up or 0.0, "sends"), (cell.server_down or 0.0, "receives"))
    if used[0] >= SATURATED:
        return f"the server's link ({text.percent(used[0], 2)} of what it {used[1]})"
    idle = cell.metrics.get("idle_fraction")
    if idle is not None and idle >= IDLE:
        return f"transfers over home links and their delays (devices compute {text.percent(1 - idle, 2)} of the time)"
    if idle is not None:
        return f"computing and transfers together (devices compute {text.percent(1 - idle, 2)} of the time)"
    return "not known"


# -- the paper's claims


def _pairs(results: Results, metric: str) -> list[tuple[Table, str, str, float, float]]:
    """(question, value, baseline, its number, Cleave's) wherever both have one."""
    found = []
    for t in results.tables:
        for v in t.values:
            own = t.cells.get((OWN, v))
            for s in BASELINES:
                other = t.cells.get((s, v))
                if own and other and own.value(metric) and other.value(metric):
                    found.append((t, v, s, other.value(metric), own.value(metric)))
    return found


def _range(ratios: Sequence[float]) -> str:
    low, high = (f"{text.number(float(f'{x:.2g}'))}×" for x in (min(ratios), max(ratios)))
    return low if low == high else f"{low} to {high}"


def claims(results: Results) -> list[str]:
    """Each claim of the paper, what the simulations gave, and what the numbers say of the reason."""
    return [*_speed(results), *_recovery(results), *_traffic(results), *_scale(results), *_cloud(results)]


def _speed(results: Results) -> list[str]:
    lines = ["**4-10× less time a batch than edge baselines at the same devices.** "]
    pairs = [p for p in _pairs(results, "step_time_s") if p[0].name not in ("recovery", "churn")]
    if not pairs:
        return [lines[0] + "No point of these simulations has both.", ""]
    best: dict[tuple[str, str], tuple[Table, str, float]] = {}
    for t, v, _, other, own in pairs:
        ratio = other / own
        if (t.name, v) not in best or ratio < best[t.name, v][2]:
            best[t.name, v] = (t, v, ratio)
    ratios = [b[2] for b in best.values()]
    met, faster = sum(r >= 4 for r in ratios), sum(r > 1 for r in ratios)
    lines[0] += (
        f"Against the quickest baseline that could run, Cleave's speed was {_range(ratios)} over {len(ratios)} "
        f"settings; it was quicker in {faster} of them, and at least 4× quicker in {met}. "
        + (
            "The claim holds in all of these settings."
            if met == len(ratios)
            else "The claim is not reproduced in these settings."
            if not met
            else "The claim holds in a part of them."
        )
    )
    lines.append("")
    for s in BASELINES:
        own = [p[3] / p[4] for p in pairs if p[2] == s]
        if own:
            lines.append(f"* Against {results.titles[s].lower()}: {_range(own)}, {len(own)} settings.")
    slow = [(t, v) for t, v, r in best.values() if r < 4]
    if slow:
        lines += ["", "Where it falls short, what held Cleave's step up was:"]
        why: dict[str, list[str]] = {}
        for t, v in slow:
            reason = binding(t.cells[OWN, v])
            why.setdefault(_kind(reason), []).append(f"{t.name} {v} ({_figure(reason)})")
        lines += [f"* {kind}: {', '.join(where)}" for kind, where in why.items()]
    lacking = _lacking(results)
    if lacking:
        lines += [
            "",
            f"The ratio leaves out what could not run at all for want of memory: {lacking}. Cleave ran there "
            "because its devices keep no parameters.",
        ]
    return [*lines, ""]


def _kind(reason: str) -> str:
    return reason.split(" (")[0]


def _figure(reason: str) -> str:
    return reason.split(" (")[1].rstrip(")") if " (" in reason else reason


def _lacking(results: Results) -> str:
    found = []
    for t in results.tables:
        for v in t.values:
            names = [
                results.titles[s].lower()
                for s in BASELINES
                if (c := t.cells.get((s, v))) is not None and c.status == "does-not-fit"
            ]
            own = t.cells.get((OWN, v))
            if names and own is not None and own.status == "ok":
                found.append(f"{t.name} {v} ({'; '.join(names)})")
    return ", ".join(found)


def _recovery(results: Results) -> list[str]:
    head = "**Recovery from a lost device at least 100× faster.** "
    found = [
        (v, t.cells[OWN, v], s, t.cells[s, v])
        for t in results.tables
        if t.name == "recovery"
        for v in t.values
        for s in BASELINES
        if (OWN, v) in t.cells and (s, v) in t.cells
    ]
    found = [f for f in found if f[1].value("recovery_s") is not None and f[3].value("recovery_s")]
    if not found:
        return [head + "No point of these simulations has both recoveries.", ""]
    own = found[0][1]
    listed = "; ".join(f"{results.titles[s].lower()} {text.seconds(c.value('recovery_s'))}" for _, _, s, c in found)
    ratios = [
        c.value("recovery_s") / mine.value("recovery_s") if mine.value("recovery_s") else math.inf
        for _, mine, _, c in found
    ]
    met = sum(r >= 100 for r in ratios)
    verdict = (
        "Reproduced."
        if met == len(ratios)
        else f"Reproduced against {met} of {len(ratios)} baselines."
        if met
        else "Not reproduced."
    )
    lasted = (
        "and Cleave none: nothing was waiting for that device when it was missed"
        if max(ratios) == math.inf
        else f"{_range(ratios)} as long as Cleave's {text.seconds(own.value('recovery_s'))}"
    )
    lines = head + f"From detection to being back where it was, it took {listed}; {lasted}. {verdict}"
    whole = [
        c.value("outage_s") / mine.value("outage_s")
        for _, mine, _, c in found
        if c.value("outage_s") and mine.value("outage_s")
    ]
    if whole:
        lines += (
            f" From the loss on, its detection included, they took {_range(whole)} Cleave's "
            f"{text.seconds(own.value('outage_s'))}, nearly all of which is detection, the same for all."
        )
    return [lines, ""]


def _traffic(results: Results) -> list[str]:
    head = "**Traffic a device falls as devices join.** "
    for t in results.tables:
        series = [
            (
                float(v),
                t.cells[OWN, v].value("device_down_bytes"),
                t.cells[OWN, v].value("device_up_bytes"),
                t.cells[OWN, v].value("server_egress_bytes"),
            )
            for v in t.values
            if t.numeric and (OWN, v) in t.cells and t.cells[OWN, v].status == "ok"
        ]
        if t.name == "devices" and len(series) > 1:
            (n0, down0, up0, out0), (n1, down1, up1, out1) = series[0], series[-1]
            falling = all(a[1] > b[1] for a, b in zip(series, series[1:]))
            slope = np.polyfit(np.log([s[0] for s in series]), np.log([s[3] for s in series]), 1)[0]
            return [
                head + f"From {n0:,.0f} to {n1:,.0f} devices Cleave's downlink traffic a device went from "
                f"{text.size(down0)} to {text.size(down1)}, its uplink traffic from {text.size(up0)} to "
                f"{text.size(up1)}: {'reproduced' if falling else 'not reproduced at every step'}. The price is "
                f"the server's: {text.size(out0)} out, then {text.size(out1)}, as N^{slope:.2f}.",
                "",
            ]
    return [head + "Not measured in these simulations.", ""]


def _scale(results: Results) -> list[str]:
    done = [
        float(v)
        for t in results.tables
        if t.name == "devices"
        for v in t.values
        if (c := t.cells.get((OWN, v))) is not None and c.status == "ok"
    ]
    most = f"{max(done):,.0f} heterogeneous devices trained together" if done else "no size was simulated to its end"
    return [f"**Thousands of heterogeneous devices.** In the simulations {most}.", ""]


def _cloud(results: Results) -> list[str]:
    head = "**Per-batch time comparable to cloud GPUs.** "
    found = []
    for t in results.tables:
        for v in t.values:
            own = t.cells.get((OWN, v))
            gpu = t.cells.get(("gpu", v)) or (t.cells.get(("gpu", t.values[0])) if t.name == "devices" else None)
            if own and gpu and own.value("step_time_s") and gpu.value("step_time_s"):
                found.append((own.value("step_time_s") / gpu.value("step_time_s"), t.name, v, binding(own)))
    if not found:
        return [head + "No point of these simulations has both.", ""]
    low = min(found)
    return [
        head
        + f"Cleave took {_range([f[0] for f in found])} the time of one A100 (best: {low[1]} {low[2]}). "
        + ("Reproduced at best." if low[0] <= 2 else f"Not reproduced: even there it was held up by {low[3]}."),
        "",
    ]


# -- the page


def markdown(results: Results, command: str = "make results") -> str:
    lines = [
        "# Results",
        "",
        f"Made by `{command}`: every number comes from a simulation of the real runners (docs/simulation.md), and "
        "every sentence with a number is written from the data (docs/results/results.json). The experiment that all "
        "start from is `experiments/results/base.yaml`, what is varied is in `experiments/results/questions.yaml`. "
        "Devices and their speeds are those of `traces/devices`: what CPUs and GPUs were measured to sustain, not peak "
        "figures. Cells say where a strategy can't run, and what memory it would need.",
        "",
        *_incomplete(results, command),
        "## The paper's claims",
        "",
        'Claims are those of the abstract of Xue et al., "On Harnessing Idle Compute at the Edge for Foundation Model '
        'Training", arXiv 2512.22142, version 2.',
        "",
        *claims(results),
    ]
    for t in results.tables:
        lines += [f"## {t.title}", "", t.about, ""]
        for metric in shown_metrics(t):
            lines += _table(t, results.titles, metric, None if metric != "step_time_s" else "Time of a batch")
            if metric == "recovery_extra_s" and (said := text.below_zero(c.value(metric) for c in t.cells.values())):
                lines += [f"{METRICS[metric].title} {said}.", ""]
        lines += [f"![{METRICS[m].title}](results/{figure_name(t.name, m)})" for m in t.figures if drawable(t, m)]
        lines += ["", *_bound(t, results.titles), *_reasons(t, results.titles), ""]
    return "\n".join(lines).rstrip() + "\n"


def _incomplete(results: Results, command: str) -> list[str]:
    done = sum(len(t.cells) for t in results.tables)
    if done >= results.asked:
        return []
    return [f"**Incomplete:** {done} of {results.asked} points are in results.json; `{command}` simulates all.", ""]


def shown_metrics(t: Table) -> list[str]:
    wanted = {
        "recovery": ["outage_s", "detection_s", "recovery_s", "recovery_extra_s", "step_time_s"],
        "devices": ["step_time_s", "device_down_bytes", "device_up_bytes", "server_egress_bytes"],
        "small-model": ["step_time_s", "device_down_bytes", "device_up_bytes", "idle_fraction"],
        "model-size": ["step_time_s", "energy_j"],
        "churn": ["step_time_s", "tokens_per_s"],
    }.get(t.name, ["step_time_s"])
    return [m for m in wanted if m == "step_time_s" or any(c.value(m) is not None for c in t.cells.values())]


def _bound(t: Table, titles: Mapping[str, str]) -> list[str]:
    """What held each strategy up at the last value that it ran."""
    lines = []
    for s in t.strategies:
        done = [v for v in t.values if (c := t.cells.get((s, v))) is not None and c.status == "ok"]
        if done and s != "gpu":
            lines.append(f"* {titles[s]} at {t.axis.lower()} {done[-1]}: held up by {binding(t.cells[s, done[-1]])}.")
    return [*lines, ""] if lines else []


def figure_name(question: str, metric: str) -> str:
    return f"{question}-{metric.removesuffix('_s').removesuffix('_bytes').replace('_', '-')}.png"


def drawable(t: Table, metric: str) -> bool:
    """Whether there is anything to draw: two values of one strategy at least."""
    return any(sum(c.value(metric) is not None for (s2, _), c in t.cells.items() if s2 == s) > 1 for s in t.strategies)


def results_of(questions: Any, answers: Sequence[Any], base: str = "") -> Results:
    """From the questions and answers of testbed.experiment (or what has the same fields)."""
    cells = {
        (a.question, a.strategy, a.value): Cell(a.status, a.message, a.metrics, a.server_up, a.server_down)
        for a in answers
    }
    tables = [
        Table(q.name, q.title, q.about, q.axis, q.values, q.numeric, q.strategies, q.figures,
              {(s, v): c for (name, s, v), c in cells.items() if name == q.name})
        for q in questions.questions.values() if any(name == q.name for name, _, _ in cells)
    ]  # fmt: skip
    asked = sum(len(q.points) for q in questions.questions.values())
    return Results(tables, {name: s.title for name, s in questions.strategies.items()}, base, asked)
