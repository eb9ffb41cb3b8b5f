"""Cross traffic without a network: when it runs at which rate, and what is refused."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup
from testbed.scenario import cross_traffic as x
from testbed.scenario.cross_traffic import Stream


def test_constant_traffic_begins_and_ends():
    assert x.constant(5e6, 10, 20) == ((10, 5e6), (20, 0.0))


def test_fixed_periods_are_exact():
    assert x.on_off(5e6, 2, 3, 1, 12, seed=None) == ((1, 5e6), (3, 0.0), (6, 5e6), (8, 0.0), (11, 5e6), (12, 0.0))


def test_random_periods_come_from_the_seed_and_have_the_mean():
    changes = x.on_off(5e6, 2, 6, 0, 20_000, seed="7/h1")
    assert changes == x.on_off(5e6, 2, 6, 0, 20_000, seed="7/h1")
    assert changes != x.on_off(5e6, 2, 6, 0, 20_000, seed="7/h2")
    lengths = {True: [], False: []}
    for (t, rate), (after, _) in zip(changes, changes[1:]):
        lengths[rate > 0].append(after - t)
    assert statistics.mean(lengths[True]) == pytest.approx(2, rel=0.1)
    assert statistics.mean(lengths[False]) == pytest.approx(6, rel=0.1)
    assert statistics.stdev(lengths[True]) == pytest.approx(2, rel=0.15)  # exponential


@given(st.floats(0.01, 50), st.floats(0.01, 50), st.floats(0, 100), st.floats(0.1, 500), st.sampled_from([None, "a"]))
def test_changes_are_ascending_within_their_time_and_end_in_silence(on_s, off_s, begin, length, seed):
    changes = x.on_off(1e6, on_s, off_s, begin, begin + length, seed=seed)
    times = [t for t, _ in changes]
    assert times == sorted(set(times))
    assert begin <= times[0]
    assert times[-1] <= begin + length
    assert changes[-1][1] == 0


def test_too_many_changes_are_refused():
    with pytest.raises(ValueError, match="longer periods"):
        x.on_off(1e6, 1e-3, 1e-3, 0, 1e4, seed=None)
    with pytest.raises(ValueError, match="longer steps"):
        x.from_samples([(0, 1.0), (1e-3, 2.0)], 0, 1e4, end="loop")


def test_a_trace_loops_holds_or_stops():
    samples = [(100, 1e6), (102, 4e6), (104, 0.0)]
    assert x.from_samples(samples, 0, 9, end="loop") == ((0, 1e6), (2, 4e6), (4, 0.0), (6, 1e6), (8, 4e6), (9, 0.0))
    assert x.from_samples([(0, 1e6), (2, 4e6)], 1, 9, end="hold") == ((1, 1e6), (3, 4e6), (9, 0.0))
    assert x.from_samples([(0, 1e6), (2, 4e6)], 1, 9, end="stop") == ((1, 1e6), (3, 4e6), (5, 0.0))
    assert x.from_samples(samples, 0, 3, end="hold", time_scale=2) == ((0, 1e6), (1, 4e6), (2, 0.0))
    assert x.from_samples([(5, 1e6)], 0, 3, end="loop") == ((0, 1e6), (3, 0.0))


def test_a_stream_seen_from_a_later_start():
    stream = Stream("h1", "down", ((2, 1e6), (5, 0.0), (8, 3e6)))
    assert stream.later(3).changes == ((0.0, 1e6), (2, 0.0), (5, 3e6))
    assert stream.later(6).changes == ((2, 3e6),)
    assert stream.rate_at(1) == 0
    assert stream.peak_bps() == 3e6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time,rate\n0,1 Mbit/s\n2 min,0\n", [(0, 1e6), (120, 0)]),
        ("time_s,rate_mbps\n0,1\n1.5,2.5\n", [(0, 1e6), (1.5, 2.5e6)]),
        ("# made by hand\n\ntime_ms,home,rate_kbps\n0,a,1\n1500,a,0\n", [(0, 1e3), (1.5, 0)]),
        ("\ufefftime,rate_bps\n0,8\n", [(0, 8)]),
    ],
)
def test_traces_are_read(tmp_path, text, expected):
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert x.read_rates(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no samples"),
        ("time,rate\n", "has no samples"),
        ("t,r\n1,2\n", "columns t, r: expected one named 'time'"),
        ("time,rate\n0,5\n", "line 2, column rate: '5' has no unit"),
        ("time,rate_mbps\n0,x\n", "line 2, column rate: 'x' is not a rate"),
        ("time,rate_mbps\n0,-1\n", "line 2, column rate: '-1' is negative"),
        ("time,rate_mbps\n0,1\n0,2\n", "line 3: time 0 s does not come after 0 s"),
        ("time,rate_mbps\n0\n", "line 2, column rate"),
        ("time,rate_mbps\nnan,1\n", "line 2, column time"),
    ],
)
def test_bad_traces_are_refused_with_their_line(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        x.read_rates(path)
    assert message in str(error.value)


def loaded(tmp_path, *cross: str, **overrides: str):
    sets = [f"cross_traffic=[{', '.join(cross)}]", *(f"{k}={v}" for k, v in overrides.items())]
    return load_experiment("smoke", tuple(sets))


def test_streams_of_an_experiment(tmp_path):
    trace = tmp_path / "tv.csv"
    trace.write_text("time_s,rate_mbps\n0,4\n10,0\n")
    setup = run_setup(
        loaded(
            tmp_path,
            "{rate: 2 Mbit/s, direction: both, homes: [h2]}",
            f"{{trace: {trace}, end: stop, start: 5 s}}",
            "{rate: 1 Mbit/s, burst: 1 s, pause: 2 s, homes: [h1], stop: 30 s}",
            time_limit="60 s",
        )
    )
    streams = setup.network.cross_traffic
    assert [(s.home, s.direction) for s in streams] == [
        ("h2", "down"),
        ("h2", "up"),
        ("h1", "down"),
        ("h2", "down"),
        ("h3", "down"),
        ("h1", "down"),
    ]
    assert streams[0].changes == ((0, 2e6), (60, 0.0))
    assert streams[2].changes == ((5, 4e6), (15, 0.0))
    assert streams[5].changes[-1] == (30, 0.0) or streams[5].changes[-1][0] < 30
    assert not any("cross traffic" in w for w in setup.warnings)


def test_traffic_that_fills_a_link_is_warned_of(tmp_path):
    setup = run_setup(loaded(tmp_path, "{rate: 30 Mbit/s, homes: [h1]}", "{rate: 12 Mbit/s, homes: [h1]}"))
    assert "h1: up to 42 Mbit/s of cross traffic fill its downlink, 40 Mbit/s at the least" in setup.warnings


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        ("{homes: [h9], rate: 1 Mbit/s}", "unknown home 'h9'"),
        ("{homes: [h1]}", "expected either rate or trace"),
        ("{rate: 1 Mbit/s, trace: x.csv}", "expected either rate or trace"),
        ("{rate: 1 Mbit/s, burst: 1 s}", "expected both or neither"),
        ("{rate: 1}", "has no unit"),
        ("{rate: 1 Mbit/s, direction: sideways}", "'down', 'up' or 'both'"),
        ("{rate: 1 Mbit/s, start: 2 h}", "is not before its end"),
        ("{trace: nowhere.csv}", "no such file"),
        ("{rate: 1 Mbit/s, bursts: 1 s}", "did you mean 'burst'?"),
        ("{rate: 1 Mbit/s, burst: 1 ms, pause: 1 ms, periods: fixed}", "expected longer periods"),
    ],
)
def test_bad_sections_are_refused(tmp_path, cross, message):
    with pytest.raises(InputError) as error:
        run_setup(loaded(tmp_path, cross))
    assert message in str(error.value)
