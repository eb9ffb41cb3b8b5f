"""From speed-test figures to link settings."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cluster import Link, LinkState, SharedLink
from testbed.scenario import link_model

SERVER = Link(1e9, 1e9, uplink_delay_s=0.002, downlink_delay_s=0.004)


def test_the_whole_path_has_the_traces_rtt():
    state = LinkState(50e6, 10e6, rtt_s=0.040)
    access = link_model.access_link(state, SERVER, shared_delay_s=0.003)
    d = access.delay
    to_server = d.up_delay_s + 0.003 + SERVER.downlink_delay_s
    from_server = SERVER.uplink_delay_s + 0.003 + d.down_delay_s
    assert to_server + from_server == pytest.approx(0.040)
    assert d.up_delay_s == d.down_delay_s == access.link.uplink_delay_s == access.link.downlink_delay_s


def test_an_rtt_below_the_fixed_part_is_cut_at_zero_and_told():
    access = link_model.access_link(LinkState(50e6, 10e6, rtt_s=0.010), SERVER, shared_delay_s=0.004)
    assert access.delay.up_delay_s == access.delay.down_delay_s == 0


def test_time_dilation_divides_rates_and_multiplies_times():
    state = LinkState(50e6, 10e6, rtt_s=0.046, jitter_s=0.004, loss=0.02)
    one, ten = (link_model.access_link(state, SERVER, tdf=tdf) for tdf in (1, 10))
    assert ten.link.downlink_bps == 5e6
    assert ten.link.uplink_bps == 1e6
    assert ten.delay.up_delay_s == pytest.approx(10 * one.delay.up_delay_s)
    assert ten.delay.up_jitter_s == pytest.approx(10 * one.delay.up_jitter_s)
    assert ten.delay.up_loss == one.delay.up_loss


@pytest.mark.parametrize("jitter_s", [0.001, 0.010])
def test_simulated_round_trips_have_the_jitter_asked_for(jitter_s):
    sigma = link_model.sigma_from_jitter(jitter_s)
    rng = random.Random(5)
    rtts = [1 + rng.gauss(0, sigma) + rng.gauss(0, sigma) for _ in range(40_000)]
    jitter = statistics.fmean(abs(b - a) for a, b in zip(rtts, rtts[1:]))
    assert jitter == pytest.approx(jitter_s, rel=0.02)
    assert link_model.jitter_from_sigma(sigma, sigma) == pytest.approx(jitter_s)


@given(st.floats(0, 0.99))
def test_both_directions_losses_make_the_round_trips(loss):
    way = link_model.one_way_loss(loss)
    assert 1 - (1 - way) ** 2 == pytest.approx(loss, abs=1e-9)


def test_the_servers_jitter_and_loss_are_taken_off():
    server = Link(1e9, 1e9, jitter_s=0.003, loss=0.01)
    access = link_model.access_link(LinkState(1e6, 1e6, 0.02, jitter_s=0.005, loss=0.05), server)
    theirs = link_model.server_delay(server)
    d = access.delay
    sigmas = (d.up_jitter_s, d.down_jitter_s, theirs.up_jitter_s, theirs.down_jitter_s)
    jitter = link_model.jitter_from_sigma(*sigmas)
    assert jitter == pytest.approx(0.005)
    through = (1 - d.up_loss) * (1 - d.down_loss) * (1 - theirs.up_loss) * (1 - theirs.down_loss)
    assert 1 - through == pytest.approx(0.05)


def test_a_server_worse_than_the_trace_leaves_nothing_for_the_home():
    server = Link(1e9, 1e9, jitter_s=0.009, loss=0.2)
    access = link_model.access_link(LinkState(1e6, 1e6, 0.02, jitter_s=0.005, loss=0.05), server)
    assert access.delay.up_jitter_s == access.delay.up_loss == access.link.loss == 0


def test_each_home_is_behind_its_own_shared_link():
    state = LinkState(1e6, 1e6, 0.040)
    east = SharedLink("east", ("a",), 1e8, 1e8, delay_s=0.005)
    found = link_model.access_links({"a": state, "b": state}, Link(1e9, 1e9), [east])
    assert found["a"].delay.up_delay_s == pytest.approx(0.015)
    assert found["b"].delay.up_delay_s == pytest.approx(0.020)


def test_a_full_frame_carries_1448_bytes_of_1514():
    assert link_model.wire_rate(1448e3) == pytest.approx(1514e3)
