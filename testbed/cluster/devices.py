"""Device profiles: what kinds of computers people have, from traces/devices/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import units, yaml_text
from testbed.errors import InputError, nearest
from testbed.shipped import DEVICES

_KEYS = ("speed", "memory", "ram", "power", "source")


@dataclass(frozen=True)
class DeviceProfile:
    """One kind of computer.

    flops: sustained speed [FLOP/s]. memory_bytes: what training may use. power_w: under load, None where it
    was not measured. source: where the figures come from.
    """

    name: str
    flops: float
    memory_bytes: int
    power_w: float | None
    source: str


def load_profiles(path: str | Path = DEVICES) -> dict[str, DeviceProfile]:
    """The profiles of a YAML file, or of all YAML files of a folder, by name.

    Raises:
        InputError: no such file, not YAML, an unknown or missing key, or an impossible value.
    """
    profiles: dict[str, DeviceProfile] = {}
    for where, name, entry in named_entries(
        path, "device profiles", "expected profiles by name, such as 'laptop: {speed: …, memory: …}'"
    ):
        if name in profiles:
            raise InputError(where, "a profile of this name exists already")
        profiles[name] = _profile(where, name, entry)
    return profiles


def named_entries(path: str | Path, what: str, expected: str) -> Iterator[tuple[str, str, Any]]:
    """(where, name, entry) of each entry of a YAML file, or of all YAML files of a folder.

    Raises:
        InputError: no such file, not YAML, or no entries by name.
    """
    path = Path(path)
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise InputError(str(path), f"no {what} here; expected a YAML file or a folder of them")
    for file in files:
        content, _ = yaml_text.read(file)
        if not isinstance(content, dict):
            raise InputError(str(file), expected)
        for name, entry in content.items():
            yield f"{file}, {name}", str(name), entry


def _profile(where: str, name: str, entry: object) -> DeviceProfile:
    if not isinstance(entry, dict):
        raise InputError(where, f"{entry!r}; expected speed and memory")
    for key in entry:
        if key not in _KEYS:
            near = nearest(key, _KEYS)
            raise InputError(
                where,
                f"unknown key {key!r}; expected {', '.join(_KEYS)}",
                hint=f"did you mean {near!r}?" if near else None,
            )
    values = {}
    for key, kind in (("speed", "speed"), ("memory", "size")):
        if key not in entry:
            raise InputError(where, f"has no {key}")
        try:
            values[key] = units.parse(kind, entry[key])
        except ValueError as error:
            raise InputError(f"{where}.{key}", str(error)) from None
        if not values[key] > 0:
            raise InputError(f"{where}.{key}", f"{entry[key]!r}; expected more than 0")
    power = entry.get("power")
    if power is not None and (type(power) not in (int, float) or not power > 0):
        raise InputError(f"{where}.power", f"{power!r}; expected watts as a number above 0")
    return DeviceProfile(
        name,
        values["speed"],
        int(values["memory"]),
        None if power is None else float(power),
        str(entry.get("source", "")),
    )
