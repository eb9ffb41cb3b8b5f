"""What can be shared out of a model for tensor parallelism, and the units in which its state moves.

A piece is a part of every block: a group of heads (a key and value head with the query heads that it serves), some
columns of the feed-forward part, or some rows of the output projection's vocabulary. What all members hold alike
(embedding, norms, biases after a row-parallel product) is unit 0. A unit of state is a piece over all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runners.costs import ADAMW_TRAFFIC_BYTES, BACKWARD, FLOAT, FLOPS_PER_BYTE, STATE_BYTES, layer_costs
from testbed.cluster import ModelSpec

MOST_PIECES = 256  # of columns, and of the vocabulary
COMMON = 0  # the unit that all members hold
KINDS = ("groups", "columns", "words")

Range = tuple[int, int]


@dataclass(frozen=True)
class Slices:
    """The ranges of pieces on one member, [first, end) of each kind."""

    groups: Range
    columns: Range
    words: Range

    def as_data(self) -> dict[str, list[int]]:
        return {kind: list(r) for kind, r in asdict(self).items()}

    @classmethod
    def from_data(cls, data: Mapping[str, Sequence[int]]) -> Slices:
        return cls(**{kind: (data[kind][0], data[kind][1]) for kind in KINDS})


class Pieces:
    """How a model is cut into pieces.

    counts: how many of each kind. bounds: kind -> rows (columns) at which its pieces begin, and the end.
    """

    def __init__(self, model: ModelSpec):
        self.model = model
        whole = {"groups": model.key_heads, "columns": model.d_ff, "words": model.vocabulary}
        self.counts = {kind: n if kind == "groups" else min(n, MOST_PIECES) for kind, n in whole.items()}
        self.bounds = {kind: [n * i // self.counts[kind] for i in range(self.counts[kind] + 1)]
                       for kind, n in whole.items()}  # fmt: skip
        self._offsets, at = {}, 1
        for kind in KINDS:
            self._offsets[kind] = at
            at += self.counts[kind]
        self.units = at

        d, f, s, v = model.d_model, model.d_ff, model.sequence, model.vocabulary
        bias = 1 if model.biased else 0
        group_width = model.qkv_width // model.key_heads  # columns of q, k and v of a group
        served = d // model.key_heads  # columns that a group puts out
        up = model.up_width // f
        # per piece row: parameters of all layers, and forward FLOPs of one layer and sample
        self.row_parameters = {
            "groups": model.layers * (group_width * (d + bias) + served * d),
            "columns": model.layers * (up * (d + bias) + d),
            "words": d,
        }
        self.row_flops = {
            "groups": 2 * s * d * (group_width + served) + 4 * s * s * served,
            "columns": 2 * s * d * (up + 1),
            "words": 2 * s * d,
        }
        total = sum(c.parameters for c in layer_costs(model))
        shared = model.key_heads * self.row_parameters["groups"] + f * self.row_parameters["columns"]
        self.common_parameters = total - shared - v * d
        # kept from forward to backward, per sample: inputs, norms and what follows them; and each piece's own
        self.common_activation_bytes = FLOAT * s * d * (1 + 6 * model.layers)
        self.row_activation_bytes = {
            "groups": FLOAT * s * model.layers * (2 * group_width + 2 * served),
            "columns": FLOAT * s * model.layers * (3 * up + 1),
            "words": FLOAT * s * 3,
        }

    def rows(self, kind: str, pieces: Range) -> Range:
        """Rows [first, end) of these pieces: groups, columns or words."""
        bounds = self.bounds[kind]
        return bounds[pieces[0]], bounds[pieces[1]]

    def count(self, kind: str, slices: Slices) -> int:
        """Rows of a kind on a member."""
        first, end = self.rows(kind, getattr(slices, kind))
        return end - first

    def units_of(self, slices: Slices) -> list[int]:
        """The units of state that a member holds."""
        own = [self.unit(kind, i) for kind in KINDS for i in range(*getattr(slices, kind))]
        return [COMMON, *own]

    def piece(self, unit: int) -> tuple[str, int]:
        """(kind, number) of a unit that is not COMMON."""
        kind = [k for k in KINDS if self._offsets[k] <= unit][-1]
        return kind, unit - self._offsets[kind]

    def unit(self, kind: str, number: int) -> int:
        """The unit of a piece."""
        return self._offsets[kind] + number

    def unit_parameters(self, unit: int) -> int:
        if unit == COMMON:
            return self.common_parameters
        kind, number = self.piece(unit)
        first, end = self.rows(kind, (number, number + 1))
        return (end - first) * self.row_parameters[kind]

    def unit_state_bytes(self, unit: int) -> int:
        return STATE_BYTES * self.unit_parameters(unit)

    def parameters(self, slices: Slices) -> int:
        """On a member."""
        return self.common_parameters + sum(self.count(k, slices) * self.row_parameters[k] for k in KINDS)

    def forward_flops(self, kind: str, slices: Slices) -> float:
        """Of one layer (for words: of the head) and sample on a member; backward is twice that."""
        return float(self.count(kind, slices) * self.row_flops[kind])

    def update_flops(self, slices: Slices) -> float:
        """One AdamW step on a member, priced as in runners/costs.py."""
        return float(ADAMW_TRAFFIC_BYTES * FLOPS_PER_BYTE * self.parameters(slices))

    def step_flops(self, slices: Slices) -> float:
        """Forward and backward of all layers and one sample on a member."""
        layers = self.model.layers
        blocks = layers * (self.forward_flops("groups", slices) + self.forward_flops("columns", slices))
        return (1 + BACKWARD) * (blocks + self.forward_flops("words", slices))


def describe(pieces: Pieces, slices: Slices) -> dict[str, Any]:
    """For people: heads, feed-forward columns and words of a member."""
    served = pieces.model.heads // pieces.model.key_heads
    return {
        "heads": pieces.count("groups", slices) * served,
        "columns": pieces.count("columns", slices),
        "words": pieces.count("words", slices),
    }
