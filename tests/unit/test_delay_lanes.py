"""The delay line's arithmetic: who waits how long, in which order, and who is lost."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.delay.lanes import LOST, Lanes
from testbed.scenario.link_model import PathDelay

MS = 1_000_000
DELAYS = {"a": PathDelay(0.010, 0.002), "b": PathDelay(0.005, 0.001), "server": PathDelay(0.003, 0.004)}


def lanes(delays=DELAYS, areas=None, shared=None, seed=1) -> Lanes:
    return Lanes(delays, areas or {}, shared or {}, seed)


def test_one_way_delay_is_the_senders_up_and_the_receivers_down():
    two = lanes()
    assert two.lane("a", "server").due(0) == 14 * MS
    assert two.lane("server", "a").due(0) == 5 * MS
    assert two.lane("a", "b").due(0) == 11 * MS


@pytest.mark.parametrize(
    ("pair", "extra_ms"),
    [(("a", "server"), 7), (("server", "a"), 7), (("a", "b"), 7 + 9), (("a", "c"), 0), (("c", "b"), 7 + 9)],
)
def test_each_shared_link_on_the_way_adds_its_delay_and_none_within_a_neighbourhood(pair, extra_ms):
    delays = {name: PathDelay(0.001, 0.001) for name in ("a", "b", "c", "server")}
    all_of = lanes(delays, {"a": "east", "c": "east", "b": "west"}, {"east": 0.007, "west": 0.009})
    assert all_of.lane(*pair).due(0) == (2 + extra_ms) * MS


def test_a_sender_outside_the_run_has_no_delay_of_its_own():
    assert lanes().lane("", "a").due(0) == 2 * MS


def test_a_change_holds_for_packets_that_arrive_later_and_keeps_the_order():
    all_of = lanes()
    lane = all_of.lane("a", "server")
    assert lane.due(0) == 14 * MS
    all_of.set({"a": PathDelay(0.001, 0.0)})
    assert lane.due(1 * MS) == 14 * MS  # due at 6 ms, but not before the one ahead of it
    assert lane.due(10 * MS) == 15 * MS


def test_a_change_back_to_zero_resets_everything():
    all_of = lanes({"a": PathDelay(0.01, 0, 0.002, 0, 1.0, 0)})
    lane = all_of.lane("a", "server")
    assert lane.due(0) == LOST
    all_of.set({"a": PathDelay()})
    assert lane.due(5 * MS) == 5 * MS
    assert (lane.delay, lane.jitter, lane.loss) == (0, 0, 0.0)


@given(st.lists(st.integers(0, 5 * MS), min_size=2, max_size=60), st.floats(0, 0.02))
def test_packets_keep_their_order_whatever_the_jitter(gaps, jitter_s):
    lane = lanes({"a": PathDelay(0.01, 0, jitter_s)}).lane("a", "server")
    arrivals = [sum(gaps[:i]) for i in range(len(gaps))]
    dues = [lane.due(t) for t in arrivals]
    assert dues == sorted(dues)
    assert all(due >= arrived for due, arrived in zip(dues, arrivals))


def test_with_reordering_some_packets_overtake():
    lane = lanes({"a": PathDelay(0.01, 0, 0.003, reorder=0.5)}).lane("a", "server")
    dues = [lane.due(i * MS // 10) for i in range(500)]
    assert any(later < earlier for earlier, later in zip(dues, dues[1:]))


def test_jitter_of_both_ends_adds_in_squares():
    lane = lanes({"a": PathDelay(0.05, 0, 0.003), "server": PathDelay(0, 0, 0, 0.004)}).lane("a", "server")
    extra = [lane.due(i * 1000 * MS) - i * 1000 * MS for i in range(4000)]
    assert statistics.fmean(extra) == pytest.approx(50 * MS, abs=0.3 * MS)
    assert statistics.stdev(extra) == pytest.approx(5 * MS, rel=0.05)


def pattern(seed: int, loss: float = 0.1, others: int = 0) -> list[bool]:
    all_of = lanes({"a": PathDelay(up_loss=loss), "b": PathDelay(up_loss=0.5)}, seed=seed)
    found = []
    for i in range(300):
        for _ in range(others):  # what other pairs carry must not matter
            all_of.lane("b", "server").due(i)
        found.append(all_of.lane("a", "server").due(i) == LOST)
    return found


def test_one_seed_gives_one_pattern_of_losses_whatever_other_pairs_carry():
    assert pattern(7) == pattern(7, others=3)
    assert pattern(7) != pattern(8)


def test_jitter_does_not_change_which_packets_are_lost():
    def lost(jitter_s):
        lane = lanes({"a": PathDelay(0.05, 0, jitter_s, 0, 0.2)}).lane("a", "server")
        return [lane.due(i) == LOST for i in range(200)]

    assert lost(0.0) == lost(0.01)


def test_losses_of_both_ends_combine():
    n, p = 20_000, 1 - 0.95 * 0.9
    lane = lanes({"a": PathDelay(up_loss=0.05), "server": PathDelay(down_loss=0.1)}).lane("a", "server")
    lost = sum(lane.due(i) == LOST for i in range(n))
    assert abs(lost - n * p) < 2.6 * math.sqrt(n * p * (1 - p))  # 99 %, and the seed makes it certain


def test_the_shortest_delay_is_known():
    all_of = lanes()
    assert all_of.shortest == 0
    all_of.lane("a", "server")
    all_of.lane("server", "a")
    assert all_of.shortest == 5 * MS
    all_of.set({"server": PathDelay(0.0, 0.0)})
    assert all_of.shortest == 2 * MS
    all_of.set({"server": PathDelay(0.0, 0.0, up_jitter_s=0.0005)})
    assert all_of.shortest == 1 * MS  # of 98 % of the packets
    all_of.set({"server": PathDelay(0.0, 0.0, up_jitter_s=0.002)})
    assert all_of.shortest == 0


@pytest.mark.parametrize("bad", [{"up_delay_s": -0.1}, {"down_jitter_s": float("nan")}, {"up_loss": 1.1}])
def test_impossible_delays_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        PathDelay(**bad)
