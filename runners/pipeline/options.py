"""The pipeline runner's options: `training.options` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from runners.pipeline.stage import WIRE_DTYPES
from runners.schedules import SCHEDULES
from testbed.errors import InputError, nearest, unknown

WHERE = "training"
RECOVERIES = ("replan", "wait")
_CHOICES = {"schedule": tuple(SCHEDULES), "recovery": RECOVERIES, "wire": tuple(WIRE_DTYPES)}


@dataclass(frozen=True)
class PipelineOptions:
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

    schedule: str = "1f1b"
    recovery: str = "replan"
    checkpoint_every: int = 5
    stages: int | str = "auto"
    recompute: bool = False
    wire: str = "fp32"
    local_copies: bool = True

    @property
    def kept_versions(self) -> int:
        """The most states of its stage that a device keeps beside the one being trained.

        With local copies: the previous step's, the last checkpoint's, and the one of a checkpoint on its way.
        """
        if self.local_copies:
            return 3 if self.checkpoint_every else 1
        return 1 if self.checkpoint_every else 0


def parse_options(options: Mapping[str, Any]) -> PipelineOptions:
    """Options as given, checked.

    Raises:
        InputError: unknown key or impossible value, with key, value, expectation and the nearest right one.
    """
    for key, value in options.items():
        where = check_known(key, PipelineOptions, "pipeline")
        if key in _CHOICES:
            check_choice(where, value, _CHOICES[key])
        elif key == "stages":
            if value != "auto":
                check_whole(where, value, 1, "a number of stages (1 or more), or 'auto'", near="auto")
        elif key == "checkpoint_every":
            check_whole(where, value, 0, "a number of steps (0: no checkpoints)")
        elif not isinstance(value, bool):
            raise InputError(where, f"{value!r}; expected true or false")
    return PipelineOptions(**options)


def check_known(key: str, options: type, runner: str) -> str:
    """Where an option stands, for messages. Raises InputError: the dataclass `options` has no such field."""
    where, known = f"{WHERE}.{key}", [f.name for f in fields(options)]
    if key not in known:
        raise unknown(where, f"option of runner {runner!r}", key, known)
    return where


def check_choice(where: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = nearest(value, choices)
        raise InputError(
            where, f"{value!r}; expected one of: {', '.join(choices)}", hint=f"did you mean {near!r}?" if near else None
        )


def check_whole(where: str, value: Any, least: int, expected: str, near: str | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        hint = f"did you mean {near!r}?" if near and isinstance(value, str) and nearest(value, [near]) else None
        raise InputError(where, f"{value!r}; expected {expected}", hint=hint)
