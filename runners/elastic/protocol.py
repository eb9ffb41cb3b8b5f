"""What coordinator and workers say to each other. See docs/pipeline.md for the protocol.

Control messages go from the server to a device, in order; reports come back, in order. Each names the epoch
that it belongs to, and whoever gets one of another epoch ignores it. Data between stages carries the epoch
in its tag, so what was sent before a loss never matches after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runners.state import StateId

CONTROL = "control"  # server -> device
REPORT = "report"  # device -> server

# kinds of control messages
HALT = "halt"  # stop, and say what you hold
START = "start"  # gather this state for these stages, and train
PAUSE = "pause"  # to the first stage: begin no further step
CHECKPOINTED = "checkpointed"  # the server has this state in full
ABANDONED = "abandoned"  # the server won't get this state in full
COMMIT = "commit"  # lockstep: every member has what the update needs; apply it (checkpoint: and upload a copy)

# kinds of reports
HELLO = "hello"  # a worker's life begins; says what it holds
HELD = "held"  # the answer to HALT
READY = "ready"  # this stage has its state
DONE = "done"  # this stage has finished a step
STUCK = "stuck"  # messages of a neighbour are missing
PAUSED = "paused"  # the answer to PAUSE, when the step under way is done
REDUCED = "reduced"  # lockstep: this member has all that the step's update needs


def activation_tag(epoch: int) -> str:
    return f"activation.{epoch}"


def gradient_tag(epoch: int) -> str:
    return f"gradient.{epoch}"


def reduce_tag(epoch: int, lane: int) -> str:
    return f"reduce.{epoch}.{lane}"


def state_tag(epoch: int) -> str:
    return f"state.{epoch}"


def holdings_to_wire(holdings: Mapping[StateId, Iterable[int]]) -> list[list[Any]]:
    return [[*state, sorted(layers)] for state, layers in sorted(holdings.items())]


def holdings_from_wire(data: list[list[Any]]) -> dict[StateId, set[int]]:
    return {StateId(version, epoch): set(layers) for version, epoch, layers in data}


@dataclass
class Epoch:
    """START, as a device keeps it.

    stages: (device, what it does …) of each member in order (`Assignment.spans`); state: where training goes on;
    sources: of each of this device's layers; gives: (device, layers) that this one has to send; complete,
    uploading: the server's last full checkpoint, and the one under way. paused: the first stage begins no further step.
    """

    number: int
    stages: list[tuple[Any, ...]]
    state: StateId
    sources: dict[int, str]
    gives: list[tuple[str, list[int]]]
    complete: StateId
    uploading: StateId | None
    paused: bool = False

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Epoch:
        return cls(
            number=meta["epoch"],
            stages=[tuple(s) for s in meta["stages"]],
            state=StateId(*meta["state"]),
            sources=dict(map(tuple, meta["sources"])),
            gives=[tuple(g) for g in meta["gives"]],
            complete=StateId(*meta["complete"]),
            uploading=None if meta["uploading"] is None else StateId(*meta["uploading"]),
        )

    def position(self, device: str) -> int | None:
        return next((i for i, stage in enumerate(self.stages) if stage[0] == device), None)


Note = dict[str, Any]  # DONE's fields: step, epoch, stage, began, ended, loss (of the last stage)
