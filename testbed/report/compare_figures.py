"""The figures of one run that comparisons use, and how each is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed.measurement.events import select
from testbed.measurement.run_folder import RunFolder
from testbed.measurement.steps import absences, attempts
from testbed.report import text
from testbed.report.run_summary import RunSummary, summarize

# Ember, Global Electricity Review 2024: the world's average of 2023, CO2 equivalents over power plants' lives
WORLD_G_CO2_PER_KWH = 480.0


@dataclass(frozen=True)
class Metric:
    """title: for people; unit: of the numbers; show: a number as people read it; part: which table it is in."""

    title: str
    unit: str
    show: Callable[[float | None], str]
    part: str
    meaning: str


def _grams(value: float | None) -> str:
    if text.missing(value):
        return text.DASH
    return f"{value / 1000:.3g} kg" if value >= 1000 else f"{value:.3g} g" if value >= 0.1 else f"{1000 * value:.3g} mg"


def _joules(value: float | None) -> str:
    if text.missing(value):
        return text.DASH
    return (
        next(
            f"{value / f:.3g} {u}"
            for f, u in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (0, "J"))
            if value >= f or u == "J"
        )
        if value >= 1e3
        else f"{value:.3g} J"
    )


METRICS: dict[str, Metric] = {
    "step_time_s": Metric("Step time", "s", text.seconds, "speed", "median over a run's steps that count"),
    "tokens_per_s": Metric("Tokens/s", "1/s", lambda v: text.number(v, 4), "speed",
                           "tokens of steps that count, over the time from the first step's start to the last's end"),
    "idle_fraction": Metric("Idle", "", text.percent, "speed",
                            "share of that time, absences left out, in which a device computes nothing; mean of all "
                            "devices, spares included"),
    "device_down_bytes": Metric("Down a device", "B", text.size, "traffic",
                                "message bytes that a device receives a step; mean of all devices"),
    "device_up_bytes": Metric("Up a device", "B", text.size, "traffic", "message bytes that a device sends a step"),
    "server_egress_bytes": Metric("Server out", "B", text.size, "traffic",
                                  "message bytes that the server sends a step"),
    "server_ingress_bytes": Metric("Server in", "B", text.size, "traffic",
                                   "message bytes that the server receives a step"),
    "recovery_s": Metric("Recovery", "s", text.seconds, "failures",
                         "from detection to the moment at which training is back where it was; mean of a run's losses"),
    "detection_s": Metric("Detection", "s", text.seconds, "failures", "from the last sign of life to detection"),
    "outage_s": Metric("Loss to recovery", "s", text.seconds, "failures",
                       "detection and recovery together: from the last sign of life to training being back"),
    "recovery_extra_s": Metric("Cost of a loss", "s", text.seconds, "failures",
                               "what the interrupted step took beyond the median step, detection included"),
    "energy_j": Metric("Energy", "J", _joules, "energy",
                       "a step: the power under load of each device that states it, times its computing time"),
    "co2_g": Metric("CO₂", "g", _grams, "energy", "that energy at the stated intensity of electricity"),
}  # fmt: skip
PARTS = {"speed": "Speed", "traffic": "Traffic, a step", "failures": "Lost devices", "energy": "Energy, a step"}


@dataclass(frozen=True)
class RunFigures:
    """One run. metrics: as METRICS; None: not known, or there is none. experiment: the resolved one."""

    path: str
    name: str
    engine: str
    runner: str
    devices: int
    verdict: str
    status: str
    experiment: dict[str, Any]
    metrics: dict[str, float | None]
    powered_devices: int


def run_figures(run_dir: str | Path | RunFolder, *, g_co2_per_kwh: float = WORLD_G_CO2_PER_KWH) -> RunFigures:
    """The figures of a run, complete or not. Raises InputError: no run folder."""
    run = run_dir if isinstance(run_dir, RunFolder) else RunFolder.open(run_dir)
    events = run.events()
    s = summarize(run, events)
    devices = (run.plan().get("cluster") or {}).get("devices", [])
    names = [d["name"] for d in devices if d.get("name")]
    power = {d["name"]: d["power_w"] for d in devices if d.get("power_w")}
    window = _window(events)
    busy = _busy_seconds(events, window) if window else {}
    energy = sum(w * busy.get(n, 0.0) for n, w in power.items()) / s.steps if power and s.steps and window else None
    metrics = {
        "step_time_s": s.step_time_median_s,
        "tokens_per_s": s.tokens_per_s,
        "idle_fraction": _idle(events, window, busy, names),
        **_traffic(s, len(names) or s.devices),
        "recovery_s": _mean(s.recovery_s),
        "detection_s": _mean(s.detection_s),
        "outage_s": _sum(_mean(s.detection_s), _mean(s.recovery_s)),
        "recovery_extra_s": _mean(s.recovery_extra_s),
        "energy_j": energy,
        "co2_g": None if energy is None else energy / 3.6e6 * g_co2_per_kwh,
    }
    experiment = run.manifest.get("experiment")
    return RunFigures(
        s.path,
        s.name,
        s.engine,
        s.runner,
        len(names) or s.devices,
        s.verdict,
        s.status,
        experiment if isinstance(experiment, dict) else {},
        metrics,
        len(power),
    )


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _traffic(s: RunSummary, devices: int) -> dict[str, float | None]:
    if not s.steps or not (s.bytes_up or s.bytes_down):
        return dict.fromkeys(("device_down_bytes", "device_up_bytes", "server_egress_bytes", "server_ingress_bytes"))
    down = sum(b for n, b in s.bytes_down.items() if n != "server")
    up = sum(b for n, b in s.bytes_up.items() if n != "server")
    count = max(devices, 1)
    return {
        "device_down_bytes": down / count / s.steps, "device_up_bytes": up / count / s.steps,
        "server_egress_bytes": s.server_egress_bytes / s.steps,
        "server_ingress_bytes": s.server_ingress_bytes / s.steps,
    }  # fmt: skip


def _window(events: pd.DataFrame) -> tuple[float, float] | None:
    """From the first step's start to the last counted step's end."""
    done = attempts(events)
    counted = done[done["counts"]]
    if not len(counted):
        return None
    start, end = float(done["start_s"].min()), float(counted["end_s"].max())
    return (start, end) if end > start else None


def _busy_seconds(events: pd.DataFrame, window: tuple[float, float]) -> dict[str, float]:
    """Seconds of the window that each node computed (a node computes one thing at a time). A simulation's totals are
    of the whole run."""
    totals = select(events, "totals")
    if len(totals):
        return totals.set_index("node")["compute_s"].to_dict()
    compute = select(events, "compute")
    seconds = np.minimum(compute["end"], window[1]) - np.maximum(compute["start"], window[0])
    return seconds.clip(lower=0).groupby(compute["node"]).sum().to_dict()


def _idle(
    events: pd.DataFrame, window: tuple[float, float] | None, busy: dict[str, float], devices: list[str]
) -> float | None:
    if window is None or not devices:
        return None
    away = absences(events)
    gone = (
        (np.minimum(away["return_s"].fillna(window[1]), window[1]) - np.maximum(away["leave_s"].fillna(0.0), window[0]))
        .clip(lower=0)
        .groupby(away["node"])
        .sum()
        .to_dict()
    )
    shares = []
    for name in devices:
        present = window[1] - window[0] - gone.get(name, 0.0)
        if present > 0:
            shares.append(1 - min(busy.get(name, 0.0) / present, 1.0))
    return float(np.mean(shares)) if shares else None


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
