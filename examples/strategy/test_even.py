"""Trains as one device does, also when a device is pulled out in the middle of a step and comes back."""

import pytest
from even import EvenRunner

from runners import reference
from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec
from testbed.simulation.trial import trial

LINK = Link(10e6, 50e6, 0.01, 0.01)
HOMES = Cluster(
    Device("server", 1e11, 1 << 32, Link(1e9, 1e9)), tuple(Device(f"h{i}", 1e9, 1 << 28, LINK) for i in range(3))
)
MODEL = ModelSpec(layers=2, d_model=32, heads=4, d_ff=64, sequence=16)
TRAINING = TrainingSpec(batch=6, micro_batches=1, steps=8)


def unplug(simulation):
    simulation.at("compute", lambda e: e["node"] == "h1", lambda: simulation.leave("h1", "kill"), nth=7)
    simulation.at("member", lambda e: e["kind"] == "left", lambda: simulation.come_back("h1"))


@pytest.mark.parametrize("faults", [None, unplug])
def test_losses_are_those_of_one_device(faults):
    events = trial(EvenRunner().plan(HOMES, MODEL, TRAINING), EvenRunner, faults)
    losses = {e["step"]: e["loss"] for e in events if e["event"] == "step"}
    assert list(losses.values()) == pytest.approx(reference.train(MODEL, TRAINING), abs=1e-4)
    assert any(e["event"] == "recovery" for e in events) == (faults is not None)
