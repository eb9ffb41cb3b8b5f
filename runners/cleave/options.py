"""Cleave's options: `training.options` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from runners.cleave.precision import WIRES
from testbed.errors import InputError, nearest, unknown

WHERE = "training"


@dataclass(frozen=True)
class CleaveOptions:
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

    tasks: str = "tiles"
    slab: int | str = "auto"
    wire: str = "fp32"
    local: str = "auto"
    chunks: int | str = "auto"
    cache: bool = True
    prefetch: bool = True
    check: int = 0
    straggler: float = 4.0
    ewma: float = 0.3
    error_feedback: bool = True


_CHOICES = {"tasks": ("tiles", "hybrid", "auto"), "wire": WIRES, "local": ("auto", "never")}


def parse_options(options: Mapping[str, Any]) -> CleaveOptions:
    """Options as given, checked.

    Raises:
        InputError: unknown key or impossible value, with key, value, expectation and the nearest right one.
    """
    known = {f.name: f for f in fields(CleaveOptions)}
    for key, value in options.items():
        where = f"{WHERE}.{key}"
        if key not in known:
            raise unknown(where, "option of runner 'cleave'", key, known)
        if key in _CHOICES:
            if value not in _CHOICES[key]:
                near = nearest(value, _CHOICES[key])
                raise InputError(where, f"{value!r}; expected one of: {', '.join(_CHOICES[key])}",
                                 hint=f"did you mean {near!r}?" if near else None)  # fmt: skip
        elif key == "chunks":
            if value != "auto" and not _whole(value, 1, 64):
                raise InputError(where, f"{value!r}; expected a number of pieces, 1 to 64, or 'auto'")
        elif key == "slab":
            if value != "auto" and not _whole(value, 1, 1 << 20):
                raise InputError(where, f"{value!r}; expected tokens, 1 or more, or 'auto'")
        elif key == "check":
            if not _whole(value, 0, 64):
                raise InputError(where, f"{value!r}; expected rounds of Freivalds' test, 0 (none) to 64")
        elif key == "straggler":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 < value < float("inf"):
                raise InputError(where, f"{value!r}; expected how many times its expected time, above 1")
        elif key == "ewma":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise InputError(where, f"{value!r}; expected a weight, 0 (never learn) to 1")
        elif not isinstance(value, bool):
            raise InputError(where, f"{value!r}; expected true or false")
    found = CleaveOptions(**options)
    if found.check and found.wire == "int8":
        raise InputError(f"{WHERE}.check", "Freivalds' test needs a bound on what rounding does to each number, and "
                                           "int8 has one a block only; expected check: 0, or another wire")  # fmt: skip
    if found.check and found.tasks != "tiles":
        raise InputError(f"{WHERE}.check", f"Freivalds' test is of single products, and tasks is {found.tasks!r}; "
                                           "expected check: 0, or tasks: tiles")  # fmt: skip
    return found


def _whole(value: Any, least: int, most: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, int) and least <= value <= most
