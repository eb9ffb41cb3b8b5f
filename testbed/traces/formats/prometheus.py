"""A Prometheus range query (resultType matrix) of `up`, `probe_success` or another series of 0 and 1."""

from __future__ import annotations

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import build, from_samples
from testbed.traces.json_objects import objects
from testbed.traces.json_text import get
from testbed.traces.source import Sample, Source
from testbed.traces.times import EARLIEST, LATEST


def detect(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    return 1.0 if get(value, "data", "resultType") == "matrix" or get(value, "resultType") == "matrix" else 0.0


def read(source: Source, options: Options) -> dict[str, Availability]:
    report = source.report
    found: dict[str, list[tuple[float, bool]]] = {}
    for line, document in objects(source):
        if get(document, "status") == "error":
            raise report.error(f"is Prometheus's error: {get(document, 'error')}", line)
        series = get(document, "data", "result")
        series = get(document, "result") if series is None else series
        if not isinstance(series, list):
            raise report.error("has no list 'result'; expected a range query's answer", line)
        for entry in series:
            name = _name(get(entry, "metric"))
            values = get(entry, "values")
            if not isinstance(values, list):
                raise report.error(f"series {name} has no 'values'; expected those of a range query", line)
            points = found.setdefault(name, [])
            for pair in values:
                report.rows += 1
                points.append(_point(pair, name, report))
    if not any(found.values()):
        raise report.error("holds no sample of a series")
    raw, ends, holes = {}, [], 0
    steps = sorted(b[0] - a[0] for p in found.values() for a, b in zip(p, p[1:]) if b[0] > a[0])
    step = steps[len(steps) // 2] if steps else 60.0
    for name, points in found.items():
        raw[name], end, missing = from_samples(points, hole_s=1.5 * step, cadence_s=step)
        ends.append(end if points else 0.0)
        holes += missing
    first = min(t for points in found.values() for t, _ in points)
    if holes:
        report.note(f"{holes} holes between samples count as away")
    return build(raw, report, span_s=max(ends) - first, origin_s=first, start_epoch_s=first)


def _name(metric) -> str:
    if not isinstance(metric, dict) or not metric:
        return "series"
    for key in ("instance", "device", "node", "host", "job"):
        if metric.get(key):
            return str(metric[key])
    return " ".join(f"{k}={v}" for k, v in metric.items() if k != "__name__") or str(metric.get("__name__"))


def _point(pair, name: str, report) -> tuple[float, bool]:
    try:
        time, value = float(pair[0]), float(pair[1])
    except (TypeError, ValueError, IndexError, KeyError):
        raise report.error(f"series {name}: {str(pair)[:40]} is no sample; expected [time, value]") from None
    if not EARLIEST <= time <= LATEST:
        raise report.error(f"series {name}: {pair[0]} is no Unix time; expected 1990 to 2100")
    if value not in (0.0, 1.0):
        raise report.error(f"series {name}: {value:g}; expected 0 or 1, as `up` has", hint="query up or probe_success")
    return time, value == 1.0


FORMATS = (Format("prometheus", "availability", "a Prometheus range query of 0 and 1", detect, read),)
