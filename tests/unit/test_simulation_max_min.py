"""Max-min fair rates: against linear programs on random networks, and as properties of the network in motion."""

import asyncio
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from testbed.runtime.virtual_time import VirtualLoop
from testbed.simulation.flow import Flow, Link
from testbed.simulation.fluid import FluidNetwork
from testbed.simulation.max_min import water_fill

rates = st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.5, 10.0])


@st.composite
def networks(draw):
    links = list(range(draw(st.integers(1, 5))))
    capacity = {link: draw(rates) for link in links}
    paths = draw(
        st.lists(st.lists(st.sampled_from(links), min_size=1, max_size=3, unique=True), min_size=1, max_size=7)
    )
    limits = draw(st.lists(st.one_of(st.just(float("inf")), rates), min_size=len(paths), max_size=len(paths)))
    return paths, capacity, limits


def by_linear_programs(paths, capacity, limits):
    """The reference: raise the least rate as far as it goes, fix those who can't have more, go on with the others."""
    n = len(paths)
    a = np.array([[float(link in path) for path in paths] for link in capacity])
    b = np.array(list(capacity.values()))
    bounds = [(0, None if limit == float("inf") else limit) for limit in limits]
    fixed: dict[int, float] = {}
    while len(fixed) < n:
        free = [f for f in range(n) if f not in fixed]
        # variables: the rates, and the least free rate t
        rows = [np.append(row, 0.0) for row in a]
        for f in free:
            row = np.zeros(n + 1)
            row[f], row[n] = -1.0, 1.0
            rows.append(row)
        held = [(fixed[f], fixed[f]) if f in fixed else bounds[f] for f in range(n)]
        cost = np.zeros(n + 1)
        cost[n] = -1.0
        best = linprog(cost, A_ub=np.array(rows), b_ub=np.append(b, np.zeros(len(free))), bounds=[*held, (0, None)])
        t = -best.fun
        least = [(fixed[f], fixed[f]) if f in fixed else (t - 1e-9, bounds[f][1]) for f in range(n)]
        stuck = []
        for f in free:
            cost = np.zeros(n)
            cost[f] = -1.0
            if -linprog(cost, A_ub=a, b_ub=b + 1e-9, bounds=least).fun <= t + 1e-6:
                stuck.append(f)
        assert stuck
        fixed.update((f, t) for f in stuck)
    return [fixed[f] for f in range(n)]


@settings(max_examples=60, deadline=None)
@given(networks())
def test_rates_are_those_of_the_linear_programs(network):
    assert water_fill(*network) == pytest.approx(by_linear_programs(*network), abs=1e-5)


@settings(max_examples=200, deadline=None)
@given(networks())
def test_no_link_is_above_its_rate_and_every_flow_has_a_bottleneck(network):
    paths, capacity, limits = network
    got = water_fill(paths, capacity, limits)
    load = {link: sum(r for r, path in zip(got, paths) if link in path) for link in capacity}
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for rate, path, limit in zip(got, paths, limits):
        full = [link for link in path if load[link] >= capacity[link] * (1 - 1e-9)]
        largest = [max(r for r, other in zip(got, paths) if link in other) for link in full]
        assert rate == limit or any(rate >= most * (1 - 1e-9) for most in largest)


class Play:
    """A network with random arrivals, departures and changes, checked at each step against rates computed anew."""

    def __init__(self, seed: int, star: bool):
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.net = FluidNetwork(self.loop)
        self.loop.settle = self.net.settle
        self.links = [Link(f"l{i}", self.rng.choice([1, 2, 5, 10])) for i in range(self.rng.randint(3, 8))]
        self.star = star
        self.flows: list[Flow] = []
        self.asked: dict[Flow, float] = {}
        self.returned: dict[Flow, float] = {}

    def start(self) -> None:
        if self.star:
            path = (self.links[0], self.rng.choice(self.links[1:]))
        else:
            path = tuple(self.rng.sample(self.links, self.rng.randint(1, 3)))
        more = [3.0] * self.rng.randint(0, 2)

        def served() -> float:
            if more:
                self.asked[flow] += more[-1]
            return more.pop() if more else 0.0

        flow = Flow(path, served, self.rng.choice([float("inf"), 1.5]))
        self.asked[flow], self.returned[flow] = self.rng.uniform(0.5, 20), 0.0
        self.flows.append(flow)
        self.net.start(flow, self.asked[flow])

    def act(self) -> None:
        r = self.rng.random()
        if r < 0.6 or not self.flows:
            for _ in range(self.rng.choice([1, 1, 3])):
                self.start()
        elif r < 0.75:
            flow = self.rng.choice(self.flows)
            self.returned[flow] += self.net.stop(flow)
        elif r < 0.9:
            self.net.set_rate(self.rng.choice(self.links), self.rng.choice([0.5, 1, 3, 7]))
        else:
            flow = self.rng.choice(self.flows)
            if flow.active:
                self.asked[flow] += 2.0
                self.net.add(flow, 2.0)

    def check(self) -> None:
        self.net.settle()
        active = [f for f in self.flows if f.active]
        expected = water_fill([f.path for f in active], {x: x.rate for x in self.links}, [f.limit for f in active])
        assert [self.net.rate(f) for f in active] == pytest.approx(expected, rel=1e-6)

    async def run(self) -> None:
        carried, at, rate = [0.0] * len(self.links), 0.0, [x.rate for x in self.links]
        for _ in range(60):
            self.act()
            self.check()
            rate = [x.rate for x in self.links]
            await asyncio.sleep(self.rng.choice([0, 0.1, 1, 3]))
            self.check()
            self.net.count(self.links)
            for link, before, most in zip(self.links, carried, rate):
                assert link.carried - before <= most * (self.loop.now - at) * (1 + 1e-6) + 0.01
            carried, at = [x.carried for x in self.links], self.loop.now
        await asyncio.sleep(1e5)
        assert not any(f.active for f in self.flows)


@pytest.mark.parametrize("star", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_in_motion_rates_are_fair_bytes_are_conserved_and_links_keep_their_rate(seed, star):
    play = Play(seed, star)
    play.loop.run_until_complete(play.run())
    play.net.count(play.links)
    for link in play.links:
        passed = sum(play.asked[f] - play.returned[f] for f in play.flows if link in f.path)
        assert link.carried == pytest.approx(passed, rel=1e-6, abs=0.05)


def test_a_thousand_flows_that_share_one_link_cost_little_each():
    """Ends and arrivals in a pool move no other flow's entry: the work is counted in timers, not in time."""
    loop = VirtualLoop()
    net = FluidNetwork(loop)
    loop.settle = net.settle
    server = Link("server", 1000.0)
    ends = []
    for i in range(1000):
        flow = Flow((server, Link(f"h{i}", 2.0 + i % 7)), lambda: ends.append(loop.now) or 0.0)
        net.start(flow, 10.0 + i % 13)

    async def wait():
        await asyncio.sleep(1000)

    loop.run_until_complete(wait())
    assert len(ends) == 1000
    assert loop._order < 3000
    assert max(ends) >= sum(10.0 + i % 13 for i in range(1000)) / 1000 * (1 - 1e-9)
