"""What fits into one device's memory, and how long a step takes there.

Offloading follows ZeRO-Offload (Ren et al. 2021, section 4): with the optimizer at the host, gradients go out and
updated weights come back once a step, and the host updates at the pace of its memory. When the weights do not fit
either, they are streamed layer by layer, in for the forward pass, in again and gradients out for the backward pass of
every micro-batch (ZeRO-Infinity: Rajbhandari et al. 2021, section 5), each layer overlapping with the one before, so
that a layer takes the longer of its computing and its transfer. Values cross in 16 bits, as they do there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runners.costs import ADAMW_TRAFFIC_BYTES, GRADIENT_BYTES, STATE_BYTES, LayerCost, layer_costs
from runners.single.options import SingleOptions
from testbed.cluster import Device, ModelSpec, TrainingSpec
from testbed.errors import InputError
from testbed.units import size

CROSSING_BYTES = 2  # of a weight or gradient between device and host
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Way:
    """One way to train on a device. times in seconds; micro_batch_s: forward and backward of one."""

    device: str
    offload: str
    recompute: bool
    micro_batches: int
    memory_bytes: int
    micro_batch_s: float
    update_s: float

    @property
    def step_time_s(self) -> float:
        return self.micro_batches * self.micro_batch_s + self.update_s


def best_way(device: Device, model: ModelSpec, training: TrainingSpec, options: SingleOptions) -> Way:
    """The quickest way that fits the device's memory.

    Raises:
        InputError: none does, with the bytes of the one that needs least.
    """
    ways = list(_ways(device, model, training, options))
    fitting = [w for w in ways if w.memory_bytes <= device.memory_bytes]
    if not fitting:
        least = min(w.memory_bytes for w in ways)
        raise InputError(
            f"device {device.name!r}, memory",
            f"one device needs {least:,} bytes ({size(least)}) even with offload: {ways[-1].offload}, but it has "
            f"{int(device.memory_bytes):,} bytes ({size(device.memory_bytes)})",
            hint="a smaller model, or a device with more memory",
        )
    return min(fitting, key=lambda w: (w.step_time_s, w.memory_bytes))


def _ways(device: Device, model: ModelSpec, training: TrainingSpec, options: SingleOptions) -> Iterator[Way]:
    layers = layer_costs(model)
    offloads = ("none", "optimizer", "weights") if options.offload == "auto" else (options.offload,)
    recomputes = (False, True) if options.recompute == "auto" else (bool(options.recompute),)
    for offload in offloads:
        for recompute in recomputes:
            for samples in (n for n in range(training.batch, 0, -1) if training.batch % n == 0):
                yield Way(
                    device.name, offload, recompute, training.batch // samples,
                    _memory_bytes(layers, offload, recompute, samples),
                    sum(_layer_s(c, device, offload, recompute, samples, options) for c in layers),
                    _update_s(layers, device, offload, options),
                )  # fmt: skip


def _memory_bytes(layers: tuple[LayerCost, ...], offload: str, recompute: bool, samples: int) -> int:
    parameters = sum(c.parameters for c in layers)
    if offload == "none":
        state = parameters * (STATE_BYTES + GRADIENT_BYTES)
    elif offload == "optimizer":
        state = parameters * (WEIGHT_BYTES + GRADIENT_BYTES)
    else:  # the layer at work, and the next one on its way
        state = 2 * max(c.parameters for c in layers) * (WEIGHT_BYTES + GRADIENT_BYTES)
    if recompute:
        activations = sum(c.output_bytes for c in layers) + max(c.activation_bytes for c in layers)
    else:
        activations = sum(c.activation_bytes for c in layers)
    return state + samples * (activations + max(c.working_bytes for c in layers))


def _layer_s(c: LayerCost, device: Device, offload: str, recompute: bool, samples: int, o: SingleOptions) -> float:
    passes = c.forward_flops, c.backward_flops + (c.forward_flops if recompute else 0.0)
    if offload != "weights":
        return samples * sum(passes) / device.flops
    moved = CROSSING_BYTES * c.parameters * 8 / o.host_link  # each direction of the link by itself
    return sum(max(samples * flops / device.flops, moved) for flops in passes)


def _update_s(layers: tuple[LayerCost, ...], device: Device, offload: str, o: SingleOptions) -> float:
    if offload == "none":
        return sum(c.update_flops for c in layers) / device.flops
    parameters = sum(c.parameters for c in layers)
    at_host = parameters * ADAMW_TRAFFIC_BYTES * 8 / o.host_memory
    if offload == "weights":  # gradients are there already, and weights leave with the next passes
        return at_host
    return max(at_host, CROSSING_BYTES * parameters * 8 / o.host_link)  # streamed bucket by bucket
