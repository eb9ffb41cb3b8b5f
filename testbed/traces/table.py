"""Delimited text, one record a line: delimiter, header, comments."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.traces.numbers import number, with_unit
from testbed.traces.report import Report
from testbed.traces.times import is_stamp, is_time_of_day

BLANKS = "blanks"  # cells are separated by any run of blanks
DELIMITERS = (",", ";", "\t", "|", BLANKS)


def split(line: str, delimiter: str = ",") -> list[str]:
    """The cells of one line, without blanks around them."""
    if delimiter == BLANKS:
        return line.split()
    if '"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [cell.strip().strip('"') for cell in line.split(delimiter)]


def sniff_delimiter(lines: Iterable[str], most: int = 200, among: tuple[str, ...] = DELIMITERS) -> str:
    """The delimiter, of those in `among`, that splits the lines into the most equal numbers of cells."""
    kept = [line for line in lines if not line.startswith("#")][:most]
    best, found = 0.0, ","
    for delimiter in among:
        counts = [len(split(line, delimiter)) for line in kept]
        if not counts:
            break
        common = max(set(counts), key=counts.count)
        score = (common - 1) * (counts.count(common) / len(counts)) ** 2
        if delimiter != BLANKS and common > 1 and counts.count(common) > 0.9 * len(counts):
            first = split(kept[-1], delimiter)[0]
            if " " in first and is_stamp(first):
                return delimiter  # blanks stand within the dates
        if delimiter == BLANKS:
            score *= 0.5  # blanks are within cells more often than between them
        if common > 1 and score > best:
            best, found = score, delimiter
    return found


def is_value(cell: str) -> bool:
    """Whether a cell holds a number, a stamp or a quantity, as the cells of a header don't."""
    if is_stamp(cell) or is_time_of_day(cell) or with_unit(cell):
        return True
    try:
        return number(cell) is not None
    except ValueError:
        return False


@dataclass(frozen=True)
class Layout:
    """How a table is laid out. header: its names, or () when it has none.

    rows: the sample's rows of values.
    commented: the header is a line that begins with '#'. line: where the header, or the first row, stands.
    """

    delimiter: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    commented: bool = False
    line: int = 1

    @property
    def width(self) -> int:
        """The number of cells of the header, or of most rows."""
        return len(self.header) if self.header else self.row_width

    @functools.cached_property
    def row_width(self) -> int:
        """The number of cells of most rows."""
        counts = [len(row) for row in self.rows]
        return max(set(counts), key=counts.count) if counts else 0


def layout(sample_lines: Sequence[str], text: str, whole: bool) -> Layout:
    """The layout of a sample. A first line '#a,b,c' is the header when the next line has as many cells."""
    lines = list(sample_lines)
    commented = False
    if len(lines) > 1 and lines[0].startswith("#") and not lines[1].startswith("#"):
        delimiter = sniff_delimiter(lines[1:])
        names = split(lines[0].lstrip("# "), delimiter)
        if len(names) > 1 and len(names) == len(split(lines[1], delimiter)) and looks_like_header(names):
            commented, lines[0] = True, lines[0].lstrip("# ")
    if not whole and len(lines) > 1:
        lines.pop()  # cut by the sample's end
    lines = [line for line in lines if not line.startswith("#")]
    delimiter = sniff_delimiter(lines)
    by_header = sniff_delimiter(lines[:1], among=DELIMITERS[:-1])
    if by_header != delimiter and lines:
        names = split(lines[0], by_header)
        if len(names) > max(3, len(split(lines[0], delimiter))) and looks_like_header(names):
            delimiter = by_header  # most lines tell of failures: the header counts
    rows = [tuple(split(line, delimiter)) for line in lines]
    header: tuple[str, ...] = ()
    if rows and looks_like_header(rows[0]):
        header = rows.pop(0)
    numbered = enumerate(text.splitlines(), 1)
    line = next((n for n, row in numbered if row.strip() and (commented or not row.startswith("#"))), 1)
    return Layout(delimiter, header, tuple(rows), commented, line)


def check_once(layout: Layout, used: Iterable[int], report: Report) -> None:
    """That no other column has the name of one that is used: which of them is meant can't be told.

    Raises:
        InputError: naming the columns.
    """
    names = [name.strip("\"' ").lower() for name in layout.header]
    for index in sorted(used):
        alike = [k for k, name in enumerate(names) if 0 <= index < len(names) and name and name == names[index]]
        if len(alike) > 1:
            raise report.error(
                f"names {len(alike)} columns (numbers {', '.join(str(k + 1) for k in alike)}); expected one",
                layout.line,
                layout.header[index],
                hint="rename one of them, or take one by its number: --map",
            )


def looks_like_header(cells: Iterable[str]) -> bool:
    """Names without values among them, most of them not empty."""
    cells = list(cells)
    named = [c for c in cells if any(ch.isalpha() for ch in c)]
    return len(cells) > 1 and len(named) >= max(2, 0.6 * len(cells)) and not any(is_value(c) for c in cells)
