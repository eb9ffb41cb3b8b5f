"""Home Assistant's history (entity_id, state, last_changed), as CSV or JSON: who is there, and speed-test sensors.

States on, home and the like are available; off, not_home, another zone's name, unavailable and unknown are not.
Sensors whose names end in download, upload, ping (latency, jitter) are a link: Mbit/s and ms unless an attribute
unit_of_measurement says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from testbed.traces import units_of
from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import Switches
from testbed.traces.json_objects import objects
from testbed.traces.json_text import get
from testbed.traces.numbers import number
from testbed.traces.records import NAN, LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table import split
from testbed.traces.times import Clock
from testbed.traces.units_of import scaled

_NEEDS = {"entity_id", "state", "last_changed"}
_ON = {"on", "home", "true", "open", "connected", "online", "up", "active", "playing", "idle", "charging"}
_NO_STATE = {"unavailable", "unknown", ""}
_QUANTITIES = {
    "download": ("down", "down_bps", 1e6),
    "upload": ("up", "up_bps", 1e6),
    "ping": ("rtt", "rtt_s", 1e-3),
    "latency": ("rtt", "rtt_s", 1e-3),
    "jitter": ("jitter", "jitter_s", 1e-3),
}
Row = tuple[int | None, str, str, str, str | None]  # line, entity, state, time, unit


def _names(header) -> list[str]:
    return [name.strip("\"' ").lower() for name in header]


def _flat(values) -> Iterator[dict]:
    for value in values if isinstance(values, list) else [values]:
        if isinstance(value, list):
            yield from _flat(value)
        elif isinstance(value, dict):
            yield value


def _sampled(sample: Sample) -> list[tuple[str, str]]:
    """(entity, state) of the sample's records."""
    names = _names(sample.layout.header)
    if set(names) >= _NEEDS:
        at = names.index("entity_id"), names.index("state")
        return [(r[at[0]], r[at[1]]) for r in sample.layout.rows if len(r) == len(names)]
    return [(str(v["entity_id"]), str(v.get("state"))) for v in _flat(sample.json) if "entity_id" in v and "state" in v]


def _quantity(entity: str) -> tuple[str, str, float] | None:
    return next((q for word, q in _QUANTITIES.items() if entity.rpartition("_")[2].rpartition(".")[2] == word), None)


def _is_number(state: str) -> bool:
    try:
        return number(state) is not None
    except ValueError:
        return False


def detect_links(sample: Sample) -> float:
    return 0.96 if any(_quantity(e) and _is_number(s) for e, s in _sampled(sample)) else 0.0


def detect(sample: Sample) -> float:
    return 0.95 if any(not _quantity(e) and not _is_number(s) for e, s in _sampled(sample)) else 0.0


def _rows(source: Source) -> Iterator[Row]:
    layout = source.sample.layout
    names = _names(layout.header)
    if set(names) >= _NEEDS:
        entity, state, time = (names.index(n) for n in ("entity_id", "state", "last_changed"))
        for line, text in source.lines():
            cells = split(text, layout.delimiter)
            if not text.strip() or _names(cells) == names:
                continue
            if len(cells) != len(names):
                source.report.rows += 1
                source.report.repair("unreadable rows dropped", f"{len(cells)} cells; expected {len(names)}", line)
                continue
            yield line, cells[entity], cells[state], cells[time], None
        return
    last = ""
    for line, value in objects(source):
        for entry in _flat(value):
            last = str(entry.get("entity_id") or last)  # minimal responses name it once
            unit = get(entry, "attributes", "unit_of_measurement")
            time = entry.get("last_changed") or entry.get("last_updated")
            yield line, last, str(entry.get("state")), str(time), unit


def read_links(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    report = source.report
    records = records or LinkRecords(
        report, zero="failed", absolute=True, floor_bps=options.floor_bps, sparse=True, repeats=True,
        labels={field: f"sensor of {word}" for word, (_, field, _) in _QUANTITIES.items()},
    )  # fmt: skip
    clock, units = Clock(report, options.zone, options.dates), {}
    report.tell_guess("speed-test sensors are in Mbit/s and ms unless an attribute says otherwise")
    for line, entity, state, time, unit in _rows(source):
        quantity = _quantity(entity)
        if quantity is None:
            continue
        if state.lower() in _NO_STATE:
            report.rows += 1
            records.failed(line, f"{entity} is {state or 'empty'}")
            continue
        key, field, factor = quantity
        try:
            if unit:
                units[entity] = units_of.factor(field, unit) or factor
            value, at = number(state), clock.epoch(time)
        except ValueError as error:
            report.rows += 1
            report.repair("unreadable rows dropped", str(error), line)
            continue
        factor = units.get(entity, factor)
        records.add(line, options.home or source.stem, at, **{key: NAN if value is None else scaled(value, factor)})
    return records


def read(source: Source, options: Options) -> dict[str, Availability]:
    report = source.report
    clock, switches = Clock(report, options.zone, options.dates), Switches(report)
    events: dict[str, list[tuple[float, bool]]] = {}
    unknown = 0
    for line, entity, state, time, _ in _rows(source):
        if _quantity(entity) or _is_number(state):
            continue
        report.rows += 1
        try:
            at = clock.epoch(time)
        except ValueError as error:
            report.repair("unreadable rows dropped", str(error), line)
            continue
        unknown += state.lower() in _NO_STATE
        events.setdefault(entity, []).append((at, state.lower() in _ON))
    if unknown:
        report.note(f"{unknown} states are unavailable or unknown: away")
    for entity, found in events.items():
        found.sort()
        changes = [e for k, e in enumerate(found) if k == 0 or e[1] != found[k - 1][1]]
        switches.seen(found[-1][0])
        for at, on in changes:
            switches.add(entity, at, on)
    return switches.build(absolute=True)


FORMATS = (
    Format("home-assistant", "availability", "Home Assistant's history: who is there", detect, read),
    Format("home-assistant-links", "links", "Home Assistant's history of speed-test sensors", detect_links, read_links),
)
