"""One device for the whole model: the oracle's losses, memory and offload, and all families on several runners."""

from dataclasses import replace

import pytest
from runner_checks import MODEL, assert_same_training, cluster, job, of, run

from runners.costs import layer_costs, model_parameters, training_flops
from runners.pipeline import PipelineRunner
from runners.single import SingleRunner
from runners.single.options import SingleOptions, parse_options
from runners.single.planner import best_way
from testbed.cluster import Device, Link, ModelSpec, TrainingSpec
from testbed.cluster.devices import load_profiles
from testbed.cluster.published import published
from testbed.errors import InputError
from testbed.runtime.local import LocalEngine

FAMILIES = [
    ModelSpec("opt", 4, 32, 4, 64, 16, 256, "opt", positions=32),
    ModelSpec("llama", 4, 32, 4, 48, 16, 256, "llama", kv_heads=2),
]


@pytest.mark.parametrize("offload", ["none", "optimizer", "weights"])
def test_it_trains_like_one_device_because_it_is_one(offload):
    training = job(steps=6, offload=offload)
    plan = SingleRunner().plan(cluster(3), MODEL, training)
    assert_same_training(run(LocalEngine(plan, SingleRunner)), MODEL, training)


@pytest.mark.parametrize("model", FAMILIES, ids=["opt", "llama"])
@pytest.mark.parametrize("runner", [SingleRunner, PipelineRunner])
def test_every_family_trains_like_the_oracle(model, runner):
    training = job(steps=5)
    plan = runner().plan(cluster(3), model, training)
    assert_same_training(run(LocalEngine(plan, runner)), model, training)


def test_a_device_that_was_lost_starts_over():
    training = job(steps=4)
    plan = SingleRunner().plan(cluster(2), MODEL, training)
    engine = LocalEngine(plan, SingleRunner)
    engine.at("step", lambda e: e["step"] == 1, lambda: engine.kill(plan.data["way"]["device"]))
    engine.at("member", lambda e: e["kind"] == "left", lambda: engine.rejoin(plan.data["way"]["device"]))
    events = run(engine)
    assert [e["attempt"] for e in of(events, "step")][-4:] == [2, 2, 2, 2]
    assert_same_training(events, MODEL, training)


def _gpu(name="a100-80gb") -> Device:
    profile = load_profiles()[name]
    return Device("gpu", profile.flops, profile.memory_bytes, Link(1e9, 1e9))


def test_a_model_that_fits_takes_its_flops():
    model, training = published("gpt-3-1.3b"), TrainingSpec(batch=32)
    way = best_way(_gpu(), model, training, SingleOptions(recompute=False))
    assert way.offload == "none"
    assert way.memory_bytes >= 16 * model_parameters(model)
    assert way.step_time_s == pytest.approx(training_flops(model, 32) / _gpu().flops, rel=1e-6)


def test_larger_models_are_offloaded_and_slower():
    training = TrainingSpec(batch=128)
    ways = {
        n: best_way(_gpu(), published(n), training, SingleOptions()) for n in ("opt-6.7b", "llama-2-13b", "opt-66b")
    }
    assert [w.offload for w in ways.values()] == ["optimizer", "weights", "weights"]
    assert all(w.memory_bytes <= 80e9 for w in ways.values())
    for name, way in ways.items():
        flops = sum(c.forward_flops + c.backward_flops for c in layer_costs(published(name)))
        assert way.step_time_s > training.batch * flops / _gpu().flops


def test_streaming_binds_where_the_host_link_is_slow():
    model, training = published("llama-2-13b"), TrainingSpec(batch=8)
    slow = best_way(_gpu(), model, training, SingleOptions(offload="weights", host_link="8 Gbit/s"))
    bytes_a_batch = 2 * 2 * model_parameters(model)  # in twice
    assert slow.micro_batch_s * slow.micro_batches >= 0.99 * bytes_a_batch * slow.micro_batches / 1e9


def test_what_fits_nowhere_says_how_much_is_missing():
    with pytest.raises(InputError, match=r"needs [\d,]+ bytes .* but it has 1,000,000 bytes"):
        SingleRunner().plan(cluster(2, memory=10**6), replace(MODEL, d_model=256, heads=4), job())


@pytest.mark.parametrize(
    ("options", "found"),
    [({"offlaod": "none"}, "did you mean 'offload'?"), ({"offload": "optimiser"}, "did you mean 'optimizer'?"),
     ({"host_link": "3 parsec"}, "unknown unit"), ({"recompute": "yes"}, "true, false or 'auto'")],
)  # fmt: skip
def test_bad_options(options, found):
    with pytest.raises(InputError) as error:
        parse_options(options)
    assert found in str(error.value)
