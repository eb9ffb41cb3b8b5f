"""Planner and executor count a device's memory alike: what is planned fits when it runs."""

import gc
from dataclasses import replace

import pytest
from runner_checks import cluster, job

from runners.cleave import CleaveRunner
from runners.cleave.capture import products
from runners.cleave.describe import plans_of
from runners.cleave.job import Task
from runners.cleave.options import parse_options
from runners.cleave.precision import WIRES, Codec
from testbed.cluster import LinkState, ModelSpec
from testbed.simulation.engine import PortChange, Simulation
from testbed.simulation.network import PortSettings

MODEL = ModelSpec(layers=2, d_model=32, heads=2, d_ff=64, sequence=16)
MEMORY = 24_000  # bytes: less than most blocks would take


def small(devices: int):
    homes = cluster(devices, memory=MEMORY, flops=1e8)
    return replace(homes, devices=tuple(replace(d, flops=d.flops * (1 + i)) for i, d in enumerate(homes.devices)))


def ports(homes):
    links = {d.name: d.link for d in (*homes.devices, homes.server)}
    return {
        name: [PortChange(0.0, PortSettings(link.uplink_bps, link.downlink_bps, link.uplink_delay_s, 0.0, 0.0),
                          LinkState(link.downlink_bps, link.uplink_bps, 2 * link.uplink_delay_s, 0.0, 0.0))]
        for name, link in links.items()
    }  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("chunks", [1, 4])
def test_planned_blocks_fit_into_the_devices_that_run_them(wire, chunks):
    training = job(steps=2, batch=4, local="never", wire=wire, chunks=chunks)
    homes = small(3)
    resident = Codec(wire).resident_bytes
    plans = plans_of(homes, parse_options(training.options))
    largest = 0
    for _, gemm, _ in products(MODEL, training.batch):
        for block in plans.of(gemm).plan.blocks:
            size = resident * block.products * (
                gemm.k * (block.rows + block.columns) + block.rows * block.columns)  # fmt: skip
            assert size <= MEMORY
            largest = max(largest, size)
    assert largest > 0.8 * MEMORY  # or the case would show nothing
    events = []
    plan = CleaveRunner().plan(homes, MODEL, training)
    outcome = Simulation(plan, CleaveRunner, ports(homes), on_event=events.append).run()
    assert (outcome.status, outcome.error) == ("complete", None)
    peaks = {e["node"]: e["memory_peak_bytes"] for e in events if e["event"] == "totals"}
    if wire == "fp32":  # decoded numbers are not in the simulation's account
        assert max(peaks[d.name] for d in homes.devices) > 0.5 * MEMORY


def test_tasks_that_are_done_are_gone_without_the_garbage_collectors_help():
    """It runs rarely during a simulation, and a step of a large model has half a million tasks."""

    def tasks():
        return sum(isinstance(o, Task) for o in gc.get_objects())

    training = job(steps=3, batch=4, local="never")
    homes = small(3)
    plan = CleaveRunner().plan(homes, MODEL, training)
    alive = []

    def look(event):
        if event["event"] == "step":
            alive.append(tasks())

    gc.collect()
    gc.disable()
    try:
        outcome = Simulation(plan, CleaveRunner, ports(homes), on_event=look).run()
    finally:
        gc.enable()
    assert outcome.status == "complete"
    assert len(alive) == 3
    assert alive[2] <= alive[0] < 20, alive
