"""Phones' state logs, and the rule by which a state counts as available.

FLASH: {"id": {"messages": "2020-01-29 12:00:00\\tscreen_off\\n…"}}; events switch charging, screen, network.
STUNner: `upload_ms;device;app;{JSON}` lines; each record holds the whole state, timeStamp is ms.
A rule combines the states with and, or, not: --rule 'charging and wifi and not screen' (the default for
FLASH; for STUNner, which does not log the screen, 'charging and wifi').
"""

from __future__ import annotations

import json
import re

from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.intervals import Switches, build, from_samples
from testbed.traces.json_objects import objects
from testbed.traces.json_text import get
from testbed.traces.rules import Rule, known_names
from testbed.traces.source import Sample, Source
from testbed.traces.times import EARLIEST, LATEST, Clock

FLASH_STATES = {"charging", "screen", "locked", "wifi", "mobile", "online", "battery_low", "phone"}
STUNNER_STATES = {"charging", "wifi", "mobile", "online", "battery"}
LONGEST_RECORD = 100_000  # characters
_BEGINS = re.compile(r"\d{12,13};")
HOLE_S = 45 * 60.0  # STUNner reports every ten minutes
_FLASH = {
    "battery_charged_on": {"charging": True},
    "battery_charged_off": {"charging": False},
    "battery_low": {"battery_low": True},
    "battery_okay": {"battery_low": False},
    "phone_on": {"phone": True},
    "phone_off": {"phone": False, "screen": False},
    "screen_on": {"screen": True},
    "screen_off": {"screen": False},
    "screen_lock": {"locked": True},
    "screen_unlock": {"locked": False, "screen": True},
    "wifi": {"wifi": True, "mobile": False, "online": True},
    **{name: {"wifi": False, "mobile": True, "online": True} for name in ("2g", "3g", "4g", "5g", "mobile")},
    "unknown": {"wifi": False, "mobile": False, "online": False},
    "none": {"wifi": False, "mobile": False, "online": False},
}


def _is_flash(value) -> bool:
    return isinstance(value, dict) and bool(value) and isinstance(get(next(iter(value.values())), "messages"), str)


def detect_flash(sample: Sample) -> float:
    value = sample.json[0] if isinstance(sample.json, list) and sample.json else sample.json
    return 1.0 if _is_flash(value) else 0.0


def read_flash(source: Source, options: Options) -> dict[str, Availability]:
    report = source.report
    rule = Rule.parse(options.rule or "charging and wifi and not screen")
    known_names(rule, FLASH_STATES, "--rule")
    report.note(f"available while: {rule.text}")
    clock = Clock(report, options.zone, options.dates)
    switches = Switches(report)
    for _, value in objects(source):
        if not isinstance(value, dict):
            raise report.error("is no object of devices")
        for device, entry in value.items():
            messages = get(entry, "messages")
            if not isinstance(messages, str):
                raise report.error(f"device {device} has no 'messages'")
            _flash_device(str(device), messages, rule, clock, switches)
    return switches.build(absolute=True)


def _flash_device(device: str, messages: str, rule: Rule, clock: Clock, switches: Switches) -> None:
    report = switches.report
    state: dict[str, bool] = {}
    was: bool | None = None
    for line in messages.split("\n"):
        stamp, tab, event = line.partition("\t")
        if not line.strip():
            continue
        report.rows += 1
        change = _FLASH.get(event.strip().lower())
        try:
            time = clock.epoch(stamp)
        except ValueError as error:
            report.repair("unreadable rows dropped", f"device {device}: {error}")
            continue
        switches.seen(time)
        if change is None:
            if not event.strip().rstrip("%").replace(".", "").isdigit():  # battery percentages change no state
                report.repair("unknown events ignored", event.strip()[:30])
            continue
        state.update(change)
        now = rule.holds(state)
        if now != was:
            if was is None and not now:
                switches.events.setdefault(device, [])
            else:
                switches.add(device, time, now)
            was = now
    if not switches.events.get(device):
        switches.events[device] = [(switches.last, True)] if switches.last is not None else []


