"""The data-parallel runner's options: `training.options` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runners.pipeline.options import check_choice, check_known, check_whole

REDUCES = ("ps", "ring")


@dataclass(frozen=True)
class DataParallelOptions:
    """Options with their defaults.

    reduce: 'ps', a parameter server that holds weights and optimizer, or 'ring', all-reduce among full replicas.
    buckets: how many parts the gradients travel in, or 'auto' for the number of least predicted step time.
    checkpoint_every: ring: steps between checkpoints at the server, for when every device is lost; 0: none.
        With a parameter server the state is there at all times.
    """

    reduce: str = "ps"
    buckets: int | str = "auto"
    checkpoint_every: int = 5
    # what the shared coordinator asks for
    recovery = "replan"
    local_copies = False


def parse_options(options: Mapping[str, Any]) -> DataParallelOptions:
    """Options as given, checked.

    Raises:
        InputError: unknown key or impossible value, with key, value, expectation and the nearest right one.
    """
    for key, value in options.items():
        where = check_known(key, DataParallelOptions, "data_parallel")
        if key == "reduce":
            check_choice(where, value, REDUCES)
        elif key == "buckets":
            if value != "auto":
                check_whole(where, value, 1, "a number of buckets (1 or more), or 'auto'", near="auto")
        else:
            check_whole(where, value, 0, "a number of steps (0: no checkpoints)")
    return DataParallelOptions(**options)
