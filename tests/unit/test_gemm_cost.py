"""The cost model: closed forms against search, sharing of links, and what a plan says of itself."""

import dataclasses
import math

import numpy as np
import pytest
from gemm_checks import mixed_cluster, uniform_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.planning.gemm import STREAMED, Gemm, Pool, area_bound_s, plan_gemm
from runners.planning.gemm_cost import fair_rates, least_time
from testbed.cluster import Link


def formula_s(device, rows, columns, k, b, chunks):
    """A block's seconds as docs/planning.md has it."""
    parts = (
        8 * b * k * (rows + columns) / device.link.downlink_bps,
        2 * rows * columns * k / device.flops,
        8 * b * rows * columns / device.link.uplink_bps,
    )
    rest = 0.0 if chunks == STREAMED else (sum(parts) - max(parts)) / chunks
    return device.link.uplink_delay_s + device.link.downlink_delay_s + max(parts) + rest


@pytest.mark.parametrize("chunks", [1, 3, STREAMED])
def test_a_block_takes_what_the_formula_says(chunks):
    cluster = mixed_cluster(np.random.default_rng(1), 5, spread=2)
    costs = Pool(cluster, chunks=chunks).costs(48, 4, np.arange(5))
    for rows, columns in ((1, 1), (7, 300), (1000, 20)):
        expected = [formula_s(d, rows, columns, 48, 4, chunks) for d in cluster.devices]
        assert costs.time_s(np.full(5, rows), np.full(5, columns)) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 3, STREAMED]),
    st.integers(1, 50),
    st.integers(1, 50),
    st.floats(0.001, 10),
)
def test_the_largest_block_in_a_time_is_the_largest(seed, chunks, m, n, seconds):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 3000))
    cluster = mixed_cluster(rng, 4, spread=3, memory=[1 << 40, 4 * (20 * k + 100), 4 * (2 * k + 1), 10])
    costs = Pool(cluster, chunks=chunks).costs(k, 4, np.arange(4))
    areas = costs.block_areas(seconds, m, n)
    bounds = costs.areas(seconds, m, n)
    for i, device in enumerate(cluster.devices):
        best = max(
            (
                r * c
                for r in range(1, m + 1)
                for c in range(1, n + 1)
                if formula_s(device, r, c, k, 4, chunks) <= seconds and 4 * (k * (r + c) + r * c) <= device.memory_bytes
            ),
            default=0,
        )
        assert areas[i] >= best * (1 - 1e-9)
        assert bounds[i] >= best * (1 - 1e-9)
    heights = costs.heights(np.full(4, float(n)), costs.budgets(seconds))
    for i, device in enumerate(cluster.devices):
        rows = math.floor(heights[i])
        if 1 <= rows < 1e9:
            assert formula_s(device, rows, n, k, 4, chunks) <= seconds * (1 + 1e-9)
            assert 4 * (k * (rows + n) + rows * n) <= device.memory_bytes
            more = rows + 1
            assert (
                formula_s(device, more, n, k, 4, chunks) > seconds * (1 - 1e-9)
                or 4 * (k * (more + n) + more * n) > device.memory_bytes
            )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=30), st.floats(1, 1e10))
def test_fair_shares_use_the_link_up_and_are_equal_where_they_are_cut(rates, capacity):
    rates = np.array(rates)
    shares = fair_rates(rates, capacity)
    assert (shares <= rates * (1 + 1e-12)).all()
    assert shares.sum() == pytest.approx(min(rates.sum(), capacity), rel=1e-6)
    cut = shares < rates * (1 - 1e-9)
    assert not cut.any() or np.ptp(shares[cut]) <= 1e-6 * shares[cut].max()
    assert not cut.any() or (shares[~cut] <= shares[cut].max() * (1 + 1e-9)).all()


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(0.5, 3), st.floats(0, 10))
def test_least_time_brackets_where_the_target_is_reached(target, power, delay):
    def amount(t):
        return max(t - delay, 0.0) ** power

    low, high = least_time(amount, target, 1.0)
    assert amount(low) < target <= amount(high)
    assert high <= low * (1 + 1e-6)
    assert least_time(lambda t: min(t, 1.0), 2.0, 1.0) is None


