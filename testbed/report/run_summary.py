"""A run in a few numbers."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.measurement.events import select
from testbed.measurement.fidelity import setting
from testbed.measurement.rates import WIRE_PER_GOODPUT
from testbed.measurement.run_folder import RunFolder
from testbed.measurement.steps import absences, attempts, median_interval, recoveries


@dataclass(frozen=True)
class RunSummary:
    """JSON-able figures of one run; times in emulated seconds; None: not known, or there is none.

    step_time_interval_s: 95 % interval of the median by order statistics; None below six steps.
    samples_per_s, tokens_per_s: goodput: only samples of steps that count, over the time from the first
    step's start
        to the last one's end, churn and recovery included.
    goodput_fraction: samples that counted, of all that were trained.
    bytes_up, bytes_down: message bytes by device (server: its egress and ingress).
    recovery_s: from detection to the moment at which training is back where it was; detection_s comes before
    it. join_s: how long training took to take in devices that came (back), where the runner says so.
    """

    path: str
    name: str
    status: str
    engine: str
    runner: str
    seed: int | None
    tdf: float
    started: str
    duration_s: float
    verdict: str
    reasons: list[str]
    notes: list[str]
    invalid_since_s: float | None
    invalid_at: str | None
    error: str | None
    devices: int
    steps: int
    steps_asked: int | None
    steps_redone: int
    step_time_median_s: float | None
    step_time_interval_s: tuple[float, float] | None
    step_time_mean_s: float | None
    step_time_predicted_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    goodput_fraction: float | None
    first_loss: float | None
    final_loss: float | None
    departures: int
    detection_s: list[float] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    recovery_extra_s: list[float] = field(default_factory=list)
    join_s: list[float] = field(default_factory=list)
    bytes_up: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, float] = field(default_factory=dict)

    @property
    def server_egress_bytes(self) -> float:
        return self.bytes_up.get("server", 0.0)

    @property
    def server_ingress_bytes(self) -> float:
        return self.bytes_down.get("server", 0.0)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; NaN and infinite losses as text ('nan', 'inf'), since they mean something."""
        data = dataclasses.asdict(self)
        for name in ("first_loss", "final_loss"):
            if data[name] is not None and not math.isfinite(data[name]):
                data[name] = str(data[name])
        return data | {
            "server_egress_bytes": self.server_egress_bytes,
            "server_ingress_bytes": self.server_ingress_bytes,
        }


def message_bytes(events: pd.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of messages that each node sent, and received; else the links' counters, less headers.

    A simulation's totals come first: not every message of a long one has an event of its own.
    """
    totals = select(events, "totals")
    if len(totals):
        by_node = totals.set_index("node")
        return by_node["bytes_up"].to_dict(), by_node["bytes_down"].to_dict()
    send, transfer = select(events, "send"), select(events, "transfer")
    if len(send) or len(transfer):
        up = (send if len(send) else transfer.assign(node=transfer["peer"])).groupby("node")["bytes"].sum()
        return up.to_dict(), transfer.groupby("node")["bytes"].sum().to_dict()
    counted = select(events, "throughput").groupby(["node", "direction"])["bytes"].sum() / WIRE_PER_GOODPUT
    up = {n: b for (n, d), b in counted.items() if d == "up"}
    return up, {n: b for (n, d), b in counted.items() if d == "down"}


def wire_bytes(events: pd.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes that crossed each link, up and down, with headers, as its bottleneck queue counted them."""
    counted = select(events, "throughput").groupby(["node", "direction"])["bytes"].sum()
    up = {n: b for (n, d), b in counted.items() if d == "up"}
    return up, {n: b for (n, d), b in counted.items() if d == "down"}


def summarize(run_dir: str | Path | RunFolder, events: pd.DataFrame | None = None) -> RunSummary:
    """The figures of a run, complete or not.

    Args:
        events: the run's events, where the caller has read them already.

    Raises:
        InputError: no run folder.
    """
    run = run_dir if isinstance(run_dir, RunFolder) else RunFolder.open(run_dir)
    events = run.events() if events is None else events
    plan, verdict, manifest = run.plan(), run.verdict(), run.manifest
    training = (manifest.get("experiment") or {}).get("training") or plan.get("training") or {}
    sequence = (plan.get("model") or (manifest.get("experiment") or {}).get("model") or {}).get("sequence")
    done = attempts(events)
    counted = done[done["counts"]].sort_values("step")
    times = counted["step_time_s"].dropna()
    elapsed = counted["end_s"].max() - done["start_s"].min() if len(counted) else 0.0
    per_s = counted["samples"].sum() / elapsed if elapsed > 0 else None
    has_losses = setting(manifest, "tensors") != "meta"  # shapes without data have none
    back = recoveries(events)
    failures, joins = back[back["kind"] != "join"], back[back["kind"] == "join"]
    up, down = message_bytes(events)
    away = absences(events)
    devices = {d.get("name") for d in (plan.get("cluster") or {}).get("devices", [])} - {None}
    devices = devices or set(select(events, "link")["node"].dropna()) - {"server"}
    status, error = run.status, str(manifest["error"]) if manifest.get("error") else None
    lost = events.attrs.get("unreadable", 0)
    if status == "complete" and lost:  # a run that ended otherwise may have its last line cut short
        status, error = "damaged", f"{lost} line{'s' * (lost > 1)} of events.jsonl can't be read"
    return RunSummary(
        path=str(run.path),
        name=str(manifest.get("name") or run.path.name),
        status=status,
        engine=str(setting(manifest, "engine", "emulation")),
        runner=str(training.get("runner") or plan.get("runner") or ""),
        seed=setting(manifest, "seed"),
        tdf=float(setting(manifest, "tdf", 1.0)),
        started=str(manifest.get("started") or ""),
        duration_s=float(max(events["t"].max(), 0.0)) if len(events) else 0.0,
        verdict=verdict.label,
        reasons=[r.text for r in verdict.reasons],
        notes=verdict.notes,
        invalid_since_s=verdict.invalid_since_s,
        invalid_at=verdict.invalid_at,
        error=error,
        devices=len(devices),
        steps=len(counted),
        steps_asked=training.get("steps"),
        steps_redone=len(done) - len(counted),
        step_time_median_s=_float(times.median()),
        step_time_interval_s=median_interval(times),
        step_time_mean_s=_float(times.mean()),
        step_time_predicted_s=_float((plan.get("predicted") or {}).get("step_time_s")),
        samples_per_s=_float(per_s),
        tokens_per_s=_float(per_s * sequence) if per_s is not None and sequence else None,
        goodput_fraction=_float(counted["samples"].sum() / done["samples"].sum())
        if done["samples"].sum() > 0
        else None,
        first_loss=float(counted["loss"].iloc[0]) if len(counted) and has_losses else None,
        final_loss=float(counted["loss"].iloc[-1]) if len(counted) and has_losses else None,
        departures=int(away["leave_s"].notna().sum()),
        detection_s=_floats(failures["detection_s"]),
        recovery_s=_floats(failures["recovery_s"]),
        recovery_extra_s=_floats(failures["extra_s"]),
        join_s=_floats(joins["recovery_s"]),
        bytes_up=up,
        bytes_down=down,
    )


def _float(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _floats(values: pd.Series) -> list[float]:
    return [float(v) for v in values if math.isfinite(v)]
