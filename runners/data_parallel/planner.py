"""Who computes how many samples of the batch, in how many buckets, and the predicted step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from runners.costs import FLOAT, GRADIENT_BYTES, STATE_BYTES, layer_costs
from runners.data import micro_batch_sizes
from runners.data_parallel.options import DataParallelOptions
from runners.data_parallel.replica import Span
from runners.data_parallel.timing import Member, ps_step_s, ring_step_s
from runners.planning.paths import path
from runners.planning.shares import whole_shares
from testbed.cluster import Cluster, Device, ModelSpec, TrainingSpec
from testbed.errors import InputError
from testbed.units import size

MOST_BUCKETS = 16  # tried with 'auto'


@dataclass(frozen=True)
class Share:
    """Samples [first, end) of each batch on a device. Bytes and seconds as predicted; seconds for all its samples."""

    device: str
    first: int
    end: int
    memory_bytes: int
    compute_s: float

    @property
    def samples(self) -> int:
        return self.end - self.first


@dataclass(frozen=True)
class Assignment:
    """Shares in the order of the devices (of the ring), and what the planner expects of them."""

    shares: tuple[Share, ...]
    buckets: tuple[Span, ...]
    step_time_s: float

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(s.device for s in self.shares)

    @property
    def spans(self) -> tuple[tuple[str, int, int], ...]:
        return tuple((s.device, s.first, s.end) for s in self.shares)

    @property
    def layers_by_device(self) -> dict[str, range]:
        """The layers whose state each device holds: all."""
        return {s.device: range(self.buckets[-1][1]) for s in self.shares}

    def as_data(self) -> dict[str, Any]:
        """JSON-like."""
        return {**asdict(self), "shares": [asdict(s) for s in self.shares], "buckets": [list(b) for b in self.buckets]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Assignment:
        shares = tuple(Share(**s) for s in data["shares"])
        return cls(shares, tuple((a, z) for a, z in data["buckets"]), data["step_time_s"])


def cut_buckets(parameters: Sequence[int], count: int) -> tuple[Span, ...]:
    """Layers in `count` spans (fewer if there are fewer layers) of about the same number of parameters."""
    total, layers = sum(parameters), len(parameters)
    count = min(count, layers)
    spans, first, done = [], 0, 0
    for b in range(count):
        end, goal = first, total * (b + 1) / count
        while end < layers - (count - b - 1) and (end == first or done + parameters[end] / 2 <= goal):
            done += parameters[end]
            end += 1
        spans.append((first, layers if b == count - 1 else end))
        first = end
    return tuple(spans)


class Planner:
    """Plans for one model and training job over any subset of devices."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, options: DataParallelOptions):
        self.model, self.training, self.options = model, training, options
        self.layers = layer_costs(model)
        self.parameters = [c.parameters for c in self.layers]
        self.sample_flops = sum(c.forward_flops + c.backward_flops for c in self.layers)
        self.most_samples = max(micro_batch_sizes(training.batch, training.micro_batches))

    def memory_bytes(self, samples: int) -> int:
        """What a device needs for `samples` of the batch, of which it has one micro-batch in work at a time.

        Parameter server: weights, and the next ones on their way; gradients, and those on theirs. Ring: weights,
        AdamW's moments and a copy of both for a checkpoint or a newcomer; gradients: gathered, on their way, reduced.
        """
        copies = 4 * FLOAT if self.options.reduce == "ps" else 2 * STATE_BYTES + 3 * GRADIENT_BYTES
        at_once = min(samples, self.most_samples)
        activations = sum(c.activation_bytes + c.output_bytes for c in self.layers)
        working = max(c.working_bytes for c in self.layers)
        return copies * sum(self.parameters) + at_once * (activations + working)

    def server_bytes(self, devices: int) -> int:
        """What the server needs: weights, moments, gradients, two versions on their way; a bucket of each device."""
        state = STATE_BYTES + 3 * FLOAT
        return state * sum(self.parameters) + devices * FLOAT * max(self.parameters)

    def usable(self, cluster: Cluster) -> list[Device]:
        """Devices whose memory holds a replica."""
        return [d for d in cluster.devices if self.memory_bytes(1) <= d.memory_bytes]

    def plan(self, cluster: Cluster) -> Assignment:
        """Shares over the cluster's devices, in its order; devices that get no sample are left out.

        Raises:
            InputError: no device, or none with memory enough; a server too small.
        """
        if not cluster.devices:
            raise InputError("cluster", "no devices; expected at least one")
        if not self.usable(cluster):
            largest = max(cluster.devices, key=lambda d: d.memory_bytes)
            needed = self.memory_bytes(1)
            raise InputError(
                f"device {largest.name!r}, memory",
                f"a replica of the model needs {needed:,} bytes ({size(needed)}), but it has "
                f"{int(largest.memory_bytes):,} bytes ({size(largest.memory_bytes)}), the most of all devices",
                hint="data parallelism puts the whole model on each device: try runner: pipeline, tensor_parallel or "
                     "cleave, or more micro_batches",
            )  # fmt: skip
        if self.options.reduce == "ps":
            needed, server = self.server_bytes(len(cluster.devices)), cluster.server
            if needed > server.memory_bytes:
                raise InputError(
                    f"device {server.name!r}, memory",
                    f"a parameter server of this model needs {needed:,} bytes ({size(needed)}), but it has "
                    f"{int(server.memory_bytes):,} bytes ({size(server.memory_bytes)})",
                )
        return self.candidates(cluster)[0]

    def candidates(self, cluster: Cluster, current: Sequence[tuple[str, int, int]] = ()) -> list[Assignment]:
        """With everyone who is there; and with those alone who are in already. Empty: nobody can."""
        members = {name for name, _, _ in current}
        everyone = self.usable(cluster)
        groups = [everyone, [d for d in everyone if d.name in members]]
        return [self.assign(cluster, g) for i, g in enumerate(groups) if g and (i == 0 or len(g) < len(everyone))]

    @cached_property
    def _cuts(self) -> list[tuple[Span, ...]]:
        if self.options.buckets != "auto":
            return [cut_buckets(self.parameters, self.options.buckets)]
        counts = {min(n, len(self.parameters)) for n in (1, 2, 4, 8, MOST_BUCKETS)}
        return [cut_buckets(self.parameters, n) for n in sorted(counts)]

    def assign(self, cluster: Cluster, devices: Sequence[Device]) -> Assignment:
        """Shares of these devices, and the buckets of least predicted step time."""
        samples = self.shares(devices)
        chosen = [(d, n) for d, n in zip(devices, samples) if n]
        times = [(self._step_s(cluster, chosen, cut), cut) for cut in self._cuts]
        step_s, cut = min(times, key=lambda t: t[0])
        shares, first = [], 0
        for device, n in chosen:
            needed, seconds = self.memory_bytes(n), n * self.sample_flops / device.flops
            shares.append(Share(device.name, first, first + n, needed, seconds))
            first += n
        return Assignment(tuple(shares), cut, step_s)

    def shares(self, devices: Sequence[Device]) -> list[int]:
        """Samples of each device, about proportional to speed."""
        return whole_shares(self.training.batch, [d.flops for d in devices])

    def _step_s(self, cluster: Cluster, chosen: Sequence[tuple[Device, int]], cut: Sequence[Span]) -> float:
        server = cluster.server
        spans = [self.layers[first:end] for first, end in cut]
        nbytes = [FLOAT * sum(c.parameters for c in span) for span in spans]
        updates = [sum(c.update_flops for c in span) for span in spans]
        members = []
        for device, n in chosen:
            last = n % self.most_samples or self.most_samples  # samples of the last micro-batch
            backward = [last * sum(c.backward_flops for c in span) / device.flops for span in spans]
            total = n * self.sample_flops / device.flops
            members.append(Member(path(cluster, device), total - sum(backward), tuple(backward), device.flops))
        if self.options.reduce == "ps":
            return ps_step_s(members, server.link, nbytes, [u / server.flops for u in updates])
        return ring_step_s(members, server.link, nbytes, sum(updates))
