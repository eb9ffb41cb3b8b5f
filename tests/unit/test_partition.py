"""The partition search against trying everything."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.planning.partition import Chain, Search, Worker
from runners.planning.paths import path, transfer_s
from testbed.cluster import Cluster, Device, Link, SharedLink


def bottleneck(chain, workers, spans, chosen):
    """By the words of the definition, one term after the other; infinite if something does not fit."""
    worst = 0.0
    last = len(spans) - 1
    for p, ((first, end), w) in enumerate(zip(spans, chosen)):
        worker = workers[w]
        if chain.memory_bytes(first, end, len(spans) - p) > worker.memory_bytes:
            return math.inf
        crossing = (chain.boundary_bytes[first - 1] if p > 0 else 0) + (
            chain.boundary_bytes[end - 1] if p < last else 0
        )
        worst = max(worst, sum(chain.flops[first:end]) / worker.flops)
        worst = max(worst, 8 * crossing / worker.link.uplink_bps, 8 * crossing / worker.link.downlink_bps)
        if p < last:
            after = workers[chosen[p + 1]]
            nbytes = chain.boundary_bytes[end - 1]
            worst = max(worst, transfer_s(nbytes, worker.link, after.link), transfer_s(nbytes, after.link, worker.link))
    return worst


def everything(layers, devices, stages):
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        edges = [0, *cuts, layers]
        for chosen in itertools.combinations(range(devices), stages):
            yield list(zip(edges, edges[1:])), chosen


@st.composite
def problems(draw):
    layers = draw(st.integers(1, 6))
    flops = draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    nbytes = draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    weight = draw(st.lists(st.integers(1, 5), min_size=layers, max_size=layers))
    held = draw(st.integers(1, 3))
    rate, delay = st.integers(1, 50), st.sampled_from([0.0, 0.3, 4.0])
    workers = [
        Worker(f"w{i}", draw(st.integers(1, 4)), draw(st.sampled_from([4, 9, 20, 100])),
               Link(draw(rate), draw(rate), draw(delay), draw(delay)))
        for i in range(draw(st.integers(1, 5)))
    ]  # fmt: skip

    def memory(first, end, from_end):
        return sum(weight[first:end]) + min(from_end, held) * (end - first)

    return Chain(flops, nbytes, memory), workers


@settings(max_examples=150, deadline=None)
@given(problems())
def test_least_bottleneck_for_every_number_of_stages(problem):
    chain, workers = problem
    search = Search(chain, workers)
    for stages in range(1, min(len(chain.flops), len(workers)) + 1):
        tried = [bottleneck(chain, workers, s, c) for s, c in everything(len(chain.flops), len(workers), stages)]
        if math.isinf(min(tried)):
            assert stages not in search.best
            continue
        for found in (search.best[stages], search.quickest(stages)):
            assert found.bottleneck == pytest.approx(min(tried))
            assert bottleneck(chain, workers, found.spans, found.workers) == pytest.approx(min(tried))
    assert all(k <= min(len(chain.flops), len(workers)) for k in search.best)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_tightest_is_the_split_whose_fullest_device_is_least_full(problem):
    chain, workers = problem
    search = Search(chain, workers)
    for stages in range(1, search.deepest + 1):

        def fullest(spans, chosen, stages=stages):
            return max(chain.memory_bytes(f, e, stages - p) / workers[w].memory_bytes
                       for p, ((f, e), w) in enumerate(zip(spans, chosen)))  # fmt: skip

        found, tight = search.tightest(stages)
        best = min(fullest(s, c) for s, c in everything(len(chain.flops), len(workers), stages))
        assert found.bottleneck == pytest.approx(best)
        (first, end), w = found.spans[tight], found.workers[tight]
        assert chain.memory_bytes(first, end, stages - tight) / workers[w].memory_bytes == pytest.approx(best)


def worker(name, flops=1.0, memory=100, up=8e9, down=8e9, delay=0.0):
    return Worker(name, flops, memory, Link(up, down, delay, delay))


def chain(layers=6, flops=1.0, nbytes=1.0, memory=lambda first, end, k: end - first):
    return Chain([flops] * layers, [nbytes] * layers, memory)


def test_a_faster_device_gets_more_layers():
    best = Search(chain(), [worker("slow"), worker("fast", flops=2.0)]).best[2]
    assert best.spans == ((0, 2), (2, 6))
    assert best.bottleneck == pytest.approx(2.0)


def test_a_hopeless_device_stays_a_spare():
    best = Search(chain(), [worker("a"), worker("snail", flops=0.01), worker("b")]).best
    assert best[2].workers == (0, 2)
    assert best[2].bottleneck < best[3].bottleneck


def test_a_slow_uplink_is_put_where_nothing_leaves():
    # the slow uplink has to return gradients, so it is best left out altogether
    devices = [worker("a"), worker("slow up", up=1.0), worker("b")]
    assert Search(chain(), devices).best[2].workers == (0, 2)


def test_early_1f1b_stages_need_more_memory():
    devices = [worker("small", memory=4), worker("large", memory=100)]
    fit = Search(chain(memory=lambda first, end, k: k * (end - first)), devices).best[2]
    assert fit.spans[0] == (0, 2)  # twice the activations of the last stage


def test_more_devices_than_the_search_looks_at():
    devices = [worker(f"d{i}", flops=1.0 if i % 150 else 5.0) for i in range(600)]
    best = Search(chain(layers=4), devices).best[4]
    assert [i % 150 for i in best.workers] == [0, 0, 0, 0]
    assert best.bottleneck == pytest.approx(0.2)


def test_shared_links_are_on_the_path():
    link = Link(10e6, 100e6, 0.01, 0.02)
    devices = tuple(Device(n, 1e9, 1, link) for n in ("in", "out"))
    shared = SharedLink("street", ("in",), uplink_bps=5e6, downlink_bps=200e6, delay_s=0.005)
    cluster = Cluster(Device("server", 1e9, 1, link), devices, (shared,))
    assert path(cluster, devices[0]) == Link(5e6, 100e6, 0.015, 0.025)
    assert path(cluster, devices[1]) == link
    assert transfer_s(1e6, path(cluster, devices[0]), link) == pytest.approx(8 / 5 + 0.015 + 0.02)
