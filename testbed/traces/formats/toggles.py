"""Toggle lists: `1: on, [54, 890, 2042]` is a device, its state at 0 and the times [s] at which it changes.

A line each, a YAML list or mapping of such, or {device, state, times} objects. The trace ends a usual step after the
last change, or at `# span_s:`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import yaml

from testbed.errors import InputError
from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build
from testbed.traces.remarks import Remarks
from testbed.traces.source import Sample, Source
from testbed.units import CENTURY_S
from testbed.yaml_text import parse

_STATE = r"(?P<state>on|off|true|false|yes|no|up|down|online|offline|active|inactive|available|unavailable|1|0)"
_QUOTE = "[\"']?"
_LINE = re.compile(
    rf"\s*(?:-\s+)?[\[{{]{{0,2}}\s*{_QUOTE}(?P<device>[^\"':\[\]{{}},#]{{1,100}}?){_QUOTE}\s*[:,]\s*\[?\s*"
    rf"{_QUOTE}{_STATE}{_QUOTE}\s*,\s*\[(?P<times>[^\[\]]*)\]\s*\]?\s*[\]}}]{{0,2}}{_QUOTE}\s*,?\s*(?:#.*)?\Z",
    re.IGNORECASE,
)
_ON = {"on", "true", "yes", "up", "online", "active", "available", "1"}
_KEYS = {
    "device": ("device", "id", "name", "node"),
    "state": ("state", "start", "initial"),
    "times": ("times", "toggles", "changes"),
}
Toggles = tuple[int | None, str, bool, list[str]]  # line, device, state at 0, times


def _by_line(line: str) -> tuple[str, bool, list[str]] | None:
    match = _LINE.match(line)
    if not match:
        return None
    times = [t.strip() for t in match["times"].split(",") if t.strip()]
    return match["device"].strip(), match["state"].lower() in _ON, times


def detect(sample: Sample) -> float:
    lines = [
        x for x in sample.lines[:50] if not x.lstrip().startswith("#") and x.strip() not in ("[", "]", "{", "}", "---")
    ]
    if not sample.whole and len(lines) > 1:
        lines.pop()
    if lines and sum(_by_line(line) is not None for line in lines) >= 0.8 * len(lines):
        return 0.98
    keys = [re.search(rf"\b(?:{'|'.join(names)})\b{_QUOTE}\s*:", sample.text[:4000]) for names in _KEYS.values()]
    if sample.suffix in (".yaml", ".yml") or (all(keys) and len(sample.lines) > 1):
        try:
            return 0.9 if sample.whole and _of_yaml(parse(sample.text, sample.name)[0]) else 0.0
        except (InputError, ValueError, yaml.YAMLError):
            return 0.0
    return 0.0


def _of_yaml(value: Any) -> list[Toggles]:
    """What a document says.

    Raises:
        ValueError: an entry is none.
    """
    out: list[Toggles] = []
    entries = [{k: v} for k, v in value.items()] if isinstance(value, dict) else value
    if not isinstance(entries, list):
        raise ValueError("is no list of devices")
    for entry in entries:
        found = {
            key: next((entry[n] for n in names if n in entry), None) if isinstance(entry, dict) else None
            for key, names in _KEYS.items()
        }
        if isinstance(entry, list) and len(entry) == 3:
            out.append(_toggles(*entry))
        elif isinstance(entry, dict) and found["times"] is not None:
            out.append(_toggles(*found.values()))
        elif isinstance(entry, dict) and entry:
            for device, rest in entry.items():
                if isinstance(rest, str):
                    parts = _by_line(f"{device}: {rest}")
                    if parts is None:
                        raise ValueError(f"{device}: {rest[:40]!r}; expected a state and a list of times")
                    out.append((None, *parts))
                elif isinstance(rest, list) and len(rest) == 2 and isinstance(rest[1], list):
                    out.append(_toggles(device, *rest))
                elif isinstance(rest, dict):
                    out += _of_yaml([{"device": device, **rest}])
                else:
                    raise ValueError(f"{device}: {str(rest)[:40]}; expected a state and a list of times")
        else:
            raise ValueError(f"{str(entry)[:40]}; expected a device, its state and a list of times")
    return out


def _toggles(device: Any, state: Any, times: Any) -> Toggles:
    word = str(state).lower()
    if device is None or not isinstance(times, list) or re.fullmatch(_STATE, word) is None:
        raise ValueError(f"{device}: {word[:20]}, {str(times)[:30]}; expected a device, on or off, and a list of times")
    return None, str(device), word in _ON, [str(t) for t in times]


def read(source: Source, options: Options) -> dict[str, Availability]:
    report = source.report
    remarks, rows, odd = Remarks(report), [], None
    for line, text in source.lines():
        if text.lstrip().startswith("#"):
            remarks.read(text.strip(), line)
        elif text.strip() not in ("", "[", "]", "{", "}", "---"):
            parts = _by_line(text)
            if parts is None:
                odd = odd or (line, text)
            else:
                rows.append((line, *parts))
    if odd is not None:
        try:
            rows = _of_yaml(parse(source.text(), str(source.path))[0])
        except (ValueError, yaml.YAMLError) as error:
            raise report.error(f"{odd[1].strip()[:60]!r} is no toggle list ({error})", odd[0]) from None
    states: dict[str, tuple[bool, list[float]]] = {}
    for line, device, on, texts in rows:
        report.rows += 1
        if device in states:
            raise report.error(f"device {device} stands twice; expected once", line)
        states[device] = on, _times(device, texts, report, line)
    if not states:
        raise report.error("names no device")
    every = sorted(t for _, times in states.values() for t in times)
    steps = np.diff([0.0, *every])
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else 86400.0
    span = remarks.span(None) or (every[-1] if every else 0.0) + usual
    if remarks.span(None) is None:
        report.tell_guess(f"the trace ends at {span:g} s: a usual step after the last change (# span_s: states it)")
    raw = {}
    for device, (on, times) in states.items():
        edges = ([0.0] if on else []) + times
        if len(edges) % 2:
            edges.append(span)
        pairs = np.array(edges, dtype=float).reshape(-1, 2)
        raw[device] = pairs[pairs[:, 1] > pairs[:, 0]]
    return build(raw, report, span_s=span, start_epoch_s=remarks.start(None))


def _times(device: str, texts: list[str], report, line) -> list[float]:
    times = []
    for text in texts:
        try:
            value = float(text)
        except ValueError:
            raise report.error(f"device {device}: {text[:20]!r} is no time; expected seconds", line) from None
        if not 0 <= value <= CENTURY_S:
            raise report.error(f"device {device}: {text}; expected seconds from 0 on, less than a century", line)
        if times and value < times[-1]:
            raise report.error(f"device {device}: {text} comes after {times[-1]:g}; expected times that rise", line)
        times.append(value)
    return times


FORMATS = (Format("toggles", "availability", "toggle lists (device: on, [times])", detect, read),)
