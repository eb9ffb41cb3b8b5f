"""The tensor-parallel runner's options: `training.options` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runners.collectives import ALGORITHMS
from runners.pipeline.options import check_choice, check_known, check_whole


@dataclass(frozen=True)
class TensorParallelOptions:
    """Options with their defaults.

    all_reduce: 'direct', each with each, two rounds; or 'ring', 2 (R-1) rounds. The same bytes.
    checkpoint_every: steps between checkpoints at the server; 0: none, so a lost member means starting over.
    """

    all_reduce: str = "direct"
    checkpoint_every: int = 5
    # what the shared coordinator asks for
    recovery = "replan"
    local_copies = True


def parse_options(options: Mapping[str, Any]) -> TensorParallelOptions:
    """Options as given, checked.

    Raises:
        InputError: unknown key or impossible value, with key, value, expectation and the nearest right one.
    """
    for key, value in options.items():
        where = check_known(key, TensorParallelOptions, "tensor_parallel")
        if key == "all_reduce":
            check_choice(where, value, ALGORITHMS)
        else:
            check_whole(where, value, 0, "a number of steps (0: no checkpoints)")
    return TensorParallelOptions(**options)
