"""The verdict on a run: VALID when the emulation did what was set, else INVALID with measured reasons.

docs/fidelity.md says what each check means and why its threshold is where it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from testbed.measurement.checks import Check, Context, shown
from testbed.measurement.checks_machine import MACHINE_CHECKS
from testbed.measurement.checks_network import NETWORK_CHECKS, unjudged
from testbed.measurement.events import select
from testbed.measurement.thresholds import Thresholds

__all__ = ["Check", "Reason", "Thresholds", "Verdict", "judge"]
PROBE_CHECKS = frozenset({"probes", "rate_error_mean", "rate_error_worst", "rtt_error"})


@dataclass(frozen=True)
class Reason:
    """Why a run is INVALID: a check that failed. at_s: emulated time of its first violation, if known."""

    name: str
    measured: float | None
    threshold: float | None
    where: str
    text: str
    at_s: float | None


@dataclass(frozen=True)
class Verdict:
    """valid: every check that could be made passed, and those that must be made were.

    label: 'VALID'; 'INVALID' or 'INVALID: not measured', with reasons; or 'UNVERIFIED' when nothing failed
    but the experiment switched its probes off, or no step was measured (valid is False, there are no reasons).
    notes: what a reader should know about a verdict that is based on less than usual. invalid_since_s:
    emulated time of the first violation, None when valid or unknown. started_at: wall-clock time of emulated
    second 0 (ISO 8601).
    """

    valid: bool
    reasons: list[Reason]
    checks: list[Check]
    notes: list[str]
    started_at: str | None = None
    tdf: float = 1.0

    @property
    def label(self) -> str:
        if self.valid:
            return "VALID"
        if not self.reasons:
            return "UNVERIFIED"
        return "INVALID: not measured" if all(r.measured is None for r in self.reasons) else "INVALID"

    @property
    def invalid_since_s(self) -> float | None:
        return min((r.at_s for r in self.reasons if r.at_s is not None), default=None)

    @property
    def invalid_at(self) -> str | None:
        """Wall-clock time of the first violation, ISO 8601 with milliseconds; None when valid or unknown."""
        since = self.invalid_since_s
        return None if since is None else wall_time(self.started_at, since, self.tdf)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: fidelity.json."""
        return {
            "verdict": self.label,
            "valid": self.valid,
            "invalid_since_s": self.invalid_since_s,
            "invalid_at": self.invalid_at,
            "started_at": self.started_at,
            "tdf": self.tdf,
            "reasons": [dataclasses.asdict(r) for r in self.reasons],
            "notes": list(self.notes),
            "checks": [dataclasses.asdict(c) for c in self.checks],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        return cls(
            valid=bool(data["valid"]),
            reasons=[Reason(**r) for r in data["reasons"]],
            checks=[Check(**c) for c in data["checks"]],
            notes=list(data.get("notes", [])),
            started_at=data.get("started_at"),
            tdf=float(data.get("tdf") or 1.0),
        )


def wall_time(started_at: str | None, t_s: float, tdf: float) -> str | None:
    """When emulated time `t_s` was, ISO 8601 with milliseconds; None where the start is not known."""
    try:
        start = datetime.fromisoformat(str(started_at))
    except ValueError:
        return None
    return (start + timedelta(seconds=t_s * tdf)).isoformat(timespec="milliseconds")


def setting(manifest: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A setting of the run: from the manifest's top level, else from its resolved experiment."""
    if manifest.get(name) is not None:
        return manifest[name]
    value = (manifest.get("experiment") or {}).get(name)
    return default if value is None else value


def time_dilation(manifest: Mapping[str, Any]) -> float:
    """The run's time dilation factor; 1 where the manifest names none."""
    tdf = setting(manifest, "tdf", 1.0)
    return float(tdf) if isinstance(tdf, (int, float)) and math.isfinite(tdf) and tdf > 0 else 1.0


def probes_wanted(manifest: Mapping[str, Any]) -> bool:
    """False when the experiment switched its probes off: `probes: false` or `probes: {enabled: false}`."""
    probes = setting(manifest, "probes", True)
    if isinstance(probes, Mapping):
        probes = probes.get("enabled", True)
    return bool(probes)


def thresholds_of(manifest: Mapping[str, Any]) -> Thresholds:
    """The run's thresholds: the experiment's `fidelity: thresholds:` over the defaults. Raises InputError."""
    given = (manifest.get("experiment") or {}).get("fidelity")
    if isinstance(given, Mapping) and "thresholds" in given:
        given = given["thresholds"]
    return Thresholds.from_mapping(given)


def judge(events: pd.DataFrame, manifest: Mapping[str, Any], thresholds: Thresholds | None = None) -> Verdict:
    """Judge a run, or what there is of it.

    Args:
        events: as from read_events().
        manifest: read for engine, tdf, probes and the experiment's `fidelity` thresholds; may be empty.
        thresholds: instead of the defaults and the experiment's.

    Raises:
        InputError: the experiment's `fidelity` block names an unknown threshold or a bad value.
    """
    stepped = len(select(events, "step")) > 0
    notes = [] if stepped else ["no step of training was measured: there is nothing to vouch for"]
    if setting(manifest, "engine") == "simulation":
        notes.append("simulated in virtual time: there is no network and no machine to measure")
        return Verdict(stepped, [], [], notes)
    limits = thresholds or thresholds_of(manifest)
    usual = dataclasses.asdict(Thresholds.from_mapping(None))
    own = {name: value for name, value in dataclasses.asdict(limits).items() if value != usual[name]}
    if own:
        changed = ", ".join(f"{name} {value:g} instead of {usual[name]:g}" for name, value in own.items())
        notes.append(f"by thresholds of the experiment's own: {changed}")
    context = Context(events, limits, time_dilation(manifest))
    checks: list[Check] = []
    for make in (*NETWORK_CHECKS, *MACHINE_CHECKS):
        made = make(context)
        checks += made if isinstance(made, list) else [made]
    probed = probes_wanted(manifest)
    if not probed:
        notes.append("probes were switched off: the links' rates and RTTs were not measured before training")
        off = "switched off by the experiment"
        checks = [
            dataclasses.replace(c, ok=None, text=off)
            if c.name == "probes" or (c.name in PROBE_CHECKS and c.measured is None)
            else c
            for c in checks
        ]
    notes += captured(events)
    for (home, quantity), text in unjudged(events).items():
        notes.append(f"the rate of {home}'s {quantity.removeprefix('rate_')}link was not judged: {text}")
    reasons = [Reason(c.name, c.measured, c.threshold, c.where, _sentence(c), c.at_s) for c in checks if c.ok is False]
    valid = probed and stepped and not reasons
    return Verdict(valid, reasons, checks, notes, setting(manifest, "zero_at"), context.tdf)


def captured(events: pd.DataFrame) -> list[str]:
    """Of each capture of packets a sentence: its losses and its share of the processors."""
    notes = []
    for _, row in select(events, "capture").iterrows():
        told = [f"{row['packets']:.0f} packets"] if pd.notna(row["packets"]) else []
        told += [f"{row['dropped']:.0f} lost by the capturer"] if pd.notna(row["dropped"]) else []
        told += [f"{row['cpu']:.1%} of a core"] if pd.notna(row["cpu"]) else []
        told += [str(row["text"])] if row["text"] else []
        notes.append(f"capture of {row['node']}: {', '.join(told)}")
    return notes


def _sentence(check: Check) -> str:
    if check.measured is None:
        return f"{check.title}: not measured ({check.text})"
    numbers = f"{shown(check.measured, check.unit)} (threshold {shown(check.threshold, check.unit)})"
    return f"{check.title}: {numbers}; {check.text}"
