"""FedScale's client behaviour as JSON or CSV: per device `active` and `inactive` times [s] and `finish_time`.

Interval j is active[j] to inactive[j]; the trace begins anew at finish_time. The pickle of the same content
is never read, since loading one runs whatever code it holds.
"""

from __future__ import annotations

import json
import math

import numpy as np

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build
from testbed.traces.json_objects import objects
from testbed.traces.source import Sample, Source
from testbed.traces.table import check_once, split

_KEYS = ("active", "inactive", "finish_time")


def _is_device(value) -> bool:
    return isinstance(value, dict) and {"active", "inactive"} <= set(value)


def detect_json(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    if _is_device(value):
        return 1.0
    if isinstance(value, dict) and value:
        return 1.0 if _is_device(next(iter(value.values()))) else 0.0
    return 0.0


def read_json(source: Source, options: Options) -> dict[str, Availability]:
    devices: dict[str, dict] = {}
    for _, value in objects(source):
        if _is_device(value):
            devices[str(value.get("id", value.get("device", f"device-{len(devices) + 1}")))] = value
        elif isinstance(value, dict):
            devices.update({str(name): entry for name, entry in value.items()})
    return _devices(devices, source)


def detect_csv(sample: Sample) -> float:
    return 1.0 if set(_KEYS) <= {n.lower() for n in sample.layout.header} else 0.0


def read_csv(source: Source, options: Options) -> dict[str, Availability]:
    report, layout = source.report, source.sample.layout
    names = [n.lower() for n in layout.header]
    for key in _KEYS:
        if key not in names:
            raise report.error(f"has no column {key}; expected {', '.join(_KEYS)}")
    at = {key: names.index(key) for key in _KEYS}
    who = next((names.index(n) for n in ("id", "device", "client", "client_id", "device_id", "") if n in names), -1)
    check_once(layout, [*at.values(), who], report)
    devices: dict[str, dict] = {}
    for line, text in source.lines():
        cells = split(text, layout.delimiter)
        if not text.strip() or tuple(cells) == layout.header:
            continue
        if len(cells) != len(names):
            raise report.error(f"has {len(cells)} cells; the header has {len(names)}", line)
        try:
            entry = {key: json.loads(cells[at[key]]) for key in _KEYS}
        except (ValueError, RecursionError):
            raise report.error(
                "active, inactive or finish_time can't be read; expected [a, b, …] and a number", line
            ) from None
        devices[cells[who] if who >= 0 else f"device-{len(devices) + 1}"] = entry
    return _devices(devices, source)


def _devices(devices: dict[str, dict], source: Source) -> dict[str, Availability]:
    report = source.report
    raw, spans = {}, {}
    for name, entry in devices.items():
        report.rows += 1
        if not _is_device(entry):
            raise report.error(f"device {name} has no 'active' and 'inactive'")
        active, inactive = (_numbers(entry[key], f"device {name}, {key}", report) for key in _KEYS[:2])
        end = entry.get("finish_time")
        if isinstance(end, bool) or not isinstance(end, (int, float)) or not 0 < end < math.inf:
            raise report.error(f"device {name}, finish_time is {end!r}; expected seconds above 0")
        if len(inactive) < len(active):
            inactive.append(float(end))  # active until the trace ends
        pairs = []
        for a, b in zip(active, inactive):
            if b > end:
                report.repair("intervals beyond finish_time: cut there", f"device {name}")
                b = float(end)
            if b < a:
                raise report.error(f"device {name} is inactive at {b:g} s, before it is active at {a:g} s")
            if b > a:
                pairs.append((a, b))
        raw[name], spans[name] = np.array(pairs, dtype=float).reshape(-1, 2), float(end)
    return build(raw, report, span_s=spans)


def _numbers(values, where: str, report) -> list[float]:
    if not isinstance(values, list):
        raise report.error(f"{where} is no list")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
            raise report.error(f"{where} holds {str(value)[:20]!r}; expected seconds from 0 on")
    return [float(v) for v in values]


FORMATS = (
    Format("fedscale-json", "availability", "FedScale client behaviour (JSON)", detect_json, read_json),
    Format("fedscale-csv", "availability", "FedScale client behaviour (CSV)", detect_csv, read_csv),
)
