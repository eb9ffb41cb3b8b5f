"""The tensor-parallel runner's options: `training.options` of an experiment."""

from __future__ import annotations

from typing import ClassVar, Literal

from runners.options import CheckpointEvery, Options


class TensorParallelOptions(Options):
    """Options with their defaults.

    all_reduce: 'direct', each with each, two rounds; or 'ring', 2 (R-1) rounds. The same bytes.
    checkpoint_every: steps between checkpoints at the server; 0: none, so a lost member means starting over.
    """

    all_reduce: Literal["ring", "direct"] = "direct"
    checkpoint_every: CheckpointEvery = 5
    # what the elastic core asks for
    recovery: ClassVar[str] = "replan"
    local_copies: ClassVar[bool] = True


parse_options = TensorParallelOptions.read