def detect_stunner(sample: Sample) -> float:
    lines = sample.lines if sample.whole else sample.lines[:-1]
    hits = sum(
        line.count(";") >= 3 and line.split(";", 3)[3].startswith("{") and line.split(";", 1)[0].isdigit()
        for line in [*lines[:20], *(a + b for a, b in zip(lines[:20], lines[1:20]) if not _BEGINS.match(b))]
    )
    return 1.0 if hits and hits >= 0.4 * len(lines[:20]) else 0.0  # records may be broken over two lines


def read_stunner(source: Source, options: Options) -> dict[str, Availability]:
    report = source.report
    rule = Rule.parse(options.rule or "charging and wifi")
    known_names(rule, STUNNER_STATES, "--rule")
    report.note(f"available while: {rule.text}")
    report.drop("publicIP, localIP", "latitude, longitude", "ssid, macAddress", "carrier")
    devices: dict[str, dict[float, bool]] = {}
    for line, text in _whole_records(source):
        report.rows += 1
        parts = text.split(";", 3)
        try:
            record = json.loads(parts[3])
            time = float(record["timeStamp"]) / 1e3
            if not EARLIEST <= time <= LATEST:
                raise ValueError(f"timeStamp {record['timeStamp']} is outside 1990 to 2100")
            states = devices.setdefault(parts[1], {})
            states[time] = rule.holds(_stunner_state(record))
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            report.repair("unreadable rows dropped", f"{type(error).__name__}: {str(error)[:60]}", line)
    if not devices:
        raise report.error("holds no readable record")
    _without_odd_clocks(devices, report)
    raw, end = {}, 0.0
    for device, states in devices.items():
        raw[device], until, _ = from_samples(states.items(), hole_s=HOLE_S, cadence_s=600.0)
        end = max(end, until)
    first = min(min(states) for states in devices.values())
    report.note("a state holds until the next record; after 45 min without one the phone is away")
    return build(raw, report, span_s=end - first, origin_s=first, start_epoch_s=first)


def _whole_records(source: Source):
    """(line, record): a record that a line feed within it broke (an encoded id may end in one) is put together."""
    held, first = "", 0
    for line, text in source.lines():
        if not text.strip():
            continue
        begins = _BEGINS.match(text) is not None
        if held and not begins and len(held) < LONGEST_RECORD:
            source.report.repair("records broken over several lines: put together", held[:40], first)
            held += text
        else:
            if held:
                yield first, held
            held, first = text, line
        if _is_whole(held):
            yield first, held
            held = ""
    if held:
        yield first, held


def _is_whole(record: str) -> bool:
    parts = record.split(";", 3)
    if len(parts) < 4:
        return False
    try:
        json.loads(parts[3])
    except (ValueError, RecursionError):
        return False
    return True


def _stunner_state(record: dict) -> dict:
    battery, mode = get(record, "batteryDTO"), get(record, "connectionMode")
    plugged = get(battery, "pluggedState")
    return {
        "charging": plugged in (1, 2, 4) or get(battery, "chargingState") in (2, 5),
        "wifi": mode == 1,
        "mobile": mode == 0,
        "online": mode in (0, 1),
        "battery": get(battery, "percentage"),
    }


def _without_odd_clocks(devices: dict[str, dict[float, bool]], report) -> None:
    """Drop records more than a year off the median: phones whose clock was not set."""
    times = sorted(t for states in devices.values() for t in states)
    middle = times[len(times) // 2]
    odd = 0
    for device in list(devices):
        kept = {t: s for t, s in devices[device].items() if abs(t - middle) < 366 * 86400}
        odd += len(devices[device]) - len(kept)
        if kept:
            devices[device] = kept
        else:
            del devices[device]
    if odd:
        report.repair("records with a clock more than a year off: dropped", count=odd)


FORMATS = (
    Format("flash", "availability", "FLASH state logs (JSON)", detect_flash, read_flash),
    Format("stunner", "availability", "a STUNner log", detect_stunner, read_stunner),
)
