"""Cleave trains like one device: whatever the devices, however products are cut up."""

from dataclasses import replace

import pytest
from click.testing import CliRunner
from runner_checks import assert_same_training, cluster, job, losses, of, oracle, run

from runners.cleave import CleaveRunner
from runners.cleave.capture import full_name, layer_graph
from runners.planning.transformer_gemms import gemms
from testbed.cli import cli
from testbed.cluster import ModelSpec
from testbed.cluster.published import published
from testbed.errors import InputError
from testbed.experiment.loading import load_experiment, sweep_points
from testbed.experiment.setup import network_setup
from testbed.runtime.local import LocalEngine

MODEL = ModelSpec(layers=1, d_model=32, heads=2, d_ff=64, sequence=16)


def mixed(devices: int):
    """Devices of unlike speed, memory and links."""
    homes = cluster(devices)
    return replace(homes, devices=tuple(
        replace(d, flops=d.flops * (1 + i % 3), memory_bytes=1 << (22 + i % 4), link=replace(
            d.link, uplink_bps=1e7 * (1 + i % 2), downlink_bps=3e7 * (1 + i % 5), uplink_delay_s=0.005 * (1 + i % 3)))
        for i, d in enumerate(homes.devices)))  # fmt: skip


def train(homes, training, model=MODEL, runner=CleaveRunner, engine=LocalEngine, faults=None, **settings):
    plan = CleaveRunner().plan(homes, model, training)
    local = engine(plan, runner, **settings)
    if faults is not None:
        faults(local)
    return run(local)


@pytest.mark.parametrize("devices", [1, 2, 5, 16])
def test_losses_are_those_of_one_device(devices):
    training = job(steps=20, batch=4, local="never", chunks=1)
    events = train(mixed(devices), training)
    assert_same_training(events, MODEL, training)
    assert len({e["peer"] for e in of(events, "send", node="server")}) == devices
    assert not of(events, "fault")


@pytest.mark.parametrize("options", [{}, {"local": "never", "chunks": 3}, {"local": "never", "cache": False},
                                     {"local": "never", "prefetch": False}, {"local": "never", "check": 8}],
                         ids=str)  # fmt: skip
def test_every_way_of_sending_gives_the_same(options):
    training = job(steps=4, batch=4, **options)
    events = train(mixed(4), training)
    assert_same_training(events, MODEL, training)
    assert not of(events, "fault")


@pytest.mark.parametrize("family", ["gpt", "llama", "opt"])
def test_other_families_of_models(family):
    model = replace(MODEL, name=family)
    training = job(steps=3, batch=4, local="never")
    assert_same_training(train(mixed(3), training, model), model, training)


@pytest.mark.parametrize("model", [*(replace(MODEL, name=f, layers=2) for f in ("gpt", "llama", "opt")),
                                   replace(published("llama-2-70b"), layers=2, sequence=16)],
                         ids=["gpt", "llama", "opt", "grouped queries"])  # fmt: skip
def test_the_products_intercepted_are_those_that_are_planned(model):
    found = {}
    for index in range(1, model.layers + 2):
        for product in layer_graph(model, index, 3, 3 * model.sequence).products.values():
            g = product.gemm
            found[full_name(model, index, g.name)] = g.m, g.k, g.n, g.batch, g.weight is not None
    listed = {g.name: (g.m, g.k, g.n, g.batch, g.weight is not None) for g in gemms(model, 3)}
    assert found == listed


def test_a_layer_is_traced_once_whatever_the_depth():
    deep = replace(MODEL, layers=48)
    assert layer_graph(deep, 1, 3, 48) is layer_graph(deep, 48, 3, 48)


def test_what_a_device_has_is_not_sent_again():
    sent = {}
    for cache in (True, False):
        events = train(cluster(1), job(steps=2, batch=4, local="never", cache=cache, chunks=1, prefetch=False))
        (traffic,) = of(events, "traffic", step=1)
        sent[cache] = traffic["server_out"]
        assert (traffic["saved"] > 0) == cache
    # one device has every operand whole: weights go out once for forward and dX, activations once for forward and dW
    assert sent[True] < 0.6 * sent[False]


