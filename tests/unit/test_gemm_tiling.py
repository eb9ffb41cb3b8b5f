"""Whatever the cluster: blocks cover the product exactly once, and no block is larger than its device's memory."""

import dataclasses

import numpy as np
import pytest
from gemm_checks import assert_memory_holds, chunk_counts, clusters, coverage, mixed_cluster, products, uniform_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.planning.gemm import Block, Cached, Gemm, Rates, plan_gemm, replan
from testbed.cluster import SharedLink
from testbed.cluster.model import SERVER
from testbed.errors import InputError


@settings(max_examples=1600, deadline=None)
@given(clusters(), products(), chunk_counts)
def test_blocks_cover_the_product_exactly_once_within_memory(cluster, gemm, chunks):
    smallest = gemm.element_bytes * (2 * gemm.k + 1)
    try:
        plan = plan_gemm(cluster, gemm, server_local=False, chunks=chunks)
    except InputError:
        assert all(d.memory_bytes < smallest for d in cluster.devices)
        return
    assert not plan.local
    assert (coverage(gemm, plan.blocks) == 1).all()
    assert_memory_holds(cluster, gemm, plan.blocks)
    assert plan.makespan_s >= plan.bound_s * (1 - 1e-6)
    assert set(plan.per_device) == {b.device for b in plan.blocks} <= {d.name for d in cluster.devices}


@settings(max_examples=400, deadline=None)
@given(clusters(), products(), chunk_counts, st.data())
def test_a_new_plan_covers_exactly_what_was_unfinished(cluster, gemm, chunks, data):
    blocks = plan_gemm(cluster, gemm, chunks=chunks, server_local=True).blocks
    try:
        blocks = plan_gemm(cluster, gemm, chunks=chunks, server_local=False).blocks
    except InputError:
        pass
    chosen = data.draw(st.sets(st.integers(0, len(blocks) - 1), max_size=12))
    unfinished = [blocks[i] for i in chosen]
    names = data.draw(st.lists(st.sampled_from([d.name for d in cluster.devices]), unique=True))
    again = replan(cluster, gemm, unfinished, names, chunks=chunks)
    assert (coverage(gemm, again) == coverage(gemm, unfinished)).all()
    assert_memory_holds(cluster, gemm, again)
    assert {b.device for b in again} <= {*names, SERVER}


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 1000), (1000, 5, 1), (3, 2, 4), (1, 1, 7)])
@pytest.mark.parametrize("devices", [1, 2, 7, 8, 14, 15, 60, 400])
def test_more_devices_than_rows_times_columns(shape, devices):
    m, k, n = shape
    gemm = Gemm("test", m, k, n)
    plan = plan_gemm(uniform_cluster(devices), gemm, server_local=False)
    assert (coverage(gemm, plan.blocks) == 1).all()
    assert len(plan.per_device) <= min(devices, m * n)


def test_devices_without_memory_speed_or_rate_get_nothing():
    cluster = mixed_cluster(np.random.default_rng(0), 6)
    useless = [
        dataclasses.replace(cluster.devices[0], memory_bytes=0),
        dataclasses.replace(cluster.devices[1], flops=0.0),
        dataclasses.replace(cluster.devices[2], link=dataclasses.replace(cluster.devices[2].link, uplink_bps=0.0)),
    ]
    cluster = dataclasses.replace(cluster, devices=(*useless, *cluster.devices[3:]))
    gemm = Gemm("test", 50, 40, 30)
    plan = plan_gemm(cluster, gemm, server_local=False)
    assert "h3" in plan.per_device
    assert not {"h0", "h1", "h2"} & set(plan.per_device)
    assert (coverage(gemm, plan.blocks) == 1).all()


def test_a_device_a_million_times_faster_does_it_all_and_one_as_slow_nothing():
    cluster = uniform_cluster(5)
    fast = dataclasses.replace(
        cluster.devices[2],
        flops=1e16,
        link=dataclasses.replace(cluster.devices[2].link, uplink_bps=1e13, downlink_bps=5e13),
    )
    cluster = dataclasses.replace(cluster, devices=(*cluster.devices[:2], fast, *cluster.devices[3:]))
    plan = plan_gemm(cluster, Gemm("test", 500, 500, 500), server_local=False)
    assert set(plan.per_device) == {"h2"}


def test_small_memory_takes_more_blocks_not_more_memory():
    gemm = Gemm("test", 400, 64, 400)
    cluster = uniform_cluster(3, memory=4 * (64 * 60 + 900))
    plan = plan_gemm(cluster, gemm, server_local=False)
    assert len(plan.blocks) > 3
    assert (coverage(gemm, plan.blocks) == 1).all()
    assert_memory_holds(cluster, gemm, plan.blocks)


