"""From cluster, model and options to stages on devices, with the predicted step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, permutations
from typing import Any

from runners.costs import FLOAT, GRADIENT_BYTES, STATE_BYTES, LayerCost, layer_costs
from runners.data import BYTES, micro_batch_sizes
from runners.pipeline.options import PipelineOptions
from runners.planning.partition import Chain, Partition, Search, Worker
from runners.planning.paths import connection_bps, path
from runners.schedules import SCHEDULES, Hop, StageTimes, Timing, in_flight_bound, time_step
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.errors import InputError, unknown
from testbed.units import size

PROMISING = 8  # numbers of stages for which the cut of least latency is looked for too: it takes a search each
MOST_REPAIRS = 64  # ways to put spares in the places of lost devices that are looked at


@dataclass(frozen=True)
class StagePlan:
    """A stage on a device: layers [first, end). Bytes and seconds as predicted, the latter a micro-batch."""

    device: str
    first: int
    end: int
    layers: str  # for people
    memory_bytes: int
    parameters: int
    forward_s: float
    backward_s: float
    output_bytes: int  # to the next stage, per micro-batch; 0 on the last


@dataclass(frozen=True)
class Assignment:
    """Stages in order, and what the planner expects of them."""

    stages: tuple[StagePlan, ...]
    step_time_s: float
    bubble_fraction: float

    @property
    def spans(self) -> tuple[tuple[str, int, int], ...]:
        """(device, first, end) of each stage."""
        return tuple((s.device, s.first, s.end) for s in self.stages)

    @property
    def layers_by_device(self) -> dict[str, range]:
        return {s.device: range(s.first, s.end) for s in self.stages}

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(s.device for s in self.stages)

    def as_data(self) -> dict[str, Any]:
        """JSON-like."""
        return {**asdict(self), "stages": [asdict(s) for s in self.stages]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Assignment:
        return cls(**{**data, "stages": tuple(StagePlan(**s) for s in data["stages"])})


class Planner:
    """Plans for one model and training job over any subset of devices."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, options: PipelineOptions):
        self.model, self.training, self.options = model, training, options
        self.layers = layer_costs(model)
        self.samples = max(micro_batch_sizes(training.batch, training.micro_batches))
        self._memory: dict[tuple[int, int, int], int] = {}
        self.wire = 2 if options.wire == "bf16" else FLOAT

    def output_bytes(self, layer: int) -> int:
        """What crosses after a layer, per micro-batch and direction."""
        return self.samples * self.layers[layer].output_bytes * self.wire // FLOAT

    def memory_bytes(self, first: int, end: int, from_end: int) -> int:
        """Memory that layers [first, end) need on the stage that is `from_end`-th from the end (last: 1).

        Weights, gradients, AdamW moments and kept versions; activations of the micro-batches in flight
        (with recomputation only their inputs, and the activations of one); the working space of the
        largest layer; one message from each neighbour that arrived early.
        """
        held = in_flight_bound(self.options.schedule, from_end, self.training.micro_batches)
        if (first, end, held) not in self._memory:
            self._memory[first, end, held] = self._memory_bytes(first, end, held)
        return self._memory[first, end, held]

    def _memory_bytes(self, first: int, end: int, held: int) -> int:
        span = self.layers[first:end]
        parameters = sum(c.parameters for c in span)
        fixed = parameters * (GRADIENT_BYTES + STATE_BYTES * (1 + self.options.kept_versions))
        entering = self.layers[first - 1].output_bytes if first else self.layers[0].activation_bytes
        leaving = span[-1].output_bytes
        passing = sum(c.activation_bytes for c in span) + leaving
        activations = held * entering + passing if self.options.recompute else held * passing
        working = max(c.working_bytes for c in span)
        early = (entering if first else 0) + leaving
        return fixed + self.samples * (activations + working + early)

    def plan(self, cluster: Cluster) -> Assignment:
        """The stages of least predicted step time over the cluster's devices, in the cluster's order.

        Raises:
            InputError: more stages than layers or devices, or no way to fit the memory.
        """
        wanted = self.options.stages
        if not cluster.devices:
            raise InputError("cluster", "no devices; expected at least one")
        if wanted != "auto":
            for limit, what in ((self.model.layers, "layers"), (len(cluster.devices), "devices")):
                if wanted > limit:
                    raise InputError("training.stages", f"{wanted} stages, but only {limit} {what}; "
                                     f"expected at most {limit}, or 'auto'")  # fmt: skip
        search, workers = self._search(cluster)
        counts = list(search.best) if wanted == "auto" else [wanted]
        plans = self._quickest(search, workers, counts)
        if not plans:
            raise self._too_small(search, workers, search.deepest if wanted == "auto" else wanted)
        return plans[0]

    def candidates(self, cluster: Cluster, current: Sequence[tuple[str, int, int]] = ()) -> list[Assignment]:
        """Plans for those who are there: the quickest for each number of stages, and repairs.

        The quickest may move much state and a repair of the current stages little; who has to move it can
        weigh both. A fixed number of stages gives way when there are too few devices. Empty: nothing fits.

        Args:
            current: (device, first, end) of the stages up to now; devices may be gone.
        """
        if not cluster.devices:
            return []
        search, workers = self._search(cluster)
        counts = list(search.best) if self.options.stages == "auto" else [max(search.best, default=0)]
        plans = self._quickest(search, workers, counts)
        return plans + self._repairs({w.name: w for w in workers}, current)

    def _repairs(self, workers: Mapping[str, Worker], current: Sequence[tuple[str, int, int]]) -> list[Assignment]:
        """The current stages, with spares for lost devices, or a lost stage shared by its neighbours."""
        used = {device for device, _, _ in current}
        lost = [i for i, (device, _, _) in enumerate(current) if device not in workers]
        spares = [name for name in workers if name not in used]
        found: list[list[tuple[str, int, int]]] = []
        for substitutes in islice(permutations(spares, len(lost)), MOST_REPAIRS if current else 0):
            places = dict(zip(lost, substitutes))
            found.append([(places.get(i, device), f, e) for i, (device, f, e) in enumerate(current)])
        shrinks = self.options.stages == "auto" or len(workers) < self.options.stages
        if len(lost) == 1 and len(current) > 1 and shrinks:
            gone = lost[0]
            _, first, end = current[gone]
            before, after = list(current[:gone]), list(current[gone + 1 :])
            for cut in [first] if not before else [end] if not after else range(first, end + 1):
                left = [*before[:-1], (before[-1][0], before[-1][1], cut)] if before else []
                right = [(after[0][0], cut, after[0][2]), *after[1:]] if after else []
                found.append(left + right)
        return [
            self._assign([workers[device] for device, _, _ in stages], [(f, e) for _, f, e in stages])
            for stages in found
            if all(
                self.memory_bytes(f, e, len(stages) - i) <= workers[device].memory_bytes
                for i, (device, f, e) in enumerate(stages)
            )
        ]

    def _quickest(self, search: Search, workers: list[Worker], counts: list[int]) -> list[Assignment]:
        """Plans for each number of stages that fits, the quickest first."""

        def assign(partition: Partition) -> Assignment:
            return self._assign([workers[i] for i in partition.workers], self._spans(partition))

        plans = sorted((assign(search.best[k]) for k in counts if k in search.best), key=_step_time)
        again = [assign(search.quickest(len(plan.stages))) for plan in plans[:PROMISING]]
        return sorted(plans + again, key=_step_time)

    def _search(self, cluster: Cluster) -> tuple[Search, list[Worker]]:
        workers = _workers(cluster)
        blocks = range(self.model.layers)
        chain = Chain(
            flops=[
                self.samples * sum(self.sample_flops(c) for c in self.layers[slice(*self._span(u, u + 1))])
                for u in blocks
            ],
            boundary_bytes=[self.output_bytes(u + 1) for u in blocks],
            memory_bytes=lambda first, end, from_end: self.memory_bytes(*self._span(first, end), from_end),
        )
        most = None if self.options.stages == "auto" else self.options.stages
        return Search(chain, workers, most), workers

    def _span(self, first: int, end: int) -> tuple[int, int]:
        """Layers of a stage of blocks [first, end): the embedding is with the first, the head with the last.

        A stage of the embedding alone would cost a crossing and compute nothing.
        """
        last = self.model.layers
        return first + 1 if first else 0, end + 1 if end < last else end + 2

    def _spans(self, partition: Partition) -> list[tuple[int, int]]:
        return [self._span(*span) for span in partition.spans]

    def sample_flops(self, cost: LayerCost) -> float:
        """FLOPs of a layer for one sample, recomputation included."""
        return cost.backward_flops + cost.forward_flops * (2 if self.options.recompute else 1)

    def _assign(self, chosen: Sequence[Worker], spans: Sequence[tuple[int, int]]) -> Assignment:
        """Stages on those devices, in that order, with what to expect of them."""
        count = len(chosen)
        stages = []
        for p, (worker, (first, end)) in enumerate(zip(chosen, spans)):
            span = self.layers[first:end]
            forward = self.samples * sum(c.forward_flops for c in span) / worker.flops
            backward = self.samples * sum(c.backward_flops for c in span) / worker.flops
            stages.append(StagePlan(
                device=worker.name, first=first, end=end,
                layers=_span_name(span),
                memory_bytes=self.memory_bytes(first, end, count - p),
                parameters=sum(c.parameters for c in span),
                forward_s=forward, backward_s=backward,
                output_bytes=self.output_bytes(end - 1) if p < count - 1 else 0,
            ))  # fmt: skip
        timing = self._time(chosen, stages)
        return Assignment(tuple(stages), timing.makespan, timing.bubble_fraction)

    def timing(self, cluster: Cluster, assignment: Assignment) -> Timing:
        """What happens when in one step."""
        workers = {w.name: w for w in _workers(cluster)}
        return self._time([workers[name] for name in assignment.devices], assignment.stages)

    def _time(self, chosen: Sequence[Worker], stages: Sequence[StagePlan]) -> Timing:
        count, times = len(stages), []
        for s, worker in zip(stages, chosen):
            update = sum(c.update_flops for c in self.layers[s.first : s.end]) / worker.flops
            times.append(StageTimes(s.forward_s, s.backward_s, update, s.forward_s if self.options.recompute else 0.0))
        make = SCHEDULES[self.options.schedule]
        programs = [make(p, count, self.training.micro_batches, self.options.recompute) for p in range(count)]
        crossing = [s.output_bytes for s in stages[:-1]]
        forward_hops = [_hop(n, a, b) for n, a, b in zip(crossing, chosen, chosen[1:])]
        backward_hops = [_hop(n, b, a) for n, a, b in zip(crossing, chosen, chosen[1:])]
        return time_step(programs, times, forward_hops, backward_hops)

    def _too_small(self, search: Search, workers: list[Worker], stages: int) -> InputError:
        """The memory error for the split that comes closest to fitting."""
        partition, tight = search.tightest(stages)
        worker = workers[partition.workers[tight]]
        first, end = self._spans(partition)[tight]
        needed = self.memory_bytes(first, end, stages - tight)
        names = _span_name(self.layers[first:end])
        return InputError(
            f"device {worker.name!r}, memory",
            f"its stage needs {needed:,} bytes ({size(needed)}), but it has {int(worker.memory_bytes):,} "
            f"bytes ({size(worker.memory_bytes)}): stage {tight + 1} of {stages} ({names}) of the best split",
            hint="try more micro_batches, options recompute: true or local_copies: false, or more devices",
        )  # fmt: skip


