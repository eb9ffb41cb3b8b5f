"""What a block of a matrix product costs a device, as pure functions on arrays of devices.

A block of r rows and c columns of C = A·B (A m×k, B k×n, b bytes an element) takes

    down = b k (r + c) bytes      work = 2 k r c FLOPs      up = b r c bytes
    memory = b (k (r + c) + r c) bytes

Each of the three times and the memory has the form P (r + c) + Q r c, and so has every weighted sum of them. With s
chunks in flight one after the other (a pipeline of three stages) a block takes

    delay + x_max + (x_down + x_work + x_up - x_max) / s

where x_max is the largest of the three: their sum for s = 1 (sequential), the largest alone for s = ∞ (streamed). It is
the largest of three expressions P (r + c) + Q r c, so that "in time T" and "within memory" are a few
constraints of one form, each solved in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STREAMED = math.inf  # as `chunks`: the three parts of a task overlap entirely


@dataclass(frozen=True)
class Rates:
    """What one device can do, over its whole path to the server. FLOP/s, bit/s, one-way seconds."""

    flops: float
    uplink_bps: float
    downlink_bps: float
    uplink_delay_s: float
    downlink_delay_s: float


@dataclass(frozen=True)
class BlockCosts:
    """Constraints P (r + c) + Q r c <= budget of N devices for blocks of one product; arrays [constraint, device].

    The first constraints are in seconds, beyond delay_s [device]; the last one is memory, in elements.
    """

    delay_s: np.ndarray
    p: np.ndarray
    q: np.ndarray
    memory_elements: np.ndarray

    def only(self, index: np.ndarray) -> BlockCosts:
        """The same for the devices of an index array."""
        return BlockCosts(self.delay_s[index], self.p[:, index], self.q[:, index], self.memory_elements[index])

    def budgets(self, seconds: float | np.ndarray) -> np.ndarray:
        """What is left for each constraint when a block may take that long; negative where the delay is longer."""
        left = np.broadcast_to(seconds - self.delay_s, self.delay_s.shape)
        return np.concatenate([np.broadcast_to(left, (len(self.p) - 1, len(left))), self.memory_elements[None]])

    def time_s(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Seconds that each device takes for its rows×columns; 0 for no block."""
        rows, columns = np.asarray(rows, float), np.asarray(columns, float)
        times = self.p[:-1] * (rows + columns) + self.q[:-1] * (rows * columns)
        return np.where(rows * columns > 0, self.delay_s + times.max(axis=0), 0.0)

    def heights(self, columns: np.ndarray, seconds: float | np.ndarray) -> np.ndarray:
        """The most rows of a block of that many columns in that time; negative where there is no time for any."""
        budgets = self.budgets(seconds)
        with np.errstate(divide="ignore", invalid="ignore"):
            return ((budgets - self.p * columns) / (self.p + self.q * columns)).min(axis=0)

    def sides(self, seconds: float) -> np.ndarray:
        """Side of the largest square block in that time; 0 where there is time for none."""
        budgets = np.maximum(self.budgets(seconds), 0.0)
        return (budgets / (self.p + np.sqrt(self.p * self.p + self.q * budgets))).min(axis=0)

    def areas(self, seconds: float, rows: int, columns: int) -> np.ndarray:
        """Largest area of a block within rows×columns in that time. The square has the least half-perimeter."""
        short, long = min(rows, columns), max(rows, columns)
        sides = self.sides(seconds)
        flat = short * np.clip(self.heights(np.full_like(sides, short), seconds), 0.0, long)
        return np.where(sides <= short, sides * sides, flat)


def block_costs(rates: Sequence[Rates], memory_bytes: Sequence[float], k: int, element_bytes: int,
                chunks: float = 1) -> BlockCosts:
    """Costs of blocks of a product with inner dimension k for those devices, in their order."""
    flops, up, down, delay = (np.array(v, float) for v in zip(*(
        (r.flops, r.uplink_bps, r.downlink_bps, r.uplink_delay_s + r.downlink_delay_s) for r in rates)))
    p_down = element_bytes * k * 8 / down  # seconds a row or a column
    q_work = 2 * k / flops  # seconds an element of the block
    q_up = element_bytes * 8 / up
    other = 0.0 if chunks == STREAMED else 1 / chunks
    if chunks == 1:
        p, q = [p_down], [q_work + q_up]
    else:
        p = [p_down, other * p_down, other * p_down]
        q = [other * (q_work + q_up), q_work + other * q_up, q_up + other * q_work]
    elements = np.array(memory_bytes, float) / element_bytes
    return BlockCosts(delay, np.stack([*p, np.full_like(down, k)]), np.stack([*q, np.ones_like(down)]), elements)


def fair_rates(rates: np.ndarray, capacity: float) -> np.ndarray:
    """Max-min fair shares of a link of that capacity among flows that can't be faster than `rates`."""
    if rates.sum() <= capacity:
        return rates
    order = np.sort(rates)
    left = capacity - np.concatenate([[0.0], np.cumsum(order)[:-1]])
    levels = left / np.arange(len(rates), 0, -1)  # the level if all slower flows are served
    return np.minimum(rates, levels[np.argmax(levels <= order)])


