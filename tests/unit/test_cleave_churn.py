"""Devices that are lost, slow, wrong or new: training gives the losses of one device all the same, and says what happened."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from runner_checks import FaultEngine, assert_same_training, cluster, job, of, random_faults, run

from runners.cleave import CleaveRunner, device
from testbed.cluster import ModelSpec
from testbed.runtime.local import Deadlock

MODEL = ModelSpec(layers=1, d_model=32, heads=2, d_ff=64, sequence=16)
SLOW = {"flops": 2e7}  # a product takes some hundredths of a second


def train(faults, *, devices=4, steps=4, home=None, absent=(), runner=CleaveRunner, seed=0, detection_s=1.0, **options):
    training = job(steps=steps, batch=4, **{"local": "never", "chunks": 1, **options})
    plan = CleaveRunner().plan(cluster(devices, **(home or SLOW)), MODEL, training)
    engine = FaultEngine(plan, runner, absent=absent, seed=seed, detection_s=detection_s)
    faults(engine)
    events = run(engine)
    assert_same_training(events, MODEL, training)
    return events


def mid_product(engine, action, *, number=40):
    """Do `action` when that many tasks have arrived at devices, so in the middle of a product."""
    seen = []

    def count(event):
        if event["tag"] == "task" and event["node"] != "server":
            seen.append(event)
        return len(seen) == number

    engine.at("transfer", count, action)


def test_a_device_killed_in_the_middle_of_a_product():
    events = train(lambda e: mid_product(e, lambda: e.kill("home1")))
    (loss,) = of(events, "recovery")
    assert (loss["kind"], loss["peer"], loss["lost_steps"]) == ("replan", "home1", 0)
    assert loss["end"] >= loss["start"]
    assert loss["detected"] > 0
    assert [e["attempt"] for e in of(events, "step")] == [1] * 4
    assert not {e["peer"] for e in of(events, "send", node="server") if e["t"] > loss["end"]} & {"home1"}


def test_all_but_one_are_killed():
    def all_but_one(engine):
        for name in ("home0", "home1", "home3"):
            engine.kill(name)

    events = train(lambda e: mid_product(e, partial(all_but_one, e)))
    assert {e["peer"] for e in of(events, "recovery", kind="replan")} == {"home0", "home1", "home3"}


def test_all_are_killed_and_later_back():
    """The run waits, loses nothing, and says so."""

    def everyone(engine):
        for i in range(3):
            engine.kill(f"home{i}")
            engine.after(4.0 + i, partial(engine.rejoin, f"home{i}"))

    events = train(lambda e: mid_product(e, partial(everyone, e)), devices=3)
    said = [e for e in of(events, "warning") if "no device is left" in e["text"]]
    assert len(said) == 1
    waits = of(events, "recovery", kind="wait")
    assert waits
    assert all(e["end"] - e["start"] > 2.0 for e in waits)
    assert [e["attempt"] for e in of(events, "step")] == [1] * 4
    done = {(e["step"]) for e in of(events, "step") if e["t"] < waits[0]["start"]}
    assert done <= {0, 1, 2}


def test_nobody_ever_comes_back():
    with pytest.raises(Deadlock):
        train(lambda e: mid_product(e, lambda: e.kill("home0")), devices=1)


def test_a_device_that_joins_gets_work_at_once():
    events = train(lambda e: e.at("step", lambda s: s["step"] == 0, lambda: e.rejoin("home3")), absent=["home3"])
    (join,) = of(events, "recovery", kind="join")
    assert join["peer"] == "home3"
    (joined,) = of(events, "member", node="server", kind="joined", peer="home3", generation=1)
    first = min(e["t"] for e in of(events, "send", node="server", peer="home3"))
    assert first - joined["t"] < 0.5  # the step under way goes on for longer than that
    assert not of(events, "recovery", kind="replan")


def test_the_first_devices_come_late():
    events = train(lambda e: e.after(3.0, lambda: e.rejoin("home0")), devices=1, steps=2, absent=["home0"])
    assert of(events, "step")[0]["end"] > 3.0


def test_a_frozen_device_is_overdue_before_it_is_lost():
    """Its blocks go to others; when it is back, its late results are dropped."""

    def freeze(engine):
        engine.suspend("home2")
        engine.after(6.0, lambda: engine.resume("home2"))

    events = train(lambda e: mid_product(e, partial(freeze, e)), detection_s=30.0, steps=12, straggler=2.0)
    assert of(events, "straggler", peer="home2")
    assert not of(events, "member", node="server", kind="left")
    late = sum(t["duplicates"] for t in of(events, "traffic"))
    assert late >= 1


@pytest.mark.parametrize("number", [8, 9, 10, 11])
def test_a_device_lost_while_its_task_is_encoded(number):
    """The server is so slow that the loss is known before the encoding that begins with it ends."""
    training = job(steps=1, batch=4, local="never", chunks=1, wire="bf16")
    homes = cluster(2)
    plan = CleaveRunner().plan(replace(homes, server=replace(homes.server, flops=1e5)), MODEL, training)
    engine = FaultEngine(plan, CleaveRunner, detection_s=0.05)
    encoded = []

    def count(event):
        if event.get("label") == "encode":
            encoded.append(event)
        return len(encoded) == number

    engine.at("compute", count, lambda: engine.kill("home1"))
    events = run(engine)
    assert of(events, "recovery", kind="replan", peer="home1")
    assert of(events, "step")[0]["devices"] == 2


def test_a_device_that_slows_down_gets_less_work():
    class Slower(device.DeviceWorker):
        def _price(self, meta, message):
            slow = self._node.name == "home1" and self._node.now() > 3.0
            return super()._price(meta, message) * (8 if slow else 1)

    class Runner(CleaveRunner):
        async def work(self, node, plan):
            await Slower(node, device.CleaveOptions()).run()

    events = train(lambda e: None, runner=Runner, steps=20, straggler=50.0, home={"flops": 2e6})
    traffic = of(events, "traffic")
    shares = [t["up"]["home1"] / t["server_in"] for t in traffic]
    assert shares[-1] < 0.6 * shares[0]


class _Wrong(device.DeviceWorker):
    def _multiply(self, meta, tensors):
        out = super()._multiply(meta, tensors)
        if self._node.name == "home1" and meta["i"] % 3 == 0:
            return self.spoilt(out)
        return out


def _spoiling(spoil):
    class Worker(_Wrong):
        spoilt = staticmethod(spoil)

    class Runner(CleaveRunner):
        async def work(self, node, plan):
            await Worker(node, device.CleaveOptions()).run()

    return Runner


@pytest.mark.parametrize("spoil", [
    lambda out: [out[0][..., :-1]], lambda out: [], lambda out: [out[0].to(torch.int64)],
    lambda out: [torch.full_like(out[0], float("nan"))], lambda out: [out[0] * float("inf")],
], ids=["shape", "nothing", "dtype", "nan", "inf"])  # fmt: skip
def test_wrong_results_are_reported_and_done_again(spoil):
    events = train(lambda e: None, runner=_spoiling(spoil), steps=2)
    faults = of(events, "fault")
    assert {e["peer"] for e in faults} == {"home1"}
    assert 3 <= len(faults) <= 12
    assert any("no more work" in e["text"] for e in of(events, "warning"))
    assert {e["peer"] for e in of(events, "send", node="server") if e["t"] > faults[-1]["t"] + 1} <= {
        "home0", "home2", "home3"}  # fmt: skip


def _one_wrong(out):
    wrong = out[0].clone()
    wrong.view(-1)[0] += 1.0
    return [wrong]


def test_freivalds_finds_a_dishonest_device():
    """One number of a block is wrong: finite and of the right shape, so only the test can tell."""
    events = train(lambda e: None, runner=_spoiling(_one_wrong), steps=2, check=20)
    assert {e["peer"] for e in of(events, "fault")} == {"home1"}
    with pytest.raises(AssertionError, match="largest difference"):
        train(lambda e: None, runner=_spoiling(_one_wrong), steps=2)


def test_no_device_holds_more_than_its_memory():
    """Kept blocks, the task's operands and its result, at the moment at which it is computed."""
    most = {}

    class Careful(device.DeviceWorker):
        def _multiply(self, meta, tensors):
            out = super()._multiply(meta, tensors)
            seen = {t.data_ptr(): t.nbytes for t in [*self._kept.values(), *tensors, *out]}
            name = self._node.name
            most[name] = max(most.get(name, 0), sum(seen.values()))
            return out

    class Runner(CleaveRunner):
        async def work(self, node, plan):
            await Careful(node, device.CleaveOptions()).run()

    memory = 24_000  # the largest product has operands of 16 + 8 kB and a result of 16 kB
    train(lambda e: None, runner=Runner, steps=2, home={"memory": memory}, chunks="auto")
    assert len(most) == 4
    assert max(most.values()) <= memory


def test_a_bug_in_a_device_ends_the_run_with_its_error(monkeypatch):
    def broken(self, meta, tensors):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(device.DeviceWorker, "_multiply", broken)
    with pytest.raises(ZeroDivisionError):
        train(lambda e: None)


@pytest.mark.parametrize("seed", range(12))
def test_random_faults(seed):
    """Random absences of all kinds, some of them overlapping, in a random configuration."""
    rng = random.Random(seed)
    devices = rng.randint(1, 5)
    options = {
        "chunks": rng.choice([1, 3, "auto"]), "cache": rng.random() < 0.7, "prefetch": rng.random() < 0.7,
        "local": rng.choice(["never", "never", "auto"]), "straggler": rng.choice([1.5, 4.0]), "check": rng.choice([0, 4]),
    }  # fmt: skip
    written = []

    def faults(engine):
        written.extend(random_faults(engine, seed, until_s=4.0, faults=rng.randint(3, 10), longest_s=2.0))

    try:
        train(faults, devices=devices, steps=4, seed=seed, detection_s=rng.choice([0.1, 0.5, 1.0]), **options)
    except BaseException as error:
        raise AssertionError(f"{options}, {devices} devices, faults {written}") from error
