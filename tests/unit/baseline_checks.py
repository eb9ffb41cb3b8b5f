"""What the tests of the data-parallel and tensor-parallel runners share."""

from __future__ import annotations

from dataclasses import replace

import torch
from runner_checks import FaultEngine, assert_same_training, cluster, of, run

from testbed.cluster import Cluster, ModelSpec
from testbed.runtime import wire
from testbed.runtime.local import LocalEngine

SLOW = {"flops": 2e7}  # a step takes seconds


def uneven(devices: int, **settings) -> Cluster:
    """Homes of which each third is twice, and each third three times as fast, with as different links."""
    even = cluster(devices, **settings)

    def home(i, d):
        link = replace(d.link, uplink_bps=d.link.uplink_bps * (1 + i % 2), downlink_delay_s=0.01 * (1 + i % 4))
        return replace(d, flops=d.flops * (1 + i % 3), link=link)

    return replace(even, devices=tuple(home(i, d) for i, d in enumerate(even.devices)))


def train(runner, homes, model, training, faults=lambda engine: None, **settings):
    """Plan and events of a run with `faults`; losses are checked."""
    plan = runner().plan(homes, model, training)
    engine = FaultEngine(plan, runner, **settings)
    faults(engine)
    events = run(engine)
    assert_same_training(events, model, training)
    return plan, events


def in_the_middle_of(engine, label: str, node: str, nth: int, action) -> None:
    """Do `action` when `node` has finished its nth computation whose label begins so."""
    seen = []

    def reached(event) -> bool:
        if event["node"] == node and event["label"].startswith(label):
            seen.append(event)
        return len(seen) == nth

    engine.at("compute", reached, action)


def bytes_sent(events: list[dict], node: str, tag: str) -> int:
    return sum(e["bytes"] for e in of(events, "send", node=node) if e["tag"].startswith(tag))


def without_data(monkeypatch, runner, homes, model: ModelSpec, training):
    """A run on torch's meta device with a kill and a return, as a simulation would have it."""
    monkeypatch.setattr(wire, "buffer", lambda tensor: b"")
    monkeypatch.setattr(
        wire, "tensor",
        lambda data, dtype, shape: torch.empty(shape, dtype=getattr(torch, dtype), device="meta"),
    )  # fmt: skip
    engine = LocalEngine(runner().plan(homes, model, training), runner)
    engine.at("step", lambda e: e["step"] == 1, lambda: engine.kill("home1"))
    engine.at("member", lambda e: e["kind"] == "left", lambda: engine.after(1.0, lambda: engine.rejoin("home1")))
    with torch.device("meta"):
        return run(engine)
