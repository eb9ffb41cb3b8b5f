"""What a block of a matrix product costs a device, as pure functions on arrays of devices.

A block of r rows and c columns of C = A·B (A m×k, B k×n, b bytes an element) takes

    down = b k (r + c) bytes      work = 2 k r c FLOPs      up = b r c bytes
    memory = b (k (r + c) + r c) bytes

Each of the three times and the memory has the form P (r + c) + Q r c, and so has every weighted sum of them. Cut into s
chunks that follow each other (a pipeline of three stages) a task takes

    delays + x_max + (x_down + x_work + x_up - x_max) / s

where x_max is the longest of the three: their sum for s = 1 (sequential), the longest alone for s = ∞ (streamed). It is
the largest of three expressions P (r + c) + Q r c, so "in time T" and "within memory" are a few constraints of one
form, each solved in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

STREAMED = math.inf  # as `chunks`: the three parts of a task overlap entirely
FOREVER = 1e30  # seconds: memory alone limits


@dataclass(frozen=True)
class BlockCosts:
    """Constraints P (r + c) + Q r c <= budget of N devices for blocks of one product; arrays [constraint, device].

    All constraints but the last are in seconds beyond delay_s [device]; the last one is memory, in elements.
    """

    delay_s: np.ndarray
    p: np.ndarray
    q: np.ndarray
    memory_elements: np.ndarray

    def __len__(self) -> int:
        return len(self.delay_s)

    def only(self, index: np.ndarray) -> BlockCosts:
        """The same for the devices of an index array, which may name one several times."""
        return BlockCosts(self.delay_s[index], self.p[:, index], self.q[:, index], self.memory_elements[index])

    def budgets(self, seconds: float | np.ndarray) -> np.ndarray:
        """What each constraint leaves for a block that may take that long; negative where the delay is longer."""
        budgets = np.empty_like(self.p)
        budgets[:-1] = seconds - self.delay_s
        budgets[-1] = self.memory_elements
        return budgets

    def heights(self, columns: np.ndarray | float, budgets: np.ndarray) -> np.ndarray:
        """The most rows of a block of that many columns; negative where there is no time or memory for any."""
        return ((budgets - self.p * columns) / (self.p + self.q * columns)).min(axis=0)

    def time_s(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Seconds that each device takes for a block of rows×columns."""
        return self.delay_s + (self.p[:-1] * (rows + columns) + self.q[:-1] * (rows * columns)).max(axis=0)

    def largest_block(self, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """Sides (short, long) of the largest block within rows×columns that memory can hold; below 1: none."""
        return _largest(self.p[-1:], self.q[-1:], self.memory_elements[None], rows, columns)

    def block_areas(self, seconds: float, rows: int, columns: int) -> np.ndarray:
        """The largest area of one block within rows×columns, in that time and within memory."""
        short, long = _largest(self.p, self.q, self.budgets(seconds), rows, columns)
        return short * long

    def area_bounds(self, rows: int, columns: int) -> Callable[[float], np.ndarray]:
        """A function of time [s]: an upper bound of the area that each device can compute, in one block or many.

        A block has least cost an element when it is as large as it can be (P (r + c) / (r c) + Q falls as it
        grows), so time beyond one block of the largest size is worth at most that block's cost an element.
        """
        short, long = self.largest_block(rows, columns)
        held = (short >= 1) & (long >= 1)
        largest = np.where(held, short * long, np.inf)
        with np.errstate(divide="ignore"):
            each = self.p[:-1] * (1 / short + 1 / long) + self.q[:-1]
        full_s = self.delay_s + (each * largest).max(axis=0)

        def areas(seconds: float) -> np.ndarray:
            one = self.block_areas(seconds, rows, columns)
            late = seconds >= full_s
            if late.any():
                one = np.where(late, ((seconds - self.delay_s) / each).min(axis=0), one)
            return np.where(held, one, 0.0)

        return areas

    def areas(self, seconds: float, rows: int, columns: int) -> np.ndarray:
        """`area_bounds` for one time."""
        return self.area_bounds(rows, columns)(seconds)

    def area_time_s(self, area: float, rows: int, columns: int, precision: float) -> tuple[float, float] | None:
        """Times (too short, long enough) in which the devices' largest areas add up to that area; None: never."""
        held = self.largest_block(rows, columns)[0] >= 1
        if not held.any():
            return None
        guess = area / (1 / (self.q[0, held] + 1e-30)).sum() + self.delay_s[held].min()
        areas = self.area_bounds(rows, columns)
        return least_time(lambda t: float(areas(t).sum()), area * (1 - 1e-9), guess, precision)


def _largest(p, q, budgets, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Of given area the square has the least half-perimeter; where a square is too wide, the matrix's short side."""
    most_short, most_long = float(min(rows, columns)), float(max(rows, columns))
    budgets = np.maximum(budgets, 0.0)
    short = (budgets / (p + np.sqrt(p * p + q * budgets))).min(axis=0)  # 2 P s + Q s² = budget, without cancellation
    long = short
    wide = short > most_short
    if wide.any():
        flat = ((budgets - p * most_short) / (p + q * most_short)).min(axis=0)
        long = np.where(wide, np.minimum(np.maximum(flat, most_short), most_long), short)
        short = np.where(wide, most_short, short)
    return short, long


def fair_rates(rates: np.ndarray, capacity: float) -> np.ndarray:
    """Max-min fair shares of a link of that capacity among flows that can't be faster than `rates`."""
    if rates.sum() <= capacity:
        return rates
    order = np.sort(rates)
    left = capacity - np.concatenate([[0.0], np.cumsum(order)[:-1]])
    levels = left / np.arange(len(rates), 0, -1)  # what each would get if all slower flows were served
    return np.minimum(rates, levels[np.argmax(levels <= order)])


def least_time(
    amount: Callable[[float], float], target: float, guess: float, precision: float = 1e-6
) -> tuple[float, float] | None:
    """Times (too short, long enough), that close, between which a growing `amount` reaches the target.

    None when it never does; the first is 0 when 1e-18 s are long enough.
    """
    high = max(guess, 1e-12)
    low, f_low, f_high = 0.0, 0.0, amount(high)
    while f_high < target:
        low, f_low, high = high, f_high, high * 4
        if high > FOREVER:
            return None
        f_high = amount(high)
    while low == 0.0:
        lower = high / 4
        if lower < 1e-18:
            return 0.0, high
        f_lower = amount(lower)
        if f_lower < target:
            low, f_low = lower, f_lower
        else:
            high, f_high = lower, f_lower
    turn = 1
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        if turn % 3 and f_low > 0 and f_high > f_low:  # amounts are nearly powers of time: a secant in logarithms
            share = math.log(target / f_low) / math.log(f_high / f_low)
            step = math.log(high / low)
            margin = precision / 4 / step
            middle = low * math.exp(step * min(max(share + (margin if turn % 3 == 1 else -margin), 0.0), 1.0))
            if not low < middle < high:
                middle = math.sqrt(low * high)
        turn += 1
        f_middle = amount(middle)
        if f_middle < target:
            low, f_low = middle, f_middle
        else:
            high, f_high = middle, f_middle
    return low, high
