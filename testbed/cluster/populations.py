"""Populations of devices: seeded draws of device profiles, in shares of public figures (traces/devices/populations)."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

from testbed.cluster.devices import DeviceProfile, named_entries
from testbed.errors import InputError, unknown
from testbed.shipped import DEVICES

POPULATIONS = DEVICES / "populations"
_KEYS = ("source", "parts")
_PART_KEYS = ("kind", "share", "profiles", "speed_gflops")


@dataclass(frozen=True)
class Part:
    """One kind of device. profiles: in equal shares; speed_flops: (level, FLOP/s) quantiles that replace the profiles'
    own speeds, the profiles then standing for slower to faster devices in order."""

    kind: str
    share: float
    profiles: tuple[str, ...]
    speed_flops: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class DevicePopulation:
    name: str
    parts: tuple[Part, ...]
    source: str


def load_populations(path: str | Path = POPULATIONS) -> dict[str, DevicePopulation]:
    """The populations of a YAML file, or of all YAML files of a folder, by name.

    Raises:
        InputError: no such file, not YAML, an unknown or missing key, or an impossible value.
    """
    found: dict[str, DevicePopulation] = {}
    for where, name, entry in named_entries(path, "device populations", "expected populations by name"):
        _check_keys(where, entry, _KEYS, ("parts",))
        if not isinstance(entry["parts"], list) or not entry["parts"]:
            raise InputError(f"{where}.parts", f"{entry['parts']!r}; expected a list of kinds with their shares")
        parts = tuple(_part(f"{where}.parts[{i}]", part) for i, part in enumerate(entry["parts"]))
        found[name] = DevicePopulation(name, parts, " ".join(str(entry.get("source", "")).split()))
    return found


def _check_keys(where: str, entry: Any, keys: Sequence[str], required: Sequence[str]) -> None:
    if not isinstance(entry, dict):
        raise InputError(where, f"{entry!r}; expected {', '.join(required)}")
    for key in entry:
        if key not in keys:
            raise unknown(where, "key", str(key), keys)
    for key in required:
        if key not in entry:
            raise InputError(where, f"has no {key}")


def _part(where: str, entry: Any) -> Part:
    _check_keys(where, entry, _PART_KEYS, ("kind", "share", "profiles"))
    share, profiles, speeds = entry["share"], entry["profiles"], entry.get("speed_gflops") or {}
    if type(share) not in (int, float) or not share > 0:
        raise InputError(f"{where}.share", f"{share!r}; expected a number above 0")
    if not isinstance(profiles, list) or not profiles:
        raise InputError(f"{where}.profiles", f"{profiles!r}; expected a list of device profiles")
    quantiles = []
    if not isinstance(speeds, dict):
        raise InputError(f"{where}.speed_gflops", f"{speeds!r}; expected level: GFLOP/s")
    for level, value in sorted(speeds.items()):
        if type(level) is not float or not 0 < level < 1 or type(value) not in (int, float) or not value > 0:
            raise InputError(
                f"{where}.speed_gflops", f"{level!r}: {value!r}; expected levels between 0 and 1, and GFLOP/s"
            )
        quantiles.append((level, value * 1e9))
    if [v for _, v in quantiles] != sorted(v for _, v in quantiles):
        raise InputError(f"{where}.speed_gflops", "speeds that fall as levels rise; expected quantiles")
    return Part(str(entry["kind"]), float(share), tuple(map(str, profiles)), tuple(quantiles))


def draw(
    population: DevicePopulation,
    count: int,
    seed: int,
    profiles: Mapping[str, DeviceProfile],
    where: str = "devices.population",
) -> list[DeviceProfile]:
    """`count` devices of a population; the same arguments give the same devices on every machine.

    Stratified: kinds, and the profiles of a kind, come as close to their shares as whole numbers can, and speeds
    that have quantiles are drawn one from each of equal strata. The seed decides the order, and the place within
    a stratum.

    Raises:
        InputError: a part names a profile that is not in `profiles`.
    """
    rng = random.Random(f"population {population.name} {seed}")  # a string: seeded alike everywhere
    devices: list[DeviceProfile] = []
    for part, n in zip(population.parts, apportioned([p.share for p in population.parts], count)):
        for name in part.profiles:
            if name not in profiles:
                raise unknown(where, "device profile", name, profiles)
        if part.speed_flops:
            for i in range(n):
                level = (i + rng.random()) / n
                profile = profiles[part.profiles[min(int(level * len(part.profiles)), len(part.profiles) - 1)]]
                devices.append(replace(profile, flops=_quantile(part.speed_flops, level)))
        else:
            for name, k in zip(part.profiles, apportioned([1.0] * len(part.profiles), n)):
                devices += [profiles[name]] * k
    rng.shuffle(devices)
    return devices


def apportioned(shares: Sequence[float], count: int) -> list[int]:
    """Whole numbers that add up to `count`, in proportion to `shares` (largest remainders)."""
    total = sum(shares)
    exact = [count * s / total for s in shares]
    numbers = [int(x) for x in exact]
    for i in sorted(range(len(shares)), key=lambda i: numbers[i] - exact[i])[: count - sum(numbers)]:
        numbers[i] += 1
    return numbers


def _quantile(quantiles: Sequence[tuple[float, float]], level: float) -> float:
    """Between the known quantiles: linear in the logarithm; beyond them: the last known one."""
    levels = [q for q, _ in quantiles]
    k = bisect_right(levels, level)
    if k == 0 or k == len(levels):
        return quantiles[min(k, len(levels) - 1)][1]
    (low, a), (high, b) = quantiles[k - 1], quantiles[k]
    return exp(log(a) + (log(b) - log(a)) * (level - low) / (high - low))
