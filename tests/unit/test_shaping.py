"""Command lines of the shaping, read without root."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.network import shaping
from testbed.emulation.network.shaping import Shape, access_link, add_bottleneck, change_bottleneck, shape


@pytest.mark.parametrize(
    ("mbps", "rate_bps", "burst", "quantum", "limit"),
    [
        (0.1, 104_558, 3028, 3028, 6056),  # two frames of burst, four of buffer, however slow
        (1, 1_045_580, 3028, 3028, 13_070),
        (10, 10_455_801, 3028, 3028, 130_698),
        (20, 20_911_602, 5228, 5228, 261_396),
        (100, 104_558_011, 26_140, 26_140, 1_306_976),
        (1000, 1_045_580_110, 261_396, 200_000, 13_069_752),
        (10_000, 10_455_801_105, 2_613_951, 200_000, 130_697_514),
    ],
)
def test_burst_quantum_and_buffer_scale_with_the_rate(mbps, rate_bps, burst, quantum, limit):
    assert shape(mbps * 1e6, 0.1) == Shape(rate_bps, burst, quantum, limit)


@given(st.floats(1e3, 1e11), st.floats(1e-3, 10))
def test_every_shape_is_one_that_the_kernel_takes_in_silence(goodput_bps, buffer_s):
    s = shape(goodput_bps, buffer_s)
    assert s.rate_bps == pytest.approx(goodput_bps * 1514 / 1448, rel=1e-3)
    assert 1000 <= s.quantum_bytes <= 200_000  # less is 'small', more is 'big' in the kernel's log
    assert s.burst_bytes >= 1514  # a burst below one frame starves the class
    assert s.burst_bytes <= max(2 * 1514, s.rate_bps / 8 * shaping.BURST_S + 1)  # not a second's worth
    assert s.limit_bytes >= 4 * 1514
    assert min(s.rate_bps / 8 * buffer_s, 2**32 - 1) <= s.limit_bytes < 2**32


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_impossible_rates_are_refused(rate):
    with pytest.raises(ValueError, match="positive"):
        shape(rate, 0.1)
    with pytest.raises(ValueError, match="positive"):
        shape(1e6, rate)


def test_another_mtu_has_another_share_of_headers():
    assert shape(9e6, 0.1, mtu=9000).rate_bps == round(9e6 * 9014 / 8948)


def test_a_bottleneck_is_htb_with_a_byte_limited_fifo():
    assert add_bottleneck("x3", shape(20e6, 0.1)) == [
        "qdisc add dev x3 root handle 1: htb default 1",
        "class add dev x3 parent 1: classid 1:1 htb rate 20911602bit ceil 20911602bit "
        "burst 5228b cburst 5228b quantum 5228",
        "qdisc add dev x3 parent 1:1 handle 10: bfifo limit 261396b",
    ]


def test_changes_are_in_place_only():
    lines = change_bottleneck("x3", shape(20e6, 0.1), shape(5e6, 0.2))
    assert lines == [
        "class change dev x3 parent 1: classid 1:1 htb rate 5227901bit ceil 5227901bit "
        "burst 3028b cburst 3028b quantum 3028",
        "qdisc change dev x3 parent 1:1 handle 10: bfifo limit 130698b",
    ]


def test_what_stays_the_same_is_not_touched():
    assert change_bottleneck("x3", shape(20e6, 0.1), shape(20e6, 0.1)) == []
    only_buffer = change_bottleneck("x3", shape(20e6, 0.1), shape(20e6, 0.2))
    assert [line.split(" dev")[0] for line in only_buffer] == ["qdisc change"]


def test_an_access_link_shapes_neither_direction_on_its_senders_own_egress():
    up, down = shape(20e6, 0.1), shape(100e6, 0.1)
    lines = access_link("p1", "x1", "y1", up, down)
    shaped = {line.split(" dev ")[1].split()[0]: line for line in lines if " htb rate " in line}
    assert set(shaped) == {"x1", "y1"}  # not h1-eth0, the host's own
    assert f"rate {up.rate_bps}bit" in shaped["x1"]
    assert f"rate {down.rate_bps}bit" in shaped["y1"]


def test_the_uplink_is_mirrored_and_the_original_dropped():
    lines = access_link("p1", "x1", "y1", shape(1e6, 0.1), shape(1e6, 0.1))
    every = "protocol all prio 1 u32 match u32 0 0"
    assert [line for line in lines if line.startswith("filter")] == [
        f"filter add dev p1 ingress {every} action mirred egress mirror dev x1 drop",
        f"filter add dev x1 ingress {every} action mirred egress redirect dev p1",
    ]
