"""All-reduces give every member the same sum, and the time models know what they cost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_checks import MODEL, cluster, job, of, run

from runners.collectives import ALGORITHMS, Collective
from runners.data_parallel.helpers import choose_helpers
from runners.data_parallel.planner import cut_buckets
from runners.data_parallel.timing import ring_s
from runners.messaging import Outbox
from runners.planning.paths import connection_bps, transfer_s
from runners.planning.shares import whole_shares
from runners.planning.tcp import fair_rates, slow_start_s
from runners.tensor_parallel.timing import all_reduce_s
from testbed.cluster import Link
from testbed.cluster.tcp import INITIAL_WINDOW, MAX_WINDOW
from testbed.runtime import Plan
from testbed.runtime.local import LocalEngine


class Reducer:
    """Every device reduces three tensors of `floats` whole numbers."""

    def __init__(self, algorithm="ring", floats=23, op=torch.add, chunk=5):
        self.algorithm, self.floats, self.op, self.chunk = algorithm, floats, op, chunk

    async def coordinate(self, node, plan):
        for device in plan.cluster.devices:
            await node.recv(device.name, "done")

    async def work(self, node, plan):
        names = [d.name for d in plan.cluster.devices]
        rank = names.index(node.name)
        outbox = Outbox(node)
        collective = Collective(node, outbox, names, "sum", self.chunk, self.algorithm)
        for turn in range(3):
            mine = [torch.arange(self.floats, dtype=torch.float32) * (r + 1) - turn * r for r in range(len(names))]
            found = await collective.all_reduce(mine[rank], self.op)
            expected = mine[0]
            for other in mine[1:]:
                expected = self.op(expected, other)
            assert torch.equal(found, expected)
        await node.send("server", "done")
        await outbox.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("members", "floats"), [(1, 4), (2, 23), (3, 1), (5, 23), (8, 100)])
def test_every_member_gets_the_sum_exactly(algorithm, members, floats):
    for op in (torch.add, torch.maximum):
        engine = LocalEngine(Plan("reducer", MODEL, job(), cluster(members)), Reducer(algorithm, floats, op))
        events = run(engine)
        assert len(of(events, "transfer", tag="done")) == members


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_member_sends_what_the_formula_says(algorithm):
    events = run(LocalEngine(Plan("reducer", MODEL, job(), cluster(4)), Reducer(algorithm, 4000, chunk=500)))
    sent = sum(e["bytes"] for e in of(events, "send", node="home1", tag="sum"))
    messages = len(of(events, "send", node="home1", tag="sum"))
    assert sent - 60 * messages < 3 * 2 * 3 / 4 * 16_000 < sent  # headers are some 50 bytes


def test_even_ring_takes_its_closed_form():
    link = Link(8e6, 80e6, 0.01, 0.02)
    for n in (2, 3, 7):
        found = ring_s([link] * n, [[0.0]] * n, [n * 10_000], idle=False)
        assert found == pytest.approx(2 * (n - 1) * (0.01 + 0.03))
        assert all_reduce_s([link] * n, n * 10_000, "ring", idle=False) == pytest.approx(found)
        direct = all_reduce_s([link] * n, n * 10_000, "direct", idle=False)
        assert direct == pytest.approx(2 * ((n - 1) * 0.01 + 0.03))


def test_a_large_ring_is_about_what_a_followed_one_is(monkeypatch):
    links = [Link(8e6 * (1 + i % 2), 80e6, 0.005, 0.005) for i in range(12)]
    ready = [[0.4, 0.2]] * 12
    followed = ring_s(links, ready, [4e5, 4e5])
    monkeypatch.setattr("runners.data_parallel.timing.SIMULATED", 0)
    assert ring_s(links, ready, [4e5, 4e5]) == pytest.approx(followed, rel=0.25)


@given(st.integers(0, 40), st.lists(st.floats(0.1, 50.0), min_size=1, max_size=5), st.data())
@settings(max_examples=300, deadline=None)
def test_whole_shares_are_as_quick_as_can_be(total, speeds, data):
    most = [data.draw(st.integers(0, total)) for _ in speeds]
    if sum(most) < total:
        with pytest.raises(ValueError):
            whole_shares(total, speeds, most)
        return
    shares = whole_shares(total, speeds, most)
    assert sum(shares) == total
    assert all(0 <= s <= m for s, m in zip(shares, most))
    longest = max(s / f for s, f in zip(shares, speeds))
    # with any less time, the devices together could not do it all
    room = sum(min(m, int(longest * (1 - 1e-9) * f)) for m, f in zip(most, speeds))
    assert total == 0 or room < total


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8), st.floats(1.0, 500.0))
def test_fair_rates_fill_the_link_and_favour_nobody(rates, capacity):
    shared = fair_rates(rates, capacity)
    assert sum(shared) == pytest.approx(min(capacity, sum(rates)))
    level = max(shared)
    assert all(s == pytest.approx(min(r, level)) for s, r in zip(shared, rates))


def test_slow_start_costs_round_trips_until_the_window_fills_the_link():
    assert slow_start_s(INITIAL_WINDOW, 1e9, 0.1) == 0.0  # leaves in one window
    assert slow_start_s(1e6, 1e6, 0.01) == 0.0  # ten segments are more than the link holds
    one_round = slow_start_s(2 * INITIAL_WINDOW, 1e9, 0.1)
    assert one_round == pytest.approx(0.1 - 8 * INITIAL_WINDOW / 1e9)
    assert slow_start_s(1e7, 1e8, 0.1) == pytest.approx(sum(0.1 - 8 * 2**k * INITIAL_WINDOW / 1e8 for k in range(7)))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.integers(1, 15))
def test_buckets_are_the_layers_in_order(parameters, count):
    spans = cut_buckets(parameters, count)
    assert len(spans) == min(count, len(parameters))
    assert [i for a, z in spans for i in range(a, z)] == list(range(len(parameters)))
    assert all(a < z for a, z in spans)


def test_helpers_with_slow_uplinks_stay_out():
    assert sorted(choose_helpers([1.0, 1.0, 1.0], [0.1, 0.1, 9.0], 10.0)) == [0, 1]
    assert sorted(choose_helpers([1.0, 1.0, 1.0], [0.1, 0.1, 0.5], 10.0)) == [0, 1, 2]
    assert choose_helpers([1.0], [5.0], 1.0) == [0]


def test_one_connection_carries_a_window_each_round_trip_on_a_long_way():
    """200 Mbit/s at 150 ms: planned 24.9 s, emulated 29.5 s, since the sockets' buffers hold 3 MiB of payload."""
    long = Link(200e6, 200e6, 0.075 / 2, 0.075 / 2)  # each end's half of the round trip
    assert connection_bps(long, long) == pytest.approx(8 * MAX_WINDOW / 0.15)
    assert transfer_s(8e6, long, long) == pytest.approx(8e6 * 0.15 / MAX_WINDOW + 0.075)
    short = Link(200e6, 200e6, 0.005, 0.005)
    assert connection_bps(short, short) == 200e6
