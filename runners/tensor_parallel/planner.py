"""Who takes how many heads, columns and words, and the predicted step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

from runners.costs import BACKWARD, FLOAT, GRADIENT_BYTES, STATE_BYTES
from runners.data import micro_batch_sizes
from runners.planning.paths import path
from runners.planning.shares import whole_shares
from runners.planning.tcp import IDLE_S
from runners.tensor_parallel.options import TensorParallelOptions
from runners.tensor_parallel.pieces import KINDS, Pieces, Slices, describe
from runners.tensor_parallel.timing import all_reduce_s
from testbed.cluster import Cluster, Device, ModelSpec, TrainingSpec
from testbed.errors import InputError
from testbed.units import size


@dataclass(frozen=True)
class Share:
    """A member's pieces. Bytes and seconds as predicted; seconds of computing a step."""

    device: str
    slices: Slices
    heads: int
    columns: int
    words: int
    memory_bytes: int
    compute_s: float


@dataclass(frozen=True)
class Assignment:
    """Members in order, and what the planner expects of them."""

    shares: tuple[Share, ...]
    units: Mapping[str, tuple[int, ...]]  # device -> units of state
    step_time_s: float
    communication_s: float

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(s.device for s in self.shares)

    @property
    def spans(self) -> tuple[tuple, ...]:
        return tuple((s.device, s.slices.as_data()) for s in self.shares)

    @property
    def layers_by_device(self) -> Mapping[str, tuple[int, ...]]:
        """The units of state on each device."""
        return self.units

    def as_data(self) -> dict[str, Any]:
        """JSON-like; without what follows from the slices."""
        shares = [{**asdict(s), "slices": s.slices.as_data()} for s in self.shares]
        return {"shares": shares, "step_time_s": self.step_time_s, "communication_s": self.communication_s}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], pieces: Pieces) -> Assignment:
        shares = tuple(Share(**{**s, "slices": Slices.from_data(s["slices"])}) for s in data["shares"])
        units = {s.device: tuple(pieces.units_of(s.slices)) for s in shares}
        return cls(shares, units, data["step_time_s"], data["communication_s"])


@dataclass(frozen=True)
class UnitCost:
    state_bytes: int


