"""Losses and returns of devices at bad moments: training always ends with the losses of one device."""

import random
from dataclasses import replace

import pytest
from runner_checks import MODEL as TALL
from runner_checks import FaultEngine, assert_same_training, cluster, job, of, random_faults, run

from runners.pipeline import PipelineRunner, stage
from runners.state import VersionStore
from testbed.runtime.local import Deadlock, LocalEngine

MODEL = replace(TALL, layers=4)
BOTH = pytest.mark.parametrize("recovery", ["wait", "replan"])
SLOW = {"flops": 2e7}  # a step takes about a second


def churn(faults, *, devices=4, steps=12, model=MODEL, home=None, homes=None, absent=(), **options):
    training = job(steps=steps, **{"stages": min(devices, 4), **options})
    plan = PipelineRunner().plan(homes or cluster(devices, **(home or {})), model, training)
    engine = FaultEngine(plan, PipelineRunner, absent=absent)
    faults(engine)
    events = run(engine)
    assert_same_training(events, model, training)
    return events


def on(engine, event, action, **fields):
    """Do `action` when an event with these fields is recorded."""
    engine.at(event, lambda e: all(e.get(k) == v for k, v in fields.items()), action)


def back_soon(engine, name, seconds=2.0):
    on(engine, "member", lambda: engine.after(seconds, lambda: engine.rejoin(name)), kind="left", peer=name)


@BOTH
def test_the_same_device_is_lost_again_while_its_state_comes_back(recovery):
    def faults(engine):
        def kill_again():
            engine.kill("home2")
            back_soon(engine, "home2")

        on(engine, "step", lambda: engine.kill("home2"), step=7)
        back_soon(engine, "home2", 0.5)
        on(engine, "transfer", kill_again, node="home2", tag="state.2" if recovery == "wait" else "state.3")

    events = churn(faults, recovery=recovery)
    assert len(of(events, "member", node="server", kind="left")) == (2 if recovery == "wait" else 1)


@BOTH
def test_another_device_is_lost_during_recovery(recovery):
    def faults(engine):
        on(engine, "step", lambda: engine.kill("home1"), step=7)
        back_soon(engine, "home1")
        on(engine, "plan", lambda: engine.kill("home3"), epoch=2)
        back_soon(engine, "home3")

    events = churn(faults, recovery=recovery)
    assert {e["peer"] for e in of(events, "recovery", kind=recovery)} == {"home1", "home3"}


@BOTH
def test_two_devices_at_once(recovery):
    def faults(engine):
        def both():
            for name in ("home0", "home3"):
                engine.kill(name)
                back_soon(engine, name)

        on(engine, "step", both, step=3)

    churn(faults, recovery=recovery)


@BOTH
@pytest.mark.parametrize(("number", "came_through"), [(1, False), (2, True)])
def test_a_loss_during_the_first_checkpoint(recovery, number, came_through):
    """The last stage, of two layers, is lost when its first or second layer has arrived."""
    seen = []

    def faults(engine):
        def count(event):
            if (event["node"], event["peer"], event["tag"]) == ("server", "home1", "checkpoint"):
                seen.append(event)
            return len(seen) == number

        engine.at("transfer", count, lambda: engine.kill("home1"))
        back_soon(engine, "home1")

    model = replace(MODEL, layers=2)
    events = churn(faults, devices=2, model=model, recovery=recovery, checkpoint_every=3)
    assert of(events, "plan")[0]["stages"] == ["embedding … block 0", "block 1 … head"]
    (loss,) = of(events, "recovery")
    # the other still sends its part; without the lost one, only the seed's state is whole
    assert of(events, "plan", epoch=2)[0]["version"] == (3 if came_through else 0)
    assert (loss["lost_steps"] == 0) == came_through


@BOTH
def test_everyone_is_gone_for_a_while(recovery):
    def faults(engine):
        def all_gone():
            for i in range(4):
                engine.kill(f"home{i}")
                back_soon(engine, f"home{i}", 3.0 + i)

        on(engine, "step", all_gone, step=6)

    events = churn(faults, recovery=recovery, home=SLOW)
    assert len(of(events, "recovery", kind=recovery)) == 4


@pytest.mark.parametrize("mode", ["suspend", "disconnect"])
def test_a_device_that_keeps_its_memory_costs_no_step(mode):
    def faults(engine):
        go, come = (engine.suspend, engine.resume) if mode == "suspend" else (engine.disconnect, engine.reconnect)
        on(engine, "step", lambda: go("home2"), step=7)
        on(engine, "member", lambda: engine.after(3.0, lambda: come("home2")), kind="left", peer="home2")

    events = churn(faults, recovery="wait")
    (found,) = of(events, "recovery")
    assert found["lost_steps"] == 0
    assert max(e["attempt"] for e in of(events, "step")) <= 2  # at most the step under way was done again
    assert of(events, "plan")[-1]["moved_bytes"] == 0


def test_without_local_copies_everyone_goes_back_to_the_server():
    def faults(engine):
        on(engine, "step", lambda: engine.kill("home2"), step=7)
        back_soon(engine, "home2")

    moved = [
        of(churn(faults, recovery="wait", local_copies=copies), "plan")[-1]["moved_bytes"] for copies in (True, False)
    ]
    assert 0 < moved[0] < moved[1] / 2


def test_an_absence_too_short_to_notice_is_no_loss():
    def faults(engine):
        def blink():
            engine.disconnect("home1")
            engine.after(0.4, lambda: engine.reconnect("home1"))

        on(engine, "step", blink, step=4)

    events = churn(faults)
    assert not of(events, "recovery")
    assert [e["attempt"] for e in of(events, "step")] == [1] * 12


