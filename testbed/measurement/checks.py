"""What a check of the emulation is: one measured number beside its threshold.

Accuracy of the emulated network is judged in emulated seconds; the machine's own behaviour in real
seconds, which are emulated seconds x tdf. A check without data to judge has ok = None: not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from testbed import units
from testbed.measurement.thresholds import Thresholds


@dataclass(frozen=True)
class Check:
    """One measured number beside its threshold.

    name: of the check. measured, threshold: in `unit` ('' = a fraction, 's', 'packets', 'links'); None: not
    measured.
    ok: None when not measured. where: the worst link, device or moment. text: a sentence for people.
    at_s: emulated time of the first violation.
    """

    name: str
    title: str
    measured: float | None
    threshold: float | None
    unit: str
    ok: bool | None
    where: str = ""
    text: str = ""
    at_s: float | None = None


@dataclass(frozen=True)
class Context:
    """What every check gets."""

    events: pd.DataFrame
    limits: Thresholds
    tdf: float = 1.0


def shown(value: float | None, unit: str) -> str:
    """A check's number for people: '2.3 %', '12 ms', '3 packets', or a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "s":
        return units.duration(value)
    return f"{value:.3g} {unit}" if unit else f"{100 * value:.3g} %"


def unmeasured(name: str, title: str, threshold: float, unit: str, text: str) -> Check:
    return Check(name, title, None, threshold, unit, None, text=text)


def judged(name, title, measured, threshold, unit, text, where="", at_s=None) -> Check:
    ok = bool(measured <= threshold)
    at_s = float(at_s) if at_s is not None and not ok and math.isfinite(at_s) else None
    return Check(name, title, float(measured), float(threshold), unit, ok, where, text, at_s)
