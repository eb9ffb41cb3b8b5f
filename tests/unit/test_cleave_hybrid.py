"""Hybrid tasks of Cleave: the losses of one device, whatever the devices, whoever goes and comes."""

from dataclasses import replace
from functools import partial

import pytest
from runner_checks import MODEL as DEEP
from runner_checks import FaultEngine, assert_same_training, cluster, job, losses, of, oracle, random_faults, run
from test_cleave_training import mixed

from runners.cleave import CleaveRunner
from testbed.cluster import ModelSpec

MODEL = ModelSpec(layers=2, d_model=32, heads=2, d_ff=64, sequence=16)
SLOW = {"flops": 2e7}


def train(homes, training, model=MODEL, faults=lambda engine: None, **settings):
    plan = CleaveRunner().plan(homes, model, training)
    engine = FaultEngine(plan, CleaveRunner, **settings)
    faults(engine)
    return run(engine)


def hybrid(steps=3, batch=4, **options):
    return job(steps=steps, batch=batch, tasks="hybrid", **options)


@pytest.mark.parametrize("devices", [1, 2, 5, 16])
@pytest.mark.parametrize("slab", [4, 5, 16])
def test_losses_are_those_of_one_device(devices, slab):
    training = hybrid(slab=slab)
    assert assert_same_training(train(mixed(devices), training), MODEL, training) < 2e-6


@pytest.mark.parametrize("model", [replace(MODEL, name=f) for f in ("llama", "opt")]
                         + [ModelSpec(layers=2, d_model=32, heads=4, d_ff=48, sequence=16, family="llama", kv_heads=2)],
                         ids=["llama", "opt", "grouped queries"])  # fmt: skip
def test_other_families_of_models(model):
    family = model.family if model.family != "gpt" else model.name
    model = replace(model, family=family)
    training = hybrid(slab=6)
    assert_same_training(train(mixed(6), training, model), model, training)


def test_more_steps_and_deeper():
    training = hybrid(steps=12, batch=6, slab=8)
    assert_same_training(train(mixed(9), training, DEEP), DEEP, training)


@pytest.mark.parametrize(("wire", "allowed"), [("bf16", 0.01), ("fp16", 0.01), ("int8", 0.05)])
def test_shorter_numbers_cost_little(wire, allowed):
    training = hybrid(steps=6, wire=wire)
    got, exact = losses(train(cluster(6), training), 6), oracle(MODEL, training)
    assert 0 < max(abs(a - b) for a, b in zip(got, exact)) < allowed


def nth(engine, kind, number, action):
    """Do `action` once a device has finished that many computations of a kind."""
    seen = []

    def count(event):
        if event["node"] != "server" and event["label"].startswith(kind):
            seen.append(event)
        return len(seen) == number

    engine.at("compute", count, action)


@pytest.mark.parametrize("kind", ["weights", "forward", "backward", "gradient"])
@pytest.mark.parametrize("number", [1, 7])
@pytest.mark.parametrize("devices", [2, 5, 16])
def test_a_device_killed_at_any_moment(kind, number, devices):
    training = hybrid(slab=8)
    events = train(cluster(devices, **SLOW), training,
                   faults=lambda e: nth(e, kind, number, lambda: e.kill("home1")))  # fmt: skip
    assert assert_same_training(events, MODEL, training) < 2e-6
    assert {e["peer"] for e in of(events, "recovery", kind="replan")} <= {"home1"}
    assert all(e["lost_steps"] == 0 for e in of(events, "recovery"))
    assert [e["attempt"] for e in of(events, "step")] == [1] * 3


@pytest.mark.parametrize("name", [f"home{i}" for i in range(8)])
def test_whoever_is_lost_is_recovered(name):
    training = hybrid(slab=8)
    events = train(cluster(8, **SLOW), training, detection_s=0.2,
                   faults=lambda e: nth(e, "backward", 9, lambda: e.kill(name)))  # fmt: skip
    assert_same_training(events, MODEL, training)
    assert [e["peer"] for e in of(events, "recovery")] == [name]


def test_all_but_one_are_killed():
    def most(engine):
        for i in (0, 1, 3, 4):
            engine.kill(f"home{i}")

    training = hybrid(slab=8)
    events = train(cluster(5, **SLOW), training, faults=lambda e: nth(e, "backward", 5, partial(most, e)))
    assert assert_same_training(events, MODEL, training) < 2e-6
    assert {e["peer"] for e in of(events, "recovery")} == {"home0", "home1", "home3", "home4"}


@pytest.mark.parametrize("kind", ["weights", "forward", "backward", "gradient"])
def test_all_are_killed_and_later_back(kind):
    def everyone(engine):
        for i in range(4):
            engine.kill(f"home{i}")
            engine.after(4.0 + i, partial(engine.rejoin, f"home{i}"))

    training = hybrid(slab=8)
    events = train(cluster(4, **SLOW), training, faults=lambda e: nth(e, kind, 5, partial(everyone, e)))
    assert assert_same_training(events, MODEL, training) < 2e-6
    assert any("no device is left" in e["text"] for e in of(events, "warning"))
    assert of(events, "recovery", kind="wait")


def test_a_device_that_joins_gets_work_in_the_next_step():
    training = hybrid(steps=8, batch=8)
    events = train(cluster(4, **SLOW), training, absent=["home3"],
                   faults=lambda e: e.at("step", lambda s: s["step"] == 0, lambda: e.rejoin("home3")))  # fmt: skip
    assert_same_training(events, MODEL, training)
    assert of(events, "recovery", kind="join", peer="home3")
    assert [e["devices"] for e in of(events, "step")][-1] == 4


@pytest.mark.parametrize("seed", range(6))
def test_random_faults(seed):
    training = hybrid(steps=5, slab=8)
    plan = CleaveRunner().plan(cluster(5, **SLOW), MODEL, training)
    engine = FaultEngine(plan, CleaveRunner, seed=seed)
    random_faults(engine, seed, until_s=2.5 * plan.predicted["step_time_s"] * 2, faults=6)
    assert_same_training(run(engine), MODEL, training)
