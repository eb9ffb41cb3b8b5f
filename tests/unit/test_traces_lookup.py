"""LinkTrace, Availability and assign: answers depend on the time asked alone."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from testbed.cluster import LinkState
from testbed.errors import InputError
from testbed.traces import Availability, LinkTrace, TraceEnded, assign, read_links


def link(times=(0.0, 10.0, 20.0), down=(1e6, 2e6, 3e6), span=30.0):
    n = len(times)
    return LinkTrace(
        "a", np.array(times), np.array(down), np.array(down) / 10, np.full(n, 0.02), np.zeros(n), np.zeros(n), span
    )


def test_step_holds_each_sample_until_the_next():
    trace = link()
    assert [trace.at(t).down_bps for t in (0, 9.999, 10, 19.9, 20, 29.9)] == [1e6, 1e6, 2e6, 2e6, 3e6, 3e6]
    assert trace.at(12) == LinkState(2e6, 2e5, 0.02, 0.0, 0.0)


def test_loop_hold_and_stop_at_the_end():
    trace = link()
    assert trace.at(30).down_bps == 1e6
    assert trace.at(75).down_bps == 2e6
    assert trace.at(75, end="hold").down_bps == 3e6
    with pytest.raises(TraceEnded, match="ends at 30 s; asked for 30 s"):
        trace.at(30, end="stop")


def test_linear_joins_samples_and_wraps_when_looping():
    trace = link()
    assert trace.at(5, interpolate="linear").down_bps == pytest.approx(1.5e6)
    assert trace.at(25, interpolate="linear").down_bps == pytest.approx(2e6)  # from 3e6 back to 1e6
    assert trace.at(25, interpolate="linear", end="hold").down_bps == 3e6


def test_changes_scale_time_and_leave_out_what_does_not_change():
    trace = link(times=(0, 10, 20, 40), down=(1e6, 1e6, 2e6, 3e6), span=60)
    got = [(r, s.down_bps) for r, s in trace.changes(20, time_scale=4)]
    assert got == [(0, 1e6), (5, 2e6), (10, 3e6), (15, 1e6)]
    assert [r for r, _ in trace.changes(20, time_scale=4, end="stop")] == [0, 5, 10]
    got = [(r, s.down_bps) for r, s in trace.changes(5, offset_s=38, time_scale=4)]
    assert got == [(0, 2e6), (0.5, 3e6)]


def test_changes_agree_with_at_everywhere():
    generator = random.Random(7)
    for _ in range(50):
        times = sorted({0.0, *(round(generator.uniform(0, 50), 2) for _ in range(6))})
        rates = [1e6 * generator.randint(1, 3) for _ in times]
        trace = link(times, rates, span=times[-1] + generator.uniform(1, 9))
        offset, scale = generator.uniform(0, 200), generator.uniform(0.5, 5)
        changes = trace.changes(100, offset_s=offset, time_scale=scale)
        assert all(a[1] != b[1] for a, b in itertools.pairwise(changes))
        for _ in range(20):
            r = generator.uniform(0, 100)
            if any(abs(r - c) < 1e-6 for c, _ in changes):
                continue
            current = [s for c, s in changes if c <= r][-1]
            assert current == trace.at(offset + r * scale)


def test_linear_changes_are_sampled_at_the_resolution():
    got = link().changes(10, interpolate="linear", resolution_s=2.5)
    assert [r for r, _ in got] == [0, 2.5, 5, 7.5]
    assert [s.down_bps for _, s in got] == pytest.approx([1e6, 1.25e6, 1.5e6, 1.75e6])


def test_wrong_choices_name_the_nearest():
    with pytest.raises(InputError, match="did you mean 'loop'"):
        link().at(1, end="lop")
    with pytest.raises(InputError, match="did you mean 'linear'"):
        link().at(1, interpolate="linea")


def device(*intervals, span=40.0):
    return Availability("d", np.array(intervals, dtype=float).reshape(-1, 2), span)


def test_available_is_stateless_however_slowly_it_is_polled():
    # 10 s on, 10 s off, polled every 25 s: a reader that moves one interval a call gets this wrong
    trace = device((0, 10), (20, 30))
    for t in [25.0 * k for k in range(40)] + [3.0, 999.0, 15.0]:
        assert trace.available(t) is (t % 20 < 10)


def test_availability_ends():
    trace = device((0, 10), (30, 40))
    assert trace.available(45)
    assert trace.available(1000, end="hold")
    assert not device((0, 10)).available(1000, end="hold")
    with pytest.raises(TraceEnded):
        trace.available(40, end="stop")
    assert not device().available(5)


def test_availability_changes():
    trace = device((5, 10), (20, 40))
    assert trace.changes(40) == [(0, False), (5, True), (10, False), (20, True)]
    assert trace.changes(50) == [(0, False), (5, True), (10, False), (20, True), (40, False), (45, True)]
    assert trace.changes(20, offset_s=10, time_scale=2) == [(0, False), (5, True), (15, False), (17.5, True)]
    # on at the end and at the beginning: nothing changes at the border of two rounds
    assert device((0, 10), (20, 40)).changes(60) == [(0, True), (10, False), (20, True), (50, False)]
    assert device((0, 40)).changes(500) == [(0, True)]


def test_availability_changes_agree_with_available():
    generator = random.Random(3)
    for _ in range(50):
        edges = sorted({round(generator.uniform(0, 40), 1) for _ in range(8)})
        edges = edges[: len(edges) // 2 * 2]
        trace = device(*zip(edges[::2], edges[1::2]))
        offset, scale = generator.uniform(0, 200), generator.uniform(0.3, 9)
        for end in ("loop", "hold"):
            changes = trace.changes(100, offset_s=offset, time_scale=scale, end=end)
            assert all(a[1] != b[1] for a, b in itertools.pairwise(changes))
            for r in [generator.uniform(0, 100) for _ in range(30)]:
                if not any(abs(r - c) < 1e-6 for c, _ in changes):
                    current = [s for c, s in changes if c <= r][-1]
                    assert current == trace.available(offset + r * scale, end=end)


def test_fraction():
    trace = device((0, 10), (30, 40))
    assert trace.fraction() == 0.5
    assert trace.fraction(20) == 0.5
    assert trace.fraction(60) == pytest.approx(30 / 60)
    assert trace.fraction(80, end="hold") == pytest.approx(60 / 80)


def test_assign_methods():
    assert assign(["a", "b", "c"], ["x", "y"]) == {"a": "x", "b": "y", "c": "x"}
    drawn = assign(list("abcd"), list("wxyz"), "random", seed=1)
    assert sorted(drawn.values()) == list("wxyz")
    assert drawn == assign(list("abcd"), list("wxyz"), "random", seed=1)
    assert drawn != assign(list("abcd"), list("wxyz"), "random", seed=2)
    assert assign(["a", "b"], ["x", "a"], "by-name", mapping={"b": "x"}) == {"a": "a", "b": "x"}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"method": "one-to-one"}, "one-to-one needs a trace for each of 3 names; the file holds 2"),
        ({"method": "round-robbin"}, "did you mean 'round-robin'"),
        ({"method": "by-name"}, "unknown trace 'a'"),
        ({"method": "by-name", "mapping": {"q": "x"}}, "unknown name 'q'"),
        ({"method": "by-name", "mapping": {"a": "xx", "b": "x", "c": "x"}}, "assign.a: unknown trace 'xx'"),
        ({"method": "random", "mapping": {"a": "x"}}, "only 'by-name' uses one"),
    ],
)
def test_assign_refuses(kwargs, message):
    with pytest.raises(InputError, match=message):
        assign(["a", "b", "c"], ["x", "y"], **kwargs)


def test_looked_up_values_are_plain_floats():
    """Settings cross process boundaries as msgpack, which knows no NumPy."""
    path = Path(__file__).resolve().parents[2] / "traces" / "links" / "lte.csv"
    trace = next(iter(read_links(path).values()))
    for interpolate in ("step", "linear"):
        state = trace.at(12.3, interpolate=interpolate)
        assert {type(v) for v in vars(state).values()} == {float}
