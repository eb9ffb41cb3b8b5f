"""Pipeline schedules as instruction lists, which the worker executes and the planner times.

GPipe: all forwards, all backwards, flush (Huang et al. 2019, section 2). 1F1B with flush:
PipeDream-Flush (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.2),
the default schedule of Megatron-LM: stage p of P starts with P-p-1 forwards, then alternates. Both update
once a step, after the flush, so they compute the same as one device; with even stages and free links both
idle for (P-1)/(M+P-1) of the time. They differ in the micro-batches whose activations a stage holds: M
with GPipe, at most P-p with 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate


class Op(str, Enum):
    RECV_ACTIVATION = "recv_activation"
    FORWARD = "forward"
    SEND_ACTIVATION = "send_activation"
    RECV_GRADIENT = "recv_gradient"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    SEND_GRADIENT = "send_gradient"
    UPDATE = "update"


@dataclass(frozen=True)
class Instruction:
    op: Op
    micro_batch: int = -1  # -1 where it does not apply


def _forward(m: int, stage: int, stages: int) -> list[Instruction]:
    ops = [Op.FORWARD]
    if stage > 0:
        ops.insert(0, Op.RECV_ACTIVATION)
    if stage < stages - 1:
        ops.append(Op.SEND_ACTIVATION)
    return [Instruction(op, m) for op in ops]


def _backward(m: int, stage: int, stages: int, recompute: bool) -> list[Instruction]:
    ops = [Op.BACKWARD]
    if recompute:  # before the gradient is waited for, so that it runs while the stage would idle
        ops.insert(0, Op.RECOMPUTE)
    if stage < stages - 1:
        ops.insert(len(ops) - 1, Op.RECV_GRADIENT)
    if stage > 0:
        ops.append(Op.SEND_GRADIENT)
    return [Instruction(op, m) for op in ops]


def gpipe(stage: int, stages: int, micro_batches: int, recompute: bool = False) -> list[Instruction]:
    """One step of GPipe on one stage."""
    program = [i for m in range(micro_batches) for i in _forward(m, stage, stages)]
    program += [i for m in range(micro_batches) for i in _backward(m, stage, stages, recompute)]
    return [*program, Instruction(Op.UPDATE)]


def one_f_one_b(stage: int, stages: int, micro_batches: int, recompute: bool = False) -> list[Instruction]:
    """One step of 1F1B with flush on one stage."""
    warm_up = min(micro_batches, stages - stage - 1)
    program = [i for m in range(warm_up) for i in _forward(m, stage, stages)]
    for m in range(warm_up, micro_batches):
        program += _forward(m, stage, stages)
        program += _backward(m - warm_up, stage, stages, recompute)
    for m in range(micro_batches - warm_up, micro_batches):
        program += _backward(m, stage, stages, recompute)
    return [*program, Instruction(Op.UPDATE)]


SCHEDULES: dict[str, Callable[..., list[Instruction]]] = {"1f1b": one_f_one_b, "gpipe": gpipe}


def in_flight_bound(schedule: str, from_end: int, micro_batches: int) -> int:
    """The most micro-batches that a stage holds between forward and backward.

    from_end: stages from this one to the last, both counted (the last stage: 1), that is P-p.
    """
    return micro_batches if schedule == "gpipe" else min(micro_batches, from_end)


def peak_in_flight(program: Sequence[Instruction]) -> int:
    """The same, counted from a program."""
    held = peak = 0
    for instruction in program:
        held += (instruction.op is Op.FORWARD) - (instruction.op is Op.BACKWARD)
        peak = max(peak, held)
    return peak


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one stage's work: per micro-batch, but `update` once a step."""

    forward: float
    backward: float
    update: float = 0.0
    recompute: float = 0.0


@dataclass(frozen=True)
class Hop:
    """One direction of a boundary: a message holds the sender's uplink `occupy` s, then takes `delay` s."""

    occupy: float = 0.0
    delay: float = 0.0


@dataclass(frozen=True)
class Timing:
    """makespan: of one step [s]. busy: compute seconds of each stage. computing: each one's start, end and stage."""

    makespan: float
    busy: tuple[float, ...]
    computing: tuple[tuple[float, float, int], ...] = ()

    @property
    def bubble_fraction(self) -> float:
        """Share of the stages' time in which they do not compute."""
        total = self.makespan * len(self.busy)
        return 1.0 - sum(self.busy) / total if total else 0.0

    def most_at_once(self, weights: Sequence[float]) -> float:
        """The largest sum of the weights (one a stage) of stages that compute at the same time."""
        changes = [(start, weights[p]) for start, _, p in self.computing]
        changes += [(end, -weights[p]) for _, end, p in self.computing]
        return max(accumulate(change for _, change in sorted(changes)), default=0.0)


def time_step(
    programs: Sequence[Sequence[Instruction]],
    times: Sequence[StageTimes],
    forward_hops: Sequence[Hop] = (),
    backward_hops: Sequence[Hop] = (),
) -> Timing:
    """When one step ends, if each stage executes its program in order and sends run beside compute.

    A stage's messages leave its uplink one after the other. The receivers' downlinks are taken as free.

    Args:
        programs: of each stage. times: of each stage.
        forward_hops: from stage p to p+1; backward_hops: from stage p+1 to p; P-1 of each, none: free links.

    Raises:
        ValueError: the programs wait for each other for ever.
    """
    stages = len(programs)
    forward_hops = forward_hops or [Hop()] * (stages - 1)
    backward_hops = backward_hops or [Hop()] * (stages - 1)
    position, clock, busy, uplink = [0] * stages, [0.0] * stages, [0.0] * stages, [0.0] * stages
    arrivals: dict[tuple[Op, int, int], float] = {}  # (receiving op, stage, micro-batch) -> seconds
    computing: list[tuple[float, float, int]] = []
    moved = True
    while moved:
        moved = False
        for p in range(stages):
            while position[p] < len(programs[p]):
                instruction = programs[p][position[p]]
                op, m = instruction.op, instruction.micro_batch
                if op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
                    at = arrivals.get((op, p, m))
                    if at is None:
                        break
                    clock[p] = max(clock[p], at)
                elif op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT):
                    ahead = op is Op.SEND_ACTIVATION
                    hop = forward_hops[p] if ahead else backward_hops[p - 1]
                    uplink[p] = max(uplink[p], clock[p]) + hop.occupy
                    key = (Op.RECV_ACTIVATION, p + 1, m) if ahead else (Op.RECV_GRADIENT, p - 1, m)
                    arrivals[key] = uplink[p] + hop.delay
                else:
                    seconds = getattr(times[p], op.value)
                    computing.append((clock[p], clock[p] + seconds, p))
                    clock[p] += seconds
                    busy[p] += seconds
                position[p] += 1
                moved = True
    for p in range(stages):
        if position[p] < len(programs[p]):
            raise ValueError(f"stage {p} waits for ever at {programs[p][position[p]]}")
    return Timing(max(clock), tuple(busy), tuple(computing))