def test_a_spare_may_come_and_go():
    def faults(engine):
        on(engine, "step", lambda: engine.kill("home4"), step=3)
        back_soon(engine, "home4")

    events = churn(faults, devices=5, home=SLOW, stages=4)
    assert not of(events, "recovery")
    assert len(of(events, "plan")) == 1


def test_replan_takes_the_spare():
    events = churn(lambda e: on(e, "step", lambda: e.kill("home1"), step=7), devices=5, stages=4)
    assert [sorted(p["devices"]) for p in of(events, "plan")] == [
        ["home0", "home1", "home2", "home3"], ["home0", "home2", "home3", "home4"]
    ]  # fmt: skip


def test_replan_with_fewer_devices_then_with_the_one_that_returns():
    def faults(engine):
        on(engine, "step", lambda: engine.kill("home1"), step=3)
        back_soon(engine, "home1", 4.0)

    events = churn(faults, devices=3, steps=16, stages="auto", home={"flops": 5e6, "up": 1e9, "down": 1e9})
    assert [len(p["devices"]) for p in of(events, "plan")] == [3, 2, 3]
    (joined,) = of(events, "recovery", kind="join")
    assert joined["lost_steps"] == 0
    assert max(e["attempt"] for e in of(events, "step")) == 2  # after the loss; none for the join
    times = [e["end"] - e["start"] for e in of(events, "step")]
    assert times[-1] < max(times)


def test_a_device_that_would_not_help_is_not_taken_in():
    homes = cluster(4, flops=5e6, up=1e9, down=1e9)
    homes = replace(homes, devices=(*homes.devices[:3], replace(homes.devices[3], flops=1e4)))

    def faults(engine):
        engine.after(2.0, lambda: engine.rejoin("home3"))

    events = churn(faults, absent=["home3"], stages="auto", homes=homes, steps=6)
    assert [e["devices"] for e in of(events, "plan")] == [["home0", "home1", "home2"]]
    assert of(events, "member", node="server", peer="home3", kind="joined")


@BOTH
def test_devices_that_come_late(recovery):
    def faults(engine):
        for i in range(3):
            engine.after(3.0 * i, lambda i=i: engine.rejoin(f"home{i}"))

    events = churn(faults, absent=["home0", "home1", "home2"], recovery=recovery, steps=6, home=SLOW)
    assert len(of(events, "plan")[0]["devices"]) == 4  # all within the time that the start waits


def test_replan_starts_without_those_who_do_not_come():
    events = churn(lambda e: None, absent=["home2"], recovery="replan", steps=6, home=SLOW)
    assert of(events, "plan")[0]["devices"] == ["home0", "home1", "home3"]
    assert of(events, "plan")[0]["t"] >= 10.0


def test_waiting_for_ever_is_said():
    with pytest.raises(Deadlock):
        churn(lambda e: on(e, "step", lambda: e.kill("home1"), step=3), recovery="wait")


def test_no_device_keeps_more_states_than_the_plan_counts(monkeypatch):
    """Peak of the states beside the live one, over all devices, through checkpoints, losses and joins."""
    peaks = {}
    put = VersionStore.put

    def counted(self, state, layers):
        put(self, state, layers)
        full = [s for s, held in self.holdings().items() if len(held) >= len(layers)]
        peaks[id(self)] = max(peaks.get(id(self), 0), len(full))

    monkeypatch.setattr(VersionStore, "put", counted)

    def faults(engine):
        for at, name in ((3, "home1"), (6, "home2")):
            on(engine, "step", lambda name=name: engine.kill(name), step=at)
            back_soon(engine, name)

    churn(faults, steps=16, checkpoint_every=1, recovery="wait")
    assert 2 <= max(peaks.values()) <= 3


def test_a_bug_in_a_stage_ends_the_run_with_its_error(monkeypatch):
    def broken(self, micro_batch, gradient=None):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(stage.Stage, "backward", broken)
    with pytest.raises(ZeroDivisionError):
        churn(lambda e: None)


@pytest.mark.parametrize("seed", range(20))
def test_random_faults(seed):
    """Random absences of all kinds, some of them overlapping, in a random configuration."""
    rng = random.Random(seed)
    devices = rng.randint(2, 6)
    options = {
        "schedule": rng.choice(["1f1b", "gpipe"]), "recovery": ["wait", "replan"][seed % 2],
        "stages": rng.randint(2, min(devices, 4)), "checkpoint_every": rng.choice([0, 1, 2, 5]),
        "local_copies": rng.random() < 0.7, "recompute": rng.random() < 0.3,
    }  # fmt: skip
    training = job(steps=10, **options)
    plan = PipelineRunner().plan(cluster(devices, flops=5e7), MODEL, training)
    engine = FaultEngine(plan, PipelineRunner, seed=seed, detection_s=rng.choice([0.1, 0.5, 1.0]))
    schedule = random_faults(engine, seed, until_s=6.0, faults=rng.randint(3, 10), longest_s=2.0)
    try:
        assert_same_training(run(engine), MODEL, training)
    except BaseException as error:
        raise AssertionError(f"{options}, {devices} devices, faults {schedule}") from error


def test_the_engine_of_the_runtime_gives_the_same():
    """Once with LocalEngine itself, where a device that returns always has a fresh runner."""
    training = job(steps=10, stages=3, recovery="wait")
    engine = LocalEngine(PipelineRunner().plan(cluster(3), MODEL, training), PipelineRunner)
    on(engine, "step", lambda: engine.disconnect("home1"), step=6)
    on(engine, "member", lambda: engine.after(1.0, lambda: engine.reconnect("home1")), kind="left", node="server")
    events = run(engine)
    assert_same_training(events, MODEL, training)
    assert of(events, "recovery")[0]["lost_steps"] > 0