def test_a_plan_adds_up():
    cluster = mixed_cluster(np.random.default_rng(2), 9)
    gemm = Gemm("test", 1000, 300, 700, element_bytes=2)
    plan = plan_gemm(cluster, gemm, server_local=False)
    for name, share in plan.per_device.items():
        (block,) = [b for b in plan.blocks if b.device == name]
        assert share.down_bytes == 2 * 300 * (block.rows + block.columns)
        assert share.up_bytes == 2 * block.rows * block.columns
        assert share.flops == 2 * 300 * block.rows * block.columns
        assert share.memory_bytes == share.down_bytes + share.up_bytes
        assert share.time_s == pytest.approx(formula_s(cluster.device(name), block.rows, block.columns, 300, 2, 1))
    assert plan.server_out_bytes == sum(s.down_bytes for s in plan.per_device.values())
    assert plan.server_in_bytes == 2 * 1000 * 700
    assert plan.makespan_s == max(s.time_s for s in plan.per_device.values())
    assert sum(s.flops for s in plan.per_device.values()) == gemm.flops


def test_what_binds_a_device_is_named():
    def binding(gemm=None, server=1e15, chunks=1, **settings):
        plan = plan_gemm(
            uniform_cluster(4, server=server, **settings),
            gemm or Gemm("test", 512, 512, 512),
            server_local=False,
            chunks=chunks,
        )
        return {s.binding for s in plan.per_device.values()}

    assert binding(flops=1e8, up=1e9, down=1e9) == {"compute"}
    assert binding(flops=1e15, up=1e9, down=1e6) == {"downlink"}
    assert binding(flops=1e15, up=1e5, down=1e9) == {"uplink"}
    assert binding(flops=1e15, up=1e12, down=1e12, delay=0.2) == {"delay"}
    assert binding(flops=1e15, up=1e9, down=1e9, server=1e6, chunks=1) == {"server"}
    assert "memory" in binding(memory=4 * (512 * 100 + 2500), flops=1e9)


def test_the_servers_link_limits_and_devices_that_only_load_it_are_dropped():
    gemm = Gemm("test", 1024, 1024, 1024)
    free = plan_gemm(uniform_cluster(64), gemm, server_local=False)
    tight = plan_gemm(uniform_cluster(64, server=1e8), gemm, server_local=False)
    assert len(tight.per_device) < len(free.per_device) == 64
    assert tight.server_out_bytes < free.server_out_bytes
    assert tight.makespan_s >= 8 * tight.server_out_bytes / 1e8
    assert (
        tight.makespan_s
        < plan_gemm(uniform_cluster(64, server=1e8), gemm, server_local=False, devices=["h0", "h1"]).makespan_s
    )


def test_a_device_behind_a_long_delay_is_dropped():
    cluster = uniform_cluster(4)
    far = dataclasses.replace(cluster.devices[0], link=Link(1e7, 5e7, 5.0, 5.0))
    plan = plan_gemm(
        dataclasses.replace(cluster, devices=(far, *cluster.devices[1:])), Gemm("test", 64, 64, 64), server_local=False
    )
    assert set(plan.per_device) == {"h1", "h2", "h3"}


def test_products_stay_at_the_server_when_it_is_quicker_and_the_plan_says_so():
    cluster = uniform_cluster(4)
    small = plan_gemm(cluster, Gemm("test", 16, 16, 16))
    assert small.local
    assert small.makespan_s == pytest.approx(2 * 16**3 / 1e9)
    assert "at the server" in small.reason
    large = plan_gemm(cluster, Gemm("test", 4096, 4096, 4096))
    assert not large.local
    assert large.makespan_s < large.gemm.flops / 1e9


def test_streaming_is_never_slower_than_one_after_the_other():
    cluster = mixed_cluster(np.random.default_rng(5), 8)
    gemm = Gemm("test", 2048, 256, 1024)
    times = [plan_gemm(cluster, gemm, server_local=False, chunks=c).makespan_s for c in (1, 2, 8, STREAMED)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.8 * times[0]


@pytest.mark.parametrize("chunks", [1, STREAMED])
def test_no_plan_beats_the_area_bound_whatever_the_server(chunks):
    rng = np.random.default_rng(7)
    for server in (1e7, 1e9, 1e12):
        cluster = mixed_cluster(rng, 20, spread=2, server=server)
        for gemm in (Gemm("a", 600, 64, 90), Gemm("b", 64, 32, 64, batch=9), Gemm("c", 2000, 500, 2000)):
            plan = plan_gemm(cluster, gemm, server_local=False, chunks=chunks)
            assert plan.makespan_s >= area_bound_s(cluster, gemm, chunks=chunks) * (1 - 1e-6)