def test_what_no_device_can_hold_stays_at_the_server_or_is_refused():
    cluster = uniform_cluster(3, memory=100)
    gemm = Gemm("test", 4, 64, 4)
    plan = plan_gemm(cluster, gemm)
    assert plan.local
    assert plan.blocks == (Block(SERVER, 0, 4, 0, 4),)
    assert "memory" in plan.reason
    with pytest.raises(InputError, match="memory"):
        plan_gemm(cluster, gemm, server_local=False)
    assert replan(cluster, gemm, [Block("h0", 0, 2, 0, 4)], ["h1", "h2"]) == (Block(SERVER, 0, 2, 0, 4),)


def test_memory_that_would_take_no_end_of_blocks_is_refused_for_what_it_is():
    cluster = uniform_cluster(2, memory=4 * (2 * 64 + 1))
    with pytest.raises(InputError, match="more than 50,000 blocks"):
        plan_gemm(cluster, Gemm("test", 1000, 64, 1000), server_local=False)
    assert plan_gemm(cluster, Gemm("test", 1000, 64, 1000)).local


def test_small_memory_costs_little_time():
    """Blocks are as square as memory lets them be, on each device; the bound counts on that and on nothing lost."""
    for memory in (10_000, 50_000, 400_000):
        cluster = mixed_cluster(np.random.default_rng(memory), 5, memory=[memory, 3 * memory])
        for gemm in (Gemm("one", 300, 200, 500), Gemm("many", 64, 200, 96, batch=11)):
            plan = plan_gemm(cluster, gemm, server_local=False)
            assert (coverage(gemm, plan.blocks) == 1).all()
            assert_memory_holds(cluster, gemm, plan.blocks)
            assert plan.makespan_s <= 1.35 * plan.bound_s


def test_without_devices():
    cluster = uniform_cluster(2)
    gemm = Gemm("test", 4, 4, 4)
    assert plan_gemm(cluster, gemm, devices=[]).local
    with pytest.raises(InputError, match="no devices"):
        plan_gemm(cluster, gemm, devices=[], server_local=False)
    assert replan(cluster, gemm, [], ["h0"]) == ()
    with pytest.raises(KeyError):
        plan_gemm(cluster, gemm, devices=["h9"])


def test_measured_rates_move_work_away_from_a_device_that_became_slow():
    cluster = uniform_cluster(4)
    gemm = Gemm("test", 256, 256, 256)
    slow = Rates(1e10, 1e6, 5e6, 0.01, 0.01)
    before = plan_gemm(cluster, gemm, server_local=False)
    after = plan_gemm(cluster, gemm, server_local=False, rates={"h1": slow})

    def area(plan):
        return sum(b.rows * b.columns for b in plan.blocks if b.device == "h1")

    assert area(after) < area(before) / 3
    assert max(s.time_s for s in after.per_device.values()) == after.makespan_s


def test_a_shared_neighbourhood_link_counts():
    cluster = uniform_cluster(6, down=5e7)
    gemm = Gemm("test", 512, 512, 512)
    alone = plan_gemm(cluster, gemm, server_local=False)
    behind = dataclasses.replace(cluster, shared_links=(SharedLink("street", ("h0", "h1", "h2"), 1e7, 2e7),))
    shared = plan_gemm(behind, gemm, server_local=False)
    assert shared.makespan_s > alone.makespan_s

    def area(plan, names):
        return sum(b.rows * b.columns for b in plan.blocks if b.device in names)

    assert area(shared, ("h0", "h1", "h2")) < area(shared, ("h3", "h4", "h5"))


def test_cached_columns_are_kept_and_not_counted():
    cluster = mixed_cluster(np.random.default_rng(3), 6)
    gemm = Gemm("test", 300, 128, 200)
    first = plan_gemm(cluster, gemm, server_local=False)
    held = Cached(columns={b.device: (b.col0, b.col1) for b in first.blocks})
    second = plan_gemm(cluster, gemm, server_local=False, cached=held)
    assert (coverage(gemm, second.blocks) == 1).all()
    assert second.server_out_bytes < first.server_out_bytes
    assert second.makespan_s < first.makespan_s
    rows = sum(b.rows for b in second.blocks)
    missing = sum(b.columns for b in second.blocks if held.columns.get(b.device) != (b.col0, b.col1))
    assert second.server_out_bytes == 4 * gemm.k * (rows + missing)
    both = Cached(rows={b.device: (b.row0, b.row1) for b in first.blocks}, columns=held.columns)
    assert plan_gemm(cluster, gemm, server_local=False, cached=both).makespan_s <= second.makespan_s * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(clusters(8), products(), st.data())
def test_plans_with_caches_cover_exactly_once_too(cluster, gemm, data):
    gemm = dataclasses.replace(gemm, batch=1)
    try:
        first = plan_gemm(cluster, gemm, server_local=False)
    except InputError:
        return
    some = [first.blocks[i] for i in data.draw(st.sets(st.integers(0, len(first.blocks) - 1), max_size=8))]
    cached = Cached(
        rows={b.device: (b.row0, b.row1) for b in some}, columns={b.device: (b.col0, b.col1) for b in first.blocks}
    )
    plan = plan_gemm(cluster, gemm, server_local=False, cached=cached)
    assert (coverage(gemm, plan.blocks) == 1).all()
    assert_memory_holds(cluster, gemm, plan.blocks)
