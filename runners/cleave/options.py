"""Cleave's options: `training.options` of an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from runners.options import Expected, Options


class CleaveOptions(Options):
    """Options with their defaults.

    tasks: 'tiles': blocks of single matrix products (our reconstruction of the paper's abstract); 'hybrid' (ours):
        weights of some layers stay at a device for the step and slabs of tokens pass through; 'auto': the quicker of
        both, as predicted.
    slab: tokens of one sample that go through a device at a time, with hybrid tasks; 'auto': as is quickest.
    wire: what numbers cross the links as: 'fp32' (exact), 'bf16', 'fp16', or 'int8' with a scale a block.
    local: 'auto': the server computes a product itself where that is quicker; 'never': every product goes out.
    chunks: pieces that a device's block is streamed in, at most; 'auto' for what the cost model finds best.
    cache: devices keep blocks that will be needed again. prefetch: the next product's weights are sent ahead.
    check: rounds of Freivalds' test of every block (0: none); a wrong one passes with probability 2^-check at most.
    straggler: a task that takes this many times its expected time goes to other devices as well.
    ewma: weight of a step's measured rates against those known before.
    error_feedback: with int8, a device adds what rounding took from a weight's gradient to the next one.
    """

    tasks: Literal["tiles", "hybrid", "auto"] = "tiles"
    slab: Annotated[
        Annotated[int, Field(ge=1, le=1 << 20)] | Literal["auto"], Expected("tokens, 1 or more, or 'auto'")
    ] = "auto"
    wire: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    local: Literal["auto", "never"] = "auto"
    chunks: Annotated[
        Annotated[int, Field(ge=1, le=64)] | Literal["auto"], Expected("a number of pieces, 1 to 64, or 'auto'")
    ] = "auto"
    cache: bool = True
    prefetch: bool = True
    check: Annotated[int, Field(ge=0, le=64), Expected("rounds of Freivalds' test, 0 (none) to 64")] = 0
    straggler: Annotated[
        float, Field(gt=1, allow_inf_nan=False), Expected("how many times its expected time, above 1")
    ] = 4.0
    ewma: Annotated[float, Field(ge=0, le=1), Expected("a weight, 0 (never learn) to 1")] = 0.3
    error_feedback: bool = True

    @field_validator("check")
    @classmethod
    def _can_be_checked(cls, check: int, others: ValidationInfo) -> int:
        if check and others.data.get("wire") == "int8":
            raise ValueError(
                "Freivalds' test needs a bound on what rounding does to each number, and int8 has one a block only; "
                "expected check: 0, or another wire"
            )
        if check and (tasks := others.data.get("tasks", "tiles")) != "tiles":
            raise ValueError(
                f"Freivalds' test is of single products, and tasks is {tasks!r}; expected check: 0, or tasks: tiles"
            )
        return check


parse_options = CleaveOptions.read
