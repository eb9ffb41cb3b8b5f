"""Can this machine carry the experiment? Told before the start, with the smallest time dilation that would.

What an emulated second demands (computation, messages, packets, heartbeats) is turned into core-seconds with
costs measured on this machine; with a time dilation factor of T it may take T real seconds. The estimate is
made to be good enough to choose T by; the verdict rests on what is measured while the run goes on.

A runner says what a step demands in `plan.data['load']`: {'flops', 'messages', 'bytes'} of one step of 'step_s';
'peak_flops', the FLOP/s of the devices that compute at the same time at the busiest moment, and 'peak_traffic', how
much denser messages are then than over the step; 'update_bps', the bytes/s of memory that an update of the fastest
device takes as given; 'samples' of one computation, where it is not a micro-batch. Of a runner that does not, the
worst is assumed: all devices computing all the time, the server's link full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from testbed import units
from testbed.emulation.calibration import PacketCost, WorkShape, compute_capacity, others_busy, packet_cost
from testbed.emulation.machine.capabilities import Capabilities
from testbed.experiment.setup import RunSetup
from testbed.measurement.host_monitor import memory
from testbed.scenario.link_model import GOODPUT_BYTES

USABLE = 0.45  # of the cores: what computes at once must not wait, and the kernel and the monitors need some
# Of the cores at the busiest moment, where devices are known to compute at the same time: pipelines overran by 0.2 % of
# paced time at most when they then kept 73 % of them busy, by 1 to 2 % at 82 to 92 %, by 3 to 19 % from 105 % on.
BUSIEST_USABLE = 0.7
PEAK_USABLE = 0.8  # of the cores, and of the delay line's, for as long as one link is full
DELAY_LINE_USABLE = 0.5  # of its one core: beyond, packets wait for it
ENGINE_CORES = 0.06  # for monitors, recording and display, whatever the time dilation
# Core-seconds that a message takes in all: serialization, sending, receiving, asyncio at both ends, the hand-over to
# the thread that computes, and six events recorded. The more processes take turns, the colder are their caches:
# Cleave's messages took 3, 4.3, 4.7 and 7.7 ms at 4, 8, 16 and 32 homes.
MESSAGE_S, MESSAGE_DOUBLES_WORKERS, MOST_MESSAGE_S = 2.5e-3, 16, 10e-3
UPDATE_BPS = 6e9  # of memory, by a core: updates of 88 MB took 8 to 14 ms where other stages' data fill the caches
HEARTBEAT_S = 0.25e-3  # the same for a device's heartbeat and its echo
HEARTBEATS_PER_S = 5.0
ACKS = 0.5  # acknowledgements per data packet
WORKER_BYTES = 24e6  # of a forked worker, beside what its plan says
ENGINE_BYTES = 600e6  # engine and fork server, with torch
TYPICAL_PACKET = PacketCost(45e-6, 15e-6)  # taken where few packets are asked for, or others keep the machine busy
WORTH_MEASURING_S = 0.05  # core-seconds an emulated second
_PEAKS = ("peak_flops", "peak_traffic", "update_bps")
BUSY = 0.5  # of the cores: with more taken by other programs, nothing can be promised
TDF_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)  # and tens of them: a round number is kept in mind


@dataclass(frozen=True)
class Demand:
    """What one emulated second of training asks for, on average over a step.

    flops: FLOP/s of all devices together. fastest: FLOP/s of the fastest of them. peak_packets: a second,
    of the fastest link while it is full one way. declared: by the runner
    (else: the worst that could be). peak_flops: FLOP/s at the busiest moment; 0: not known. peak_traffic: messages and
    packets then, times the average. update_bps: bytes/s of memory of the fastest device's updates; 0: not known.
    """

    flops: float
    fastest: float
    messages: float
    packets: float
    peak_packets: float
    workers: int
    memory_bytes: float
    declared: bool
    peak_flops: float = 0.0
    peak_traffic: float = 1.0
    update_bps: float = 0.0


@dataclass(frozen=True)
class Capacity:
    """What this machine has: FLOP/s by core (all busy), costs of a packet [s], free memory [bytes].

    others: cores that other programs keep busy.
    """

    core_flops: tuple[float, ...]
    packet: PacketCost
    memory_bytes: float
    others: float = 0.0


@dataclass(frozen=True)
class Preflight:
    """The comparison. needed_tdf: the smallest of TDF_STEPS that fits. cores: core-seconds an emulated second.

    problems: sentences on what does not fit at the experiment's own TDF; empty when all does.
    """

    tdf: float
    needed_tdf: float
    demand: Demand
    capacity: Capacity
    cores: dict[str, float]
    problems: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {**asdict(self), "fits": self.fits}

    def lines(self) -> list[str]:
        """For people: what is needed beside what there is."""
        d, c = self.demand, self.capacity
        how = "by the runner's plan" if d.declared else "at most: the runner's plan does not say"
        parts = ", ".join(f"{name} {value:.2g}" for name, value in self.cores.items())
        return [
            f"demand of an emulated second ({how}): {units.speed(d.flops)} by {d.workers} devices, "
            f"{d.messages:,.0f} messages, {d.packets:,.0f} packets, {units.size(d.memory_bytes)} of memory",
            f"this machine: {units.speed(sum(c.core_flops))} on {len(c.core_flops)} cores at this model's shapes, "
            f"{1e6 * c.packet.machine_s:.0f} us a packet, {units.size(c.memory_bytes)} free; others keep "
            f"{c.others:.2g} cores busy",
            f"core-seconds an emulated second: {parts}; together {sum(self.cores.values()):.2f} of "
            f"{usable_cores(c):.2f}: time dilation {self.needed_tdf:g}",
        ]


def usable_cores(capacity: Capacity) -> float:
    """Cores that training may keep busy; a quarter of them when others take nearly everything."""
    cores = len(capacity.core_flops)
    return max(0.25 * cores, USABLE * (cores - capacity.others) - ENGINE_CORES)


def demand_of(setup: RunSetup) -> Demand:
    """What the plan asks for; pure."""
    plan, cluster = setup.plan, setup.cluster
    spares = set(plan.data.get("spares") or ())
    working = [d for d in cluster.devices if d.name not in spares] or list(cluster.devices)
    load = plan.data.get("load")
    server = cluster.server.link
    peak = max(
        max(min(server.uplink_bps, d.link.downlink_bps), min(server.downlink_bps, d.link.uplink_bps)) for d in working
    )
    declared = isinstance(load, Mapping) and _positive(load.get("step_s"))
    peaks: dict[str, float] = {}
    if declared:
        peaks = {key: float(load[key]) for key in _PEAKS if _positive(load.get(key))}
        step_s = float(load["step_s"])
        flops, messages, sent = (float(load.get(key) or 0.0) / step_s for key in ("flops", "messages", "bytes"))
    else:
        flops, messages = sum(d.flops for d in working), 0.0
        up, down = (sum(getattr(d.link, f"{way}link_bps") for d in working) for way in ("up", "down"))
        sent = (min(server.uplink_bps, down) + min(server.downlink_bps, up)) / 8
    stages = plan.data.get("memory_bytes")
    held = sum(float(b) for b in stages.values()) if isinstance(stages, Mapping) else 0.0
    return Demand(
        flops=flops,
        fastest=max(d.flops for d in working),
        messages=messages,
        packets=(1 + ACKS) * sent / GOODPUT_BYTES,
        peak_packets=(1 + ACKS) * peak / 8 / GOODPUT_BYTES,
        workers=len(cluster.devices),
        memory_bytes=ENGINE_BYTES + held + WORKER_BYTES * (len(cluster.devices) + 1),
        declared=declared,
        **peaks,
    )


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def measure(setup: RunSetup, caps: Capabilities) -> Capacity:
    """Calibrate: a second or two of computing, and of traffic through a network of its own. Needs root."""
    model, training = setup.plan.model, setup.plan.training
    load = setup.plan.data.get("load")
    samples = load.get("samples") if isinstance(load, Mapping) else None
    samples = int(samples or max(1, training.batch // training.micro_batches))
    shape = WorkShape(samples, model.sequence, model.d_model, model.heads, model.d_ff or 4 * model.d_model)
    others = others_busy()
    rates = compute_capacity(shape, caps.cores)
    packet = TYPICAL_PACKET
    if others < BUSY * caps.cores and demand_of(setup).packets * TYPICAL_PACKET.machine_s > WORTH_MEASURING_S:
        packet = packet_cost(caps, setup.network.settings.delay_backend)
    return Capacity(tuple(rates), packet, memory()[1], others)


def message_s(workers: int) -> float:
    """Core-seconds that a message takes among so many processes."""
    return min(MOST_MESSAGE_S, MESSAGE_S * (1 + workers / MESSAGE_DOUBLES_WORKERS))


def compare(demand: Demand, capacity: Capacity, tdf: float) -> Preflight:
    """Pure. tdf: the experiment's own; `problems` are those at this one."""
    core = sum(capacity.core_flops) / len(capacity.core_flops)
    cores = {
        "computing": demand.flops / core,
        "messages": demand.messages * message_s(demand.workers),
        "packets": demand.packets * capacity.packet.machine_s,
        "heartbeats": demand.workers * HEARTBEATS_PER_S * HEARTBEAT_S,
    }
    usable = usable_cores(capacity)
    busiest = demand.peak_flops / core + demand.peak_traffic * (cores["messages"] + cores["packets"])
    busiest_usable = BUSIEST_USABLE * max(0.25 * len(capacity.core_flops), len(capacity.core_flops) - capacity.others)
    line = demand.peak_traffic * demand.packets
    line_s = line * capacity.packet.delay_line_s
    peak = demand.peak_packets
    all_cores = sum(cores.values())
    peak_s = max(capacity.packet.machine_s / len(capacity.core_flops), capacity.packet.delay_line_s)
    needs = [
        (
            f"the machine needs {all_cores:.2f} core-seconds an emulated second, and {usable:.2f} can be used",
            all_cores / usable,
        ),
        (
            f"at the busiest moment the machine needs {busiest:.2f} cores, and {busiest_usable:.2f} can be used",
            busiest / busiest_usable,
        ),
        (
            f"the fastest device computes {units.speed(demand.fastest)}, a core {units.speed(core)}",
            demand.fastest / core,
        ),
        (
            f"updates of the fastest device move {units.size(demand.update_bps)} of memory a second, "
            f"a core {units.size(UPDATE_BPS)}",
            demand.update_bps / UPDATE_BPS,
        ),
        (
            f"{line:,.0f} packets a second keep the delay line's process busy for {line_s:.2f} s",
            line_s / DELAY_LINE_USABLE,
        ),
        (
            f"{peak:,.0f} packets a second, while the fastest link is full, need "
            f"{peak * capacity.packet.machine_s:.2f} of {len(capacity.core_flops)} cores",
            peak * peak_s / PEAK_USABLE,
        ),
    ]
    problems = [f"{text}: time dilation {round_up(need):g}" for text, need in needs if need > tdf]
    if demand.memory_bytes > capacity.memory_bytes:
        problems.append(
            f"{units.size(demand.memory_bytes)} of memory are needed, {units.size(capacity.memory_bytes)} "
            "are free; no time dilation helps: fewer devices or a smaller model do"
        )
    if capacity.others > BUSY * len(capacity.core_flops):
        problems.append(
            f"other programs keep {capacity.others:.2g} of {len(capacity.core_flops)} cores busy: a run "
            "beside them can hardly be valid, whatever the time dilation"
        )
    needed = round_up(max(need for _, need in needs))
    return Preflight(tdf, needed, demand, capacity, {k: round(v, 4) for k, v in cores.items()}, problems)


def round_up(need: float) -> float:
    """The next of TDF_STEPS, or ten, a hundred of them, that is no less; 1 at least.

    >>> [round_up(x) for x in (0.2, 1.1, 8.5, 11, 130)]
    [1.0, 1.2, 10.0, 12.0, 150.0]
    """
    if need <= 1:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(need))
    return next((s * scale for s in TDF_STEPS if s * scale >= need * (1 - 1e-9)), 10 * scale)


def preflight(setup: RunSetup, caps: Capabilities) -> Preflight:
    """Measure and compare, at the experiment's own time dilation."""
    return compare(demand_of(setup), measure(setup, caps), setup.loaded.experiment.tdf)