def _span_name(span: Sequence[LayerCost]) -> str:
    return span[0].name if len(span) == 1 else f"{span[0].name} … {span[-1].name}"


def _workers(cluster: Cluster) -> list[Worker]:
    return [Worker(d.name, d.flops, d.memory_bytes, path(cluster, d)) for d in cluster.devices]


def _step_time(assignment: Assignment) -> float:
    return assignment.step_time_s


def _hop(nbytes: float, sender: Worker, receiver: Worker) -> Hop:
    return Hop(
        8 * nbytes / connection_bps(sender.link, receiver.link),
        sender.link.uplink_delay_s + receiver.link.downlink_delay_s,
    )


def check_job(model: ModelSpec, training: TrainingSpec) -> None:
    """Settings that can't work whatever the cluster.

    Raises:
        InputError: with key, value, expectation.
    """
    for key, value in (("layers", model.layers), ("d_model", model.d_model), ("heads", model.heads),
                       ("d_ff", model.d_ff), ("sequence", model.sequence)):  # fmt: skip
        if value < 1:
            raise InputError(f"model.{key}", f"{value}; expected 1 or more")
    if model.d_model % model.heads:
        raise InputError("model.heads", f"{model.heads} heads do not divide d_model = {model.d_model}; "
                         f"expected a divisor of {model.d_model}")  # fmt: skip
    if model.vocabulary < BYTES:
        raise InputError("model.vocabulary", f"{model.vocabulary}; expected {BYTES} or more (the text is bytes)")
    for key, value in (("batch", training.batch), ("micro_batches", training.micro_batches), ("steps", training.steps)):
        if value < 1:
            raise InputError(f"training.{key}", f"{value}; expected 1 or more")
    if training.micro_batches > training.batch:
        raise InputError("training.micro_batches", f"{training.micro_batches} micro-batches of a batch of "
                         f"{training.batch}; expected at most {training.batch}")  # fmt: skip
    if training.optimizer.name != "adamw":
        raise unknown("training.optimizer.name", "optimizer", training.optimizer.name, ["adamw"])