class Planner:
    """Plans for one model and training job over any subset of devices."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, options: TensorParallelOptions):
        self.model, self.training, self.options = model, training, options
        self.pieces = Pieces(model)
        self.layers = [UnitCost(self.pieces.unit_state_bytes(u)) for u in range(self.pieces.units)]
        self.sizes = micro_batch_sizes(training.batch, training.micro_batches)

    def memory_bytes(self, slices: Slices) -> int:
        """What a member needs: weights, moments, gradients; its part of the last checkpoint and of one on its way;
        activations of a micro-batch, and the sum that is being reduced with what it is reduced from."""
        p, n = self.pieces, max(self.sizes)
        copies = 2 if self.options.checkpoint_every else 0
        state = (GRADIENT_BYTES + STATE_BYTES * (1 + copies)) * p.parameters(slices)
        activations = p.common_activation_bytes + sum(p.count(k, slices) * p.row_activation_bytes[k] for k in KINDS)
        return state + n * (activations + 3 * self._crossing_bytes(1))

    def _crossing_bytes(self, samples: int) -> int:
        """What is reduced after each half of a block."""
        return FLOAT * samples * self.model.sequence * self.model.d_model

    def plan(self, cluster: Cluster) -> Assignment:
        """Pieces by speed within memory over the cluster's devices, in its order.

        Raises:
            InputError: no devices, or memory too small for the model.
        """
        if not cluster.devices:
            raise InputError("cluster", "no devices; expected at least one")
        found = self._assign(cluster, cluster.devices)
        if found is None:
            nothing = Slices((0, 0), (0, 0), (0, 0))
            base = self.memory_bytes(nothing)
            everything = self.memory_bytes(Slices(*((0, self.pieces.counts[k]) for k in KINDS)))
            room = sum(max(0, int(d.memory_bytes) - base) for d in cluster.devices)
            largest = max(cluster.devices, key=lambda d: d.memory_bytes)
            raise InputError(
                "cluster, memory",
                f"the model takes {everything - base:,} bytes ({size(everything - base)}) to share out, beside "
                f"{base:,} bytes ({size(base)}) on each device; but the devices have {room:,} bytes ({size(room)}) "
                f"beside that, the largest ({largest.name}) {int(largest.memory_bytes):,} bytes in all",
                hint="more devices, more micro_batches, or checkpoint_every: 0, which needs no copies",
            )  # fmt: skip
        return found

    def candidates(self, cluster: Cluster, current: Sequence[tuple] = ()) -> list[Assignment]:
        """With everyone who is there; and with those alone who are in already. Empty: the model does not fit."""
        members = {span[0] for span in current}
        groups = [list(cluster.devices), [d for d in cluster.devices if d.name in members]]
        plans = [self._assign(cluster, g) for i, g in enumerate(groups) if g and (i == 0 or len(g) < len(groups[0]))]
        return [plan for plan in plans if plan is not None]

    def _assign(self, cluster: Cluster, devices: Sequence[Device]) -> Assignment | None:
        counts = self._counts(devices)
        if counts is None:
            return None
        ranges = {kind: list(pairwise(accumulate(counts[kind], initial=0))) for kind in KINDS}
        members = [
            (device, Slices(*(ranges[kind][i] for kind in KINDS)))
            for i, device in enumerate(devices) if any(counts[kind][i] for kind in KINDS)
        ]  # fmt: skip
        if any(self.memory_bytes(slices) > device.memory_bytes for device, slices in members):
            return None
        step_s, communication_s = self._step_s(cluster, members)
        shares = tuple(
            Share(device.name, slices, **describe(self.pieces, slices), memory_bytes=self.memory_bytes(slices),
                  compute_s=self._compute_s(device, slices))
            for device, slices in members
        )  # fmt: skip
        units = {s.device: tuple(self.pieces.units_of(s.slices)) for s in shares}
        return Assignment(shares, units, step_s, communication_s)

    def _counts(self, devices: Sequence[Device]) -> dict[str, list[int]] | None:
        """Pieces of each kind on each device; None: they don't fit.

        A device takes at most the fraction of every kind with which its memory is full.
        """
        nothing = self.memory_bytes(Slices((0, 0), (0, 0), (0, 0)))
        whole = self.memory_bytes(Slices(*((0, self.pieces.counts[k]) for k in KINDS))) - nothing
        fraction = [min(1.0, max(0.0, (d.memory_bytes - nothing) / whole)) for d in devices]
        try:
            return {
                kind: whole_shares(n, [d.flops for d in devices], [int(n * x) for x in fraction])
                for kind, n in self.pieces.counts.items()
            }
        except ValueError:
            return None

    def _compute_s(self, device: Device, slices: Slices) -> float:
        step = self.training.batch * self.pieces.step_flops(slices) + self.pieces.update_flops(slices)
        return step / device.flops

    def _step_s(self, cluster: Cluster, members: Sequence[tuple[Device, Slices]]) -> tuple[float, float]:
        """Seconds of a step, and how many of them members wait for each other's sums.

        Members compute a half of a block at their own speed, and all wait for the slowest; then they reduce.
        """
        p, server = self.pieces, cluster.server.link
        links = [path(cluster, device) for device, _ in members]
        slowest = {kind: max(p.forward_flops(kind, s) / d.flops for d, s in members) for kind in KINDS}
        total = communication = 0.0
        for n in self.sizes:
            wide, narrow = self._crossing_bytes(n), FLOAT * n * self.model.sequence
            for kind, halves in (("groups", self.model.layers), ("columns", self.model.layers)):
                for factor in (1, BACKWARD):
                    idle = factor * n * slowest[kind] > IDLE_S
                    reduce = all_reduce_s(links, wide, self.options.all_reduce, idle=idle)
                    communication += halves * reduce
                    total += halves * (factor * n * slowest[kind] + reduce)
            idle = n * slowest["words"] > IDLE_S
            head = sum(all_reduce_s(links, b, self.options.all_reduce, idle=idle) for b in (narrow, 2 * narrow, wide))
            communication += head
            total += (1 + BACKWARD) * n * slowest["words"] + head
        commit = max(
            link.uplink_delay_s + server.downlink_delay_s + server.uplink_delay_s + link.downlink_delay_s
            + p.update_flops(slices) / device.flops
            for link, (device, slices) in zip(links, members)
        )  # fmt: skip
        return total + commit, communication
