"""The pipeline runner's options: `training.options` of an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runners.options import CheckpointEvery, Expected, Options


class PipelineOptions(Options):
    """Options with their defaults.

    schedule: '1f1b' or 'gpipe'.
    recovery: when a stage's device is lost, 'replan' over those who remain or 'wait' until it is back.
    checkpoint_every: steps between checkpoints at the server; 0: none, so a lost stage means starting over.
    stages: how many, or 'auto' for the number of least predicted step time.
    recompute: keep only the stages' inputs and repeat the forward pass (GPipe's re-materialisation).
    wire: 'fp32', or 'bf16' to halve what crosses between stages (no longer exact).
    local_copies: each device keeps its part of the last checkpoint and of the previous step in memory, so
    that a
        rollback moves only what was lost.
    """

    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    recovery: Literal["replan", "wait"] = "replan"
    checkpoint_every: CheckpointEvery = 5
    stages: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto"], Expected("a number of stages (1 or more), or 'auto'")
    ] = "auto"
    recompute: bool = False
    wire: Literal["fp32", "bf16"] = "fp32"
    local_copies: bool = True

    @property
    def kept_versions(self) -> int:
        """The most states of its stage that a device keeps beside the one being trained.

        With local copies: the previous step's, the last checkpoint's, and the one of a checkpoint on its way.
        """
        if self.local_copies:
            return 3 if self.checkpoint_every else 1
        return 1 if self.checkpoint_every else 0


parse_options = PipelineOptions.read
