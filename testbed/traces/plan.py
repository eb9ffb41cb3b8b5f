"""What each column of a table means."""

from __future__ import annotations

from dataclasses import dataclass, field

STAMP, RELATIVE, TIME_OF_DAY, EVEN = "stamp", "relative", "time of day", "even"


@dataclass(frozen=True)
class Column:
    """field: one of records.FIELDS. index: of the cell. factor: SI per unit of the file; None when each cell
    names its own unit. label: the column's name, for messages.
    """

    field: str
    index: int
    factor: float | None
    label: str


@dataclass(frozen=True)
class TimeColumns:
    """kind: STAMP (date or Unix time; `second` holds the time of day where it is a cell of its own), RELATIVE
    (a number times `factor` seconds), TIME_OF_DAY alone, or EVEN: no column, a row every `factor` seconds.
    """

    kind: str = STAMP
    index: int = -1
    second: int = -1
    factor: float = 1.0
    label: str = "time"


@dataclass(frozen=True)
class Plan:
    """How to read the rows of a table.

    homes: cells that together name the home. width: number of cells of a row, or None for any that has all
    columns. zero: as in LinkRecords. exact: wrong rows are errors, not repairs (our own format).
    sparse: each row carries some of the quantities, by design.
    private: columns with personal data, which are left behind.
    loss_pair: (failures, successes) columns whose share is the loss.
    alive: a column that is 0 for a failed test. repeats: rows of one time are one test, the last one counts.
    alias: prefix for numbered names in place of those that the home's column has.
    population: every row is a home of its own, with constant values; `population` begins its name.
    marks: cell values (such as -1) that mean 'no value'.
    only: (cell, value): rows whose cell has another value are not meant for us.
    """

    columns: tuple[Column, ...]
    time: TimeColumns
    homes: tuple[int, ...] = ()
    width: int | None = None
    zero: str = "failed"
    exact: bool = False
    sparse: bool = False
    decimal_comma: bool = False
    private: tuple[str, ...] = ()
    loss_pair: tuple[int, int] | None = None
    alive: int | None = None
    repeats: bool = False
    alias: str | None = None
    population: str | None = None
    marks: frozenset[float] = frozenset()
    only: tuple[int, str] | None = None
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """The least number of cells of a usable row."""
        used = [c.index for c in self.columns] + [self.time.index, self.time.second, *self.homes]
        return max([*used, *(self.loss_pair or ()), -1 if self.alive is None else self.alive], default=0) + 1
