"""What a transformer can be cut into when weights stay where they are for a step: halves of blocks, and shares of the
head's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.cluster import ModelSpec

ATTENTION, FEED, HEAD = "attention", "feed", "head"


@dataclass(frozen=True)
class Unit:
    """The smallest part of the chain that a device can hold.

    layer: 1 … L for blocks, L + 1 for the head. first, end: the head's words, else 0.
    parameters: all of it; matrix: those that every token is multiplied by.
    """

    kind: str
    layer: int
    first: int
    end: int
    parameters: int
    matrix: int

    def flops(self, model: ModelSpec, tokens: int, keys: int) -> float:
        """Forward, for `tokens` tokens that attend to `keys` (both kinds counted as multiplied whole)."""
        attention = 4.0 * tokens * keys * model.d_model if self.kind == ATTENTION else 0.0
        return 2.0 * tokens * self.matrix + attention


def block_units(model: ModelSpec) -> list[Unit]:
    """Attention and feed-forward half of every block, in order."""
    d, f, q, u = model.d_model, model.d_ff, model.qkv_width, model.up_width
    bias = 1 if model.biased else 0
    norm = (1 + bias) * d
    attention, feed = d * (q + d), d * (u + f)
    return [
        unit for layer in range(1, model.layers + 1) for unit in (
            Unit(ATTENTION, layer, 0, 0, attention + bias * (q + d) + norm, attention),
            Unit(FEED, layer, 0, 0, feed + bias * (u + d) + norm, feed),
        )
    ]  # fmt: skip


def head_units(model: ModelSpec, shares: int) -> list[Unit]:
    """The final norm and the output projection, cut by words into `shares`; the norm is in each."""
    d, v = model.d_model, model.vocabulary
    norm = (1 + (1 if model.biased else 0)) * d
    edges = [v * i // shares for i in range(shares + 1)]
    return [Unit(HEAD, model.layers + 1, a, b, norm + (b - a) * d, (b - a) * d) for a, b in zip(edges, edges[1:])]


def cut_evenly(units: Sequence[Unit], groups: int) -> list[tuple[Unit, ...]]:
    """The chain in that many groups of neighbours, the largest as small as can be.

    Bisection on the largest size, each group filled as far as it may be (optimal for chains).
    """
    sizes = [u.parameters for u in units]

    def cut(most: int) -> list[tuple[Unit, ...]] | None:
        out: list[list[Unit]] = [[]]
        room = most
        for i, unit in enumerate(units):
            left = groups - len(out)  # groups still to be begun, each of which needs a unit
            if out[-1] and (sizes[i] > room or len(units) - i == left):
                out.append([])
                room = most
            out[-1].append(unit)
            room -= sizes[i]
        return [tuple(g) for g in out] if len(out) <= groups else None

    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if cut(middle) is not None:
            high = middle
        else:
            low = middle + 1
    return cut(low)
