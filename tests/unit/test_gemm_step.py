"""A transformer's products, and a whole step's plan."""

import numpy as np
import pytest
from gemm_checks import mixed_cluster, uniform_cluster

from runners.costs import layer_costs
from runners.planning.gemm import plan_gemm
from runners.planning.gemm_step import plan_step, step_tables
from runners.planning.transformer_gemms import gemms
from testbed.cluster import ModelSpec
from testbed.cluster.published import published

MODEL = ModelSpec(layers=3, d_model=32, heads=4, d_ff=64, sequence=16)


@pytest.mark.parametrize("model", [MODEL, *map(published, ("llama-2-13b", "llama-2-70b", "opt-1.3b", "gpt-3-125m"))])
def test_products_are_all_the_work_of_forward_and_backward(model):
    expected = sum(8 * (c.forward_flops + c.backward_flops) for c in layer_costs(model))
    assert sum(g.flops for g in gemms(model, 8)) == pytest.approx(expected, rel=1e-12)


def test_products_are_named_in_the_order_of_their_execution():
    names = [g.name for g in gemms(MODEL, 2)]
    assert len(names) == len(set(names)) == 3 * (6 * 3 + 1)
    assert names[:6] == [f"layer0.{p}.forward" for p in ("qkv", "scores", "values", "projection", "up", "down")]
    assert names[18:23] == ["head.forward", "head.dX", "head.dW", "layer2.down.dX", "layer2.down.dW"]
    assert names[-1] == "layer0.qkv.dW"


def test_backward_products_have_the_shapes_of_their_operands_gradients():
    by_name = {g.name: g for g in gemms(MODEL, 2)}
    for name, forward in by_name.items():
        if not name.endswith(".forward"):
            continue
        left, right = (by_name[name.replace(".forward", end)] for end in (".dX", ".dW"))
        assert (left.m, left.k, left.n) == (forward.m, forward.n, forward.k)
        assert (right.m, right.k, right.n) == (forward.k, forward.m, forward.n)
        assert left.batch == right.batch == forward.batch


def test_a_step_adds_up_and_equal_shapes_are_planned_once():
    cluster = mixed_cluster(np.random.default_rng(0), 5)
    products = gemms(MODEL, 4)
    step = plan_step(cluster, products, server_local=False)
    assert len(step.by_shape) < len(products)
    each = [plan_gemm(cluster, g, server_local=False) for g in products]
    assert step.makespan_s == pytest.approx(sum(p.makespan_s for p in each))
    assert step.server_out_bytes == sum(p.server_out_bytes for p in each)


def test_tables_add_up_to_the_step():
    cluster = mixed_cluster(np.random.default_rng(0), 5)
    products = gemms(MODEL, 4)
    step = plan_step(cluster, products, server_local=False)
    tables = step_tables(cluster, products, server_local=False)
    assert sum(r["count"] for r in tables["products"]) == len(products)
    assert sum(r["count"] * r["makespan_s"] for r in tables["products"]) == pytest.approx(tables["makespan_s"])
    assert sum(r["down_bytes"] for r in tables["devices"]) == tables["server_out_bytes"] == step.server_out_bytes
    assert sum(r["up_bytes"] for r in tables["devices"]) == tables["server_in_bytes"]
    assert sum(r["work_flops"] for r in tables["devices"]) == pytest.approx(sum(g.flops for g in products))
    assert tables["growth"][-1]["makespan_s"] == pytest.approx(tables["makespan_s"])
    names = [d.name for d in cluster.devices]
    for row in tables["devices"]:
        rest = [n for n in names if n != row["device"]]
        without = plan_step(cluster, products, devices=rest, server_local=False).makespan_s
        assert row["adds_s"] == pytest.approx(without - step.makespan_s)


def test_what_a_device_adds_among_many_is_near_what_planning_without_it_says():
    cluster = mixed_cluster(np.random.default_rng(2), 30)
    products = gemms(ModelSpec(layers=1, d_model=512, heads=8, d_ff=2048, sequence=128), 16)[:6]
    step = plan_step(cluster, products, server_local=False)
    rows = {r["device"]: r for r in step_tables(cluster, products, server_local=False)["devices"]}
    top = max(rows, key=lambda name: rows[name]["adds_s"])
    rest = [d.name for d in cluster.devices if d.name != top]
    exact = plan_step(cluster, products, devices=rest, server_local=False).makespan_s - step.makespan_s
    assert rows[top]["adds_s"] == pytest.approx(exact, rel=0.3)


def test_all_at_the_server_is_a_plan_too():
    tables = step_tables(uniform_cluster(3), gemms(MODEL, 1))
    assert {r["strategy"] for r in tables["products"]} == {"local"}
    assert tables["server_out_bytes"] == 0
    assert tables["server_out_grows_as_devices_to_the"] is None
    assert {r["binding"] for r in tables["devices"]} == {"not used"}