def test_bytes_counted_are_the_bytes_sent():
    training = job(steps=2, batch=4, local="never")
    events = train(mixed(3), training)
    counted = sum(t["server_out"] for t in of(events, "traffic"))
    on_wire = sum(e["bytes"] for e in of(events, "send", node="server"))
    messages = len(of(events, "send", node="server"))
    assert counted <= on_wire <= counted + 250 * messages


def test_every_product_has_a_place_and_a_reason():
    plan = CleaveRunner().plan(mixed(4), MODEL, job())
    rows = plan.data["products"]
    assert sum(r["times"] for r in rows) == len(gemms(MODEL, 8))
    assert all(r["reason"] for r in rows)
    assert plan.predicted["step_time_s"] > 0


@pytest.mark.parametrize("wire", ["bf16", "fp16", "int8"])
def test_shorter_numbers_cost_little_and_halve_the_bytes(wire):
    training = job(steps=6, batch=4, local="never", wire=wire, chunks=1)
    events = train(cluster(2), training)
    got, exact = losses(events, 6), oracle(MODEL, training)
    assert max(abs(a - b) for a, b in zip(got, exact)) < 0.05
    assert got != list(exact)
    full = train(cluster(2), job(steps=1, batch=4, local="never", chunks=1))
    assert of(events, "traffic")[0]["server_out"] < 0.56 * of(full, "traffic")[0]["server_out"]


@pytest.mark.parametrize(("options", "key"), [
    ({"wires": "bf16"}, "wires"), ({"wire": "bf32"}, "bf16"), ({"chunks": 0}, "chunks"), ({"straggler": 1}, "straggler"),
    ({"check": True}, "check"), ({"local": "nevre"}, "never"), ({"check": 3, "wire": "int8"}, "check"),
    ({"ewma": 2}, "ewma"), ({"cache": "yes"}, "cache"),
])  # fmt: skip
def test_options_that_can_not_work(options, key):
    with pytest.raises(InputError) as caught:
        CleaveRunner.check_options(options)
    assert key in str(caught.value)


def test_a_server_without_the_memory():
    homes = cluster(2)
    homes = replace(homes, server=replace(homes.server, memory_bytes=1 << 16))
    with pytest.raises(InputError, match="server"):
        CleaveRunner().plan(homes, MODEL, job())


def test_the_prediction_sends_what_the_run_sends():
    """The prediction runs the same code on tensors without data."""
    training = job(steps=2, batch=4, local="never", ewma=0.0)
    plan = CleaveRunner().plan(mixed(3), MODEL, training)
    sent = of(train(mixed(3), training), "traffic", step=1)[0]
    assert plan.predicted["server_in_bytes"] == sent["server_in"]
    whole = sent["server_out"] + sent["saved"]
    assert plan.predicted["server_out_bytes"] + plan.predicted["cached_bytes"] == pytest.approx(whole, rel=0.02)


def test_a_sweep_is_an_experiment_for_each_entry():
    points = [p.experiment for p in sweep_points(load_experiment("cleave-scaling"))]
    assert [p.topology.homes for p in points] == [2, 4, 8, 16, 32, 2, 4, 8]
    assert [p.training.runner for p in points] == ["cleave"] * 5 + ["tensor_parallel"] * 3
    assert not any(p.sweep for p in points)


def test_commands_for_one_network_say_that_they_take_no_sweep():
    loaded, warnings = load_experiment("cleave-scaling"), []
    network_setup(loaded, warnings)  # what exec, shell, plan and verify begin with, and whose warnings they print
    assert "without its sweep of 8 runs" in warnings[0]
    assert "cleave-scaling.yaml line" in warnings[0]
    warnings = []
    network_setup(sweep_points(loaded)[0], warnings)
    assert not warnings
    shown = CliRunner().invoke(cli, ["plan", "cleave-scaling", "--set", "topology.homes=1"], catch_exceptions=False)
    assert "without its sweep" in shown.output
