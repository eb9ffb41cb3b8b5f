"""The data-parallel runner's options: `training.options` of an experiment."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from runners.options import CheckpointEvery, Expected, Options


class DataParallelOptions(Options):
    """Options with their defaults.

    reduce: 'ps', a parameter server that holds weights and optimizer, or 'ring', all-reduce among full replicas.
    buckets: how many parts the gradients travel in, or 'auto' for the number of least predicted step time.
    checkpoint_every: ring: steps between checkpoints at the server, for when every device is lost; 0: none.
        With a parameter server the state is there at all times.
    """

    reduce: Literal["ps", "ring"] = "ps"
    buckets: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto"], Expected("a number of buckets (1 or more), or 'auto'")
    ] = "auto"
    checkpoint_every: CheckpointEvery = 5
    # what the elastic core asks for
    recovery: ClassVar[str] = "replan"
    local_copies: ClassVar[bool] = False


parse_options = DataParallelOptions.read
