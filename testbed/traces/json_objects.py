"""The values of a JSON file, one by one: a document's elements, an object a line, objects behind prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.traces.json_text import BRACKETS, DECODER, after_prefix
from testbed.traces.source import Source


def objects(source: Source) -> Iterator[tuple[int | None, Any]]:
    """(line, value) of each top-level value; a list's elements come one by one, without lines.

    Raises:
        InputError: the file is no JSON at all.
    """
    report = source.report
    sample = source.sample
    first = next((line.strip() for line in sample.lines), "")
    prefixed = first[:1] not in ("{", "[") or bool(BRACKETS.match(first))
    by_lines = first[:1] in ("{", "[") and _decodes(first) and len(sample.lines) > 1
    if prefixed and any(after_prefix(line) for line in sample.lines[:50]):
        yield from _by_lines(source, prefixed=True)
        return
    if by_lines:
        yield from _by_lines(source)
        return
    text = source.text().lstrip("\ufeff")
    at, seen = max(0, text.find("{")) if prefixed else 0, 0
    while True:
        while at < len(text) and text[at] in " \r\n\t,\x00":
            at += 1
        if at >= len(text):
            return
        try:
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            rescued = _elements(text, at) if text[at] == "[" else []
            if not rescued and not seen:
                where = text.count("\n", 0, getattr(error, "pos", at)) + 1
                raise report.error(f"is not valid JSON ({_reason(error)})", where) from None
            report.repair(
                "JSON damaged or cut short: read up to there",
                _reason(error),
                text.count("\n", 0, getattr(error, "pos", at)) + 1,
            )
            yield from ((None, v) for v in rescued)
            return
        seen += 1
        if isinstance(value, list) and not _is_event(value):
            yield from ((None, element) for element in value)
        else:
            yield None, value


def _by_lines(source: Source, prefixed: bool = False) -> Iterator[tuple[int | None, Any]]:
    report = source.report
    for number, raw, ended in source.byte_lines():
        line = source.decode(raw, number).strip()
        if not line:
            continue
        try:
            value = after_prefix(line) if prefixed else None
            if value is None:
                value = DECODER.decode(line.rstrip(","))
        except (ValueError, RecursionError) as error:
            if not ended:
                report.repair("last line cut short: dropped", line[:60], number)
            else:
                report.repair("lines that are not JSON: dropped", f"{line[:60]} ({_reason(error)})", number)
            continue
        if isinstance(value, list) and not _is_event(value):
            yield from ((number, element) for element in value)
        else:
            yield number, value


def _is_event(value: list) -> bool:
    """[time, kind, …]: a record in itself."""
    return len(value) >= 2 and isinstance(value[0], (int, float)) and isinstance(value[1], str)


def _elements(text: str, at: int) -> list[Any]:
    """The complete elements of a list that is cut short."""
    found, at = [], at + 1
    while at < len(text):
        while at < len(text) and text[at] in " \r\n\t,":
            at += 1
        try:
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(value)
    return found


def _decodes(line: str) -> bool:
    try:
        DECODER.decode(line.rstrip(","))
    except (ValueError, RecursionError):
        return False
    return True


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error).split(": line")[0]
