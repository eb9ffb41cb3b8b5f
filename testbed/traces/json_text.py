"""JSON in logs: one document, an object a line, or one object after another; damage at the end is cut off."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from testbed.traces import dates

LONGEST_PREFIX = 200  # characters before an object on its line
PREFIXED = 0.5  # share of lines with an object, from which a file is one of objects behind prefixes
_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?"
    r"|(?<!\d)1\d{9}(?:\.\d+)?(?!\d)"
)
BRACKETS = re.compile(r"\[[^\]{\"\n]*[-:A-Za-z][^\]{\"\n]*\][^\n]*\{")  # '[2023-04-04 10:41:56] {…'
DEEPEST = 200  # levels of nesting, beyond which a document is no log


def _constant(name: str) -> None:
    return None  # NaN, Infinity: no value


class RepeatedKey(ValueError):
    """A key that stands more than once in one JSON object, with different values, was asked for."""


class Repeated(dict):
    """A JSON object with equal keys: what such a key means can't be told, so that asking for it is an error.

    repeated: each such key with all its values, for a format that can tell them apart.
    """

    repeated: dict[str, list]

    def _check(self, key) -> None:
        if key in self.repeated:
            shown = ", ".join(json.dumps(v)[:30] for v in self.repeated[key][:3])
            raise RepeatedKey(f"{key!r} stands {len(self.repeated[key])} times in one object ({shown})")

    def __getitem__(self, key):
        self._check(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self._check(key)
        return super().get(key, default)

    def items(self):
        for key in self.repeated:
            self._check(key)
        return super().items()

    def values(self):
        self.items()
        return super().values()


def _object(pairs: list[tuple[str, Any]]) -> dict:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    every: dict[str, list] = {}
    for key, item in pairs:
        every.setdefault(key, []).append(item)
    repeated = {key: items for key, items in every.items() if any(item != items[0] for item in items[1:])}
    if not repeated:
        return value
    out = Repeated(value)
    out.repeated = repeated
    return out


DECODER = json.JSONDecoder(parse_constant=_constant, object_pairs_hook=_object)
_LENIENT = json.JSONDecoder(parse_constant=_constant)  # recognises a format; it reads no value


def from_sample(lines: Sequence[str], text: str, whole: bool) -> Any:
    """The document, a list of the first lines' objects, or None."""
    text = text.lstrip("\ufeff \r\n\t")
    if text[:1] not in ("{", "[") or BRACKETS.match(text):
        return _prefixed_sample(lines, text, whole)
    try:
        return _LENIENT.decode(text)
    except (ValueError, RecursionError):
        pass
    found, at = [], 0
    while at < len(text) and len(found) < 50:
        try:
            value, at = _LENIENT.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(value)
        while at < len(text) and text[at] in " \r\n\t,":
            at += 1
    if found:
        return found
    return _beginning(text) if not whole else None


def _prefixed_sample(lines: Sequence[str], text: str, whole: bool) -> Any:
    """The objects of lines that begin with something else; None where most lines have none."""
    lines = lines[:50]
    found = [value for line in lines if (value := after_prefix(line)) is not None]
    if found and len(found) >= PREFIXED * len(lines):
        return found
    at = text.find("{")  # one document behind a word: 'Stdout: {', and its lines
    if 0 < at <= LONGEST_PREFIX and "\n" not in text[:at].strip():
        behind = text[at:]
        try:
            return _LENIENT.raw_decode(behind)[0]
        except (ValueError, RecursionError):
            return _beginning(behind) if not whole else None
    return None


def after_prefix(line: str) -> dict | None:
    """The object at a line's end, behind a program's name, a container's or journal's time stamp.

    Where the object has no time of its own, it gets the prefix's, under 'timestamp'.
    """
    at = line.find("{")
    if not 0 < at <= LONGEST_PREFIX or line[at - 1] in ";,\t\"'":  # a cell of a table is no object behind a prefix
        return None
    try:
        value = DECODER.decode(line[at:].rstrip().rstrip("'"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    stamp = _stamp_in(line[:at])
    if stamp and not any(key.lower().endswith(("time", "timestamp", "date")) for key in value):
        value["timestamp"] = stamp
    return value


def _stamp_in(prefix: str) -> str | None:
    match = _ISO.search(prefix)
    if match:
        return match[0]
    found = dates.find(prefix)
    return found[1].strip() if found else None


def _beginning(text: str) -> Any:
    """What a document cut by the sample's end begins with: its first complete elements, or its first keys."""
    if text[0] == "[":
        found, at = [], 1
        while at < len(text) and len(found) < 50:
            while at < len(text) and text[at] in " \r\n\t,":
                at += 1
            try:
                value, at = _LENIENT.raw_decode(text, at)
            except (ValueError, RecursionError):
                break
            found.append(value)
        return found or None
    return _first_keys(text)


def _first_keys(text: str) -> dict[str, Any] | None:
    out: dict[str, Any] = {}
    at = 1
    while len(out) < 50:
        while at < len(text) and text[at] in " \r\n\t,":
            at += 1
        try:
            key, at = _LENIENT.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        while at < len(text) and text[at] in " \r\n\t:":
            at += 1
        try:
            out[str(key)], at = _LENIENT.raw_decode(text, at)
        except (ValueError, RecursionError):
            # a value longer than the sample: the document goes on within it
            out[str(key)] = _beginning(text[at:]) if text[at : at + 1] in ("{", "[") and text[at:] else None
            break
    return out or None


def get(value: Any, *path: str) -> Any:
    """value[path[0]][path[1]]…, or None where something is missing. Keys compare without regard to case."""
    for key in path:
        if not isinstance(value, dict):
            return None
        if key in value:
            value = value[key]
            continue
        alike = [k for k in value if k.lower() == key.lower()]
        if len({json.dumps(dict.get(value, k), default=str) for k in alike}) > 1:
            raise RepeatedKey(f"{' and '.join(map(repr, alike))} stand in one object with different values")
        value = value[alike[0]] if alike else None
    return value


def number_at(value: Any, *path: str) -> float | None:
    """The number there, also when it is written as text; None when there is none.

    Raises:
        ValueError: something else is there.
    """
    from testbed.traces.numbers import number

    found = get(value, *path)
    if found is None or isinstance(found, (dict, list)):
        return None
    if isinstance(found, bool):
        raise ValueError(f"{'.'.join(path)} is {found}; expected a number")
    if isinstance(found, (int, float)):
        if isinstance(found, int) and abs(found) > 1e300:
            raise ValueError(f"{'.'.join(path)} is beyond all bounds")
        return float(found)
    try:
        return number(str(found))
    except ValueError as error:
        raise ValueError(f"{'.'.join(path)}: {error}") from None
