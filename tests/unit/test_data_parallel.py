"""Class E0 for parameter server and ring: losses are those of one-device training, whoever comes and goes."""

from dataclasses import replace

import pytest
from baseline_checks import SLOW, bytes_sent, in_the_middle_of, train, uneven, without_data
from runner_checks import MODEL as TALL
from runner_checks import cluster, job, losses, of, random_faults, run

from runners.costs import FLOAT, model_parameters, training_flops
from runners.data_parallel import DataParallelRunner
from testbed.cluster import ModelSpec
from testbed.errors import InputError
from testbed.runtime.local import LocalEngine

MODEL = replace(TALL, layers=3)
BOTH = pytest.mark.parametrize("reduce", ["ps", "ring"])


def trained(homes, faults=lambda engine: None, *, steps=12, batch=16, model=MODEL, absent=(), **options):
    return train(DataParallelRunner, homes, model, job(steps=steps, batch=batch, **options), faults, absent=absent)


@BOTH
@pytest.mark.parametrize("devices", [1, 2, 5, 16])
def test_losses_of_one_device(reduce, devices):
    plan, events = trained(uneven(devices), steps=20, batch=37, micro_batches=2, buckets=2, reduce=reduce)
    shares = plan.data["assignment"]["shares"]
    assert sum(s["end"] - s["first"] for s in shares) == 37
    assert [e["attempt"] for e in of(events, "step")] == [1] * 20
    assert {e["devices"] for e in of(events, "step")} == {devices}


@BOTH
def test_samples_by_speed(reduce):
    plan = DataParallelRunner().plan(uneven(3), MODEL, job(batch=12, reduce=reduce))
    assert [s["end"] - s["first"] for s in plan.data["assignment"]["shares"]] == [2, 4, 6]


@BOTH
@pytest.mark.parametrize("buckets", [1, 3, 99])
def test_buckets_do_not_change_the_losses(reduce, buckets):
    plan, _ = trained(cluster(3), steps=4, reduce=reduce, buckets=buckets)
    assert len(plan.data["assignment"]["buckets"]) == min(buckets, 5)


@BOTH
def test_devices_compute_the_flops_of_the_model_and_send_what_the_plan_says(reduce):
    plan, events = trained(cluster(4), steps=4, reduce=reduce, checkpoint_every=0)
    flops = sum(e["flops"] for e in of(events, "compute") if "ward" in e["label"])
    update = training_flops(MODEL, 0)
    assert flops == pytest.approx(4 * (training_flops(MODEL, 16) - update))
    tag = "gradient" if reduce == "ps" else "reduce"
    for name in ("home0", "home3"):
        assert bytes_sent(events, name, tag) / 4 == pytest.approx(plan.data["bytes_per_step"]["device_up"], rel=0.1)
    per_member = {"ps": 1, "ring": 2 * 3 / 4}[reduce] * FLOAT * model_parameters(MODEL)
    assert plan.data["bytes_per_step"]["device_up"] == pytest.approx(per_member)


@BOTH
@pytest.mark.parametrize("nth", [4, 7])
def test_a_device_killed_in_the_middle_of_a_step_costs_no_step(reduce, nth):
    def faults(engine):
        in_the_middle_of(engine, "backward", "home1", nth, lambda: engine.kill("home1"))

    _, events = trained(uneven(5, **SLOW), faults, reduce=reduce, buckets=3)
    (found,) = of(events, "recovery")
    assert found["lost_steps"] == 0
    assert found["detected"] == pytest.approx(1.0)
    assert found["end"] >= found["restored"] >= found["start"]
    assert of(events, "step")[-1]["devices"] == 4
    redone = [e["step"] for e in of(events, "step") if e["attempt"] > 1]
    assert len(redone) == (1 if reduce == "ring" else 0)  # the ring does the round anew, the server what was lost


def test_the_parameter_server_has_only_the_lost_samples_computed_again():
    def faults(engine):
        in_the_middle_of(engine, "backward", "home1", 4, lambda: engine.kill("home1"))

    training = job(steps=3, batch=16, micro_batches=1, reduce="ps", buckets=3)
    _, events = train(DataParallelRunner, cluster(4, **SLOW), MODEL, training, faults)
    # killed with one bucket of the second step sent, before its arrival: 4 samples, shared out anew
    forward = sum(e["flops"] for e in of(events, "compute") if e["label"].startswith("forward"))
    per_sample = (training_flops(MODEL, 1) - training_flops(MODEL, 0)) / 3
    assert forward / per_sample == pytest.approx(3 * 16 + 4)


@BOTH
def test_all_but_one_are_killed(reduce):
    def faults(engine):
        def most():
            for i in range(4):
                engine.kill(f"home{i}")

        in_the_middle_of(engine, "backward", "home1", 7, most)

    _, events = trained(cluster(5, **SLOW), faults, reduce=reduce)
    assert of(events, "step")[-1]["devices"] == 1
    assert all(e["lost_steps"] == 0 for e in of(events, "recovery"))


@BOTH
def test_all_are_killed_and_come_back(reduce):
    def faults(engine):
        def everyone():
            for i in range(4):
                engine.kill(f"home{i}")
                engine.after(5.0 + i, lambda i=i: engine.rejoin(f"home{i}"))

        engine.at("step", lambda e: e["step"] == 6, lambda: engine.after(0.3, everyone))

    _, events = trained(cluster(4, **SLOW), faults, reduce=reduce, checkpoint_every=3)
    assert [w["text"] for w in of(events, "warning")] == ["no device is there: training waits"]
    lost = [e["lost_steps"] for e in of(events, "recovery") if e["kind"] != "join"]
    assert len(lost) == 4
    # the server has everything; a ring goes back to the checkpoint after step 5, of what it did meanwhile
    assert max(lost) == 0 if reduce == "ps" else 0 < max(lost) <= 3
    assert of(events, "step")[-1]["devices"] > 1


