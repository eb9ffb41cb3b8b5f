"""Other people's traffic in a home: when it runs at which rate. Pure data; `cross_traffic_source` sends it.

Rates are those of a speed test, like a link's: a stream of 5 Mbit/s leaves 15 of a home's 20 Mbit/s. It is
inelastic (datagrams that don't slow down), as of a video call, a game or a camera. Times are emulated
seconds since the experiment's start.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import units
from testbed.errors import InputError

OUTSIDE = "(outside)"  # the host where it comes from and goes to; no home can have this name
CHANGES_MAX = 200_000  # of one stream
Changes = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Stream:
    """Traffic of one home in one direction ('down' or 'up').

    changes: (time [emulated s], rate from then on [bit/s, emulated]), ascending; nothing runs before the first.
    """

    home: str
    direction: str
    changes: Changes

    def rate_at(self, t_s: float) -> float:
        rates = [rate for t, rate in self.changes if t <= t_s]
        return rates[-1] if rates else 0.0

    def later(self, by_s: float) -> Stream:
        """The same stream seen from a later start."""
        coming = tuple((t - by_s, rate) for t, rate in self.changes if t > by_s)
        now = self.rate_at(by_s)
        return Stream(self.home, self.direction, ((0.0, now), *coming) if now > 0 else coming)

    def peak_bps(self) -> float:
        return max((rate for _, rate in self.changes), default=0.0)


def constant(rate_bps: float, begin_s: float, end_s: float) -> Changes:
    """One rate from `begin_s` to `end_s`."""
    return clipped([(0.0, rate_bps)], begin_s, end_s)


def on_off(rate_bps: float, on_s: float, off_s: float, begin_s: float, end_s: float, *, seed: str | None) -> Changes:
    """Bursts of `rate_bps`, the first one at `begin_s`.

    Args:
        on_s, off_s: lengths of bursts and pauses; with a seed the means of exponential distributions.
        seed: None for fixed lengths.

    Raises:
        ValueError: more than CHANGES_MAX changes.
    """
    draw = random.Random(seed)

    def lengths() -> Iterator[float]:
        for mean in itertools.cycle((on_s, off_s)):
            yield mean if seed is None else draw.expovariate(1 / mean)

    changes, t = [], begin_s
    for on, length in zip(itertools.cycle((True, False)), lengths()):
        if t >= end_s:
            break
        changes.append((t, rate_bps if on else 0.0))
        t += length
        if len(changes) > CHANGES_MAX:
            raise ValueError(f"more than {CHANGES_MAX} changes until {end_s:g} s; expected longer periods")
    return clipped(changes, begin_s, end_s)


def from_samples(
    samples: Sequence[tuple[float, float]], begin_s: float, end_s: float, *, end: str, time_scale: float = 1.0
) -> Changes:
    """A trace's rates, its first sample at `begin_s`.

    Args:
        samples: (time [trace s], rate), ascending.
        end: what follows the last sample, which holds as long as the one before it: 'loop', 'hold' (that
            rate stays) or 'stop' (silence).
        time_scale: trace seconds in an emulated second.

    Raises:
        ValueError: more than CHANGES_MAX changes.
    """
    zero = samples[0][0]
    shape = [((t - zero) / time_scale, rate) for t, rate in samples]
    last_s = shape[-1][0] - shape[-2][0] if len(shape) > 1 else math.inf
    span = shape[-1][0] + last_s
    changes = [(begin_s + t, rate) for t, rate in shape]
    if end == "stop" and math.isfinite(span):
        changes.append((begin_s + span, 0.0))
    if end == "loop" and math.isfinite(span):
        if (end_s - begin_s) / span * len(shape) > CHANGES_MAX:
            raise ValueError(f"more than {CHANGES_MAX} changes until {end_s:g} s; expected a trace with longer steps")
        for lap in range(1, math.ceil((end_s - begin_s) / span)):
            changes += [(begin_s + lap * span + t, rate) for t, rate in shape]
    return clipped(changes, begin_s, end_s)


def clipped(changes: Iterable[tuple[float, float]], begin_s: float, end_s: float) -> Changes:
    """Only what lies between the two times, then silence; changes that change nothing left out."""
    out: list[tuple[float, float]] = []
    for t, rate in changes:
        if t >= end_s:
            break
        at = max(t, begin_s)
        if out and out[-1][0] == at:
            out.pop()
        if not out or out[-1][1] != rate:
            out.append((at, rate))
    if math.isfinite(end_s) and out and out[-1][1] > 0:
        out.append((end_s, 0.0))
    return tuple(out)


def read_rates(path: Path) -> list[tuple[float, float]]:
    """(time [s], rate [bit/s]) from a CSV file with a column `time` and a column `rate`.

    A cell has its unit, '2 min' or '5 Mbit/s'; or the column's name has, as in time_s, rate_bps, rate_kbps,
    rate_mbps. Times without one are seconds.

    Raises:
        InputError: file, line, column, what was found and what was expected.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [
                (number, row)
                for number, row in enumerate(csv.reader(file), start=1)
                if any(c.strip() for c in row) and not row[0].startswith("#")
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(path), f"can't be read as CSV: {error}") from None
    if len(rows) < 2:
        raise InputError(str(path), "has no samples; expected a header such as 'time_s,rate_mbps' and lines below")
    names = [name.strip().lower() for name in rows[0][1]]
    columns = {}
    for kind, default in (("time", "s"), ("rate", "")):
        found = [i for i, name in enumerate(names) if name == kind or name.startswith(kind + "_")]
        if len(found) != 1:
            raise InputError(
                f"{path} line {rows[0][0]}", f"columns {', '.join(names)}: expected one named {kind!r} (or {kind}_…)"
            )
        columns[kind] = found[0], names[found[0]].partition("_")[2] or default
    samples: list[tuple[float, float]] = []
    for number, row in rows[1:]:
        t_s = _cell(path, number, row, "time", "duration", *columns["time"])
        rate = _cell(path, number, row, "rate", "rate", *columns["rate"])
        if samples and t_s <= samples[-1][0]:
            raise InputError(f"{path} line {number}", f"time {t_s:g} s does not come after {samples[-1][0]:g} s")
        samples.append((t_s, rate))
    return samples


def _cell(path: Path, line: int, row: Sequence[str], name: str, kind: str, column: int, unit: str) -> float:
    where = f"{path} line {line}, column {name}"
    text = row[column].strip() if column < len(row) else ""
    try:
        try:
            value = units.parse(kind, f"{float(text)!r} {unit}" if unit and float(text) else float(text))
        except ValueError:
            value = units.parse(kind, text)
    except ValueError as error:
        raise InputError(where, str(error)) from None
    if value < 0:
        raise InputError(where, f"{text!r} is negative; expected 0 or more")
    if kind == "duration" and value > units.CENTURY_S:
        raise InputError(where, f"{text!r} is longer than a century; expected less")
    return value
