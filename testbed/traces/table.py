"""Delimited text, one record a line: rows with their line numbers, past comments and repeated headers."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field

from testbed.traces.source import Source

DELIMITERS = ",;\t|"


def split(line: str, delimiter: str = ",") -> list[str]:
    """The cells of one line, without blanks around them."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [cell.strip().strip('"') for cell in line.split(delimiter)]


def sniff_delimiter(lines, most: int = 200) -> str:
    """The delimiter that splits the lines into the most equal numbers of cells."""
    best, found = 0.0, ","
    for delimiter in DELIMITERS:
        counts = [len(split(line, delimiter)) for line in lines[:most] if not line.startswith("#")]
        if not counts:
            continue
        common = max(set(counts), key=counts.count)
        score = (common - 1) * counts.count(common) / len(counts)
        if common > 1 and score > best:
            best, found = score, delimiter
    return found


@dataclass
class Table:
    """A table in a file. meta: what its comment lines say as '# key: value'."""

    source: Source
    delimiter: str = ","
    header: list[str] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)

    def rows(self, has_header: bool = True) -> Iterator[tuple[int, list[str]]]:
        """(line number, cells) of every row; the header goes to `self.header`, its repetitions nowhere."""
        report = self.source.report
        for number, line in self.source.lines():
            if not line.strip():
                continue
            if line.startswith("#"):
                key, colon, value = line.lstrip("# ").partition(":")
                if colon:
                    self.meta[key.strip().lower()] = value.strip()
                continue
            cells = split(line, self.delimiter)
            if has_header and not self.header:
                self.header = cells
                continue
            if has_header and cells == self.header:
                report.repair("header repeated in the middle: skipped", line=number)
                continue
            yield number, cells