@BOTH
def test_a_device_joins(reduce):
    def faults(engine):
        engine.at("step", lambda e: e["step"] == 2, lambda: engine.rejoin("home2"))

    _, events = trained(cluster(3, **SLOW), faults, absent=["home2"], steps=30, reduce=reduce)
    (joined,) = of(events, "recovery", kind="join")
    assert joined["peer"] == "home2"
    assert joined["lost_steps"] == 0
    assert [e["attempt"] for e in of(events, "step")] == [1] * 30
    taken_in = [e["devices"] for e in of(events, "step")]
    assert taken_in == sorted(taken_in)
    assert taken_in[-1] == 3


def test_a_ring_s_newcomer_gets_its_state_from_several():
    def faults(engine):
        engine.at("step", lambda e: e["step"] == 2, lambda: engine.rejoin("home3"))

    _, events = trained(cluster(4, **SLOW), faults, absent=["home3"], steps=30, reduce="ring", checkpoint_every=0)
    givers = {e["node"] for e in of(events, "send", peer="home3") if e["tag"].startswith("state")}
    assert givers == {"home0", "home1", "home2"}


@pytest.mark.parametrize("seed", range(4))
@BOTH
def test_random_absences(reduce, seed):
    written = []

    def faults(engine):
        written.extend(random_faults(engine, seed, until_s=12.0, faults=7))

    trained(cluster(4, **SLOW), faults, batch=8, reduce=reduce, checkpoint_every=3)
    assert written


@BOTH
def test_two_runs_give_the_same_events(reduce):
    first, second = (trained(cluster(3), steps=4, reduce=reduce)[1] for _ in range(2))
    assert first == second


@BOTH
@pytest.mark.parametrize("devices", [1, 2, 5])
def test_prediction_meets_a_run_where_only_delays_count(reduce, devices, monkeypatch):
    monkeypatch.setattr("runners.data_parallel.timing.slow_start_s", lambda *_: 0.0)  # the local engine has no TCP
    training = job(steps=6, batch=20, micro_batches=2, reduce=reduce, checkpoint_every=0)
    plan = DataParallelRunner().plan(cluster(devices, flops=2e7, up=1e12, down=1e12), MODEL, training)
    events = run(LocalEngine(plan, DataParallelRunner, jitter=0.0))
    for step in of(events, "step")[2:]:
        assert step["end"] - step["start"] == pytest.approx(plan.predicted["step_time_s"], rel=0.01)


@BOTH
def test_without_data_at_real_size(reduce, monkeypatch):
    """1.2 billion parameters, a loss and a return, no bytes."""
    model = ModelSpec(layers=24, d_model=2048, heads=16, d_ff=8192, sequence=1024)
    homes = cluster(4, flops=5e12, memory=1 << 37, up=1e9, down=1e9)
    homes = replace(homes, server=replace(homes.server, memory_bytes=1 << 38))
    training = job(steps=4, batch=8, micro_batches=8, reduce=reduce, checkpoint_every=2)
    events = without_data(monkeypatch, DataParallelRunner, homes, model, training)
    assert losses(events, 4) == [None] * 4
    assert of(events, "recovery")


def test_more_devices_than_samples():
    plan, _ = trained(cluster(6), steps=3, batch=4, micro_batches=2, reduce="ps")
    assert len(plan.data["assignment"]["shares"]) == 4
    assert plan.data["spares"] == ["home4", "home5"]


@BOTH
def test_a_device_without_memory_for_a_replica_is_left_out(reduce):
    homes = cluster(3)
    homes = replace(homes, devices=(replace(homes.devices[0], memory_bytes=100_000), *homes.devices[1:]))
    plan, _ = trained(homes, steps=3, reduce=reduce)
    assert plan.data["spares"] == ["home0"]
    assert any("without memory" in note and "home0" in note for note in plan.notes)


@BOTH
def test_no_memory_anywhere_is_an_error_with_numbers(reduce):
    with pytest.raises(InputError, match=r"home\d', memory: a replica of the model needs [\d,]+ bytes.*100,000 bytes"):
        DataParallelRunner().plan(cluster(2, memory=100_000), MODEL, job(reduce=reduce))


def test_a_server_too_small_is_an_error():
    homes = cluster(2)
    homes = replace(homes, server=replace(homes.server, memory_bytes=50_000))
    for reduce in ("ps", "ring"):
        with pytest.raises(InputError, match="'server', memory"):
            DataParallelRunner().plan(homes, MODEL, job(reduce=reduce))


@pytest.mark.parametrize(("options", "said"), [
    ({"reduc": "ps"}, "did you mean 'reduce'"), ({"reduce": "rign"}, "did you mean 'ring'"),
    ({"buckets": 0}, "a number of buckets"), ({"buckets": "atuo"}, "did you mean 'auto'"),
    ({"checkpoint_every": -1}, "a number of steps"),
])  # fmt: skip
def test_wrong_options(options, said):
    with pytest.raises(InputError) as error:
        DataParallelRunner.check_options(options)
    assert said in str(error.value)
