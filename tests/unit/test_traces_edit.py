"""Drawing, cutting, joining and scaling traces."""

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.traces.edit import cut, sample, scale, splice
from testbed.traces.generate_availability import generate_availability
from testbed.traces.generate_links import generate_links


@pytest.fixture(scope="module")
def homes():
    return generate_links({"fttc": 60, "cable": 30, "dsl": 10}, seed=1, duration_s=4 * 3600)


def test_sample_draws_without_repetition_by_seed(homes):
    drawn = sample(homes, 20, seed=1)
    assert len(drawn) == 20
    assert list(drawn) == [n for n in homes if n in drawn]
    assert list(drawn) == list(sample(homes, 20, seed=1))
    assert list(drawn) != list(sample(homes, 20, seed=2))
    assert list(sample(homes, 100, seed=1)) == list(homes)


@pytest.mark.parametrize(("by", "field"), [("download", "down_bps"), ("upload", "up_bps"), ("rtt", "rtt_s")])
def test_stratified_sample_keeps_the_quantiles(homes, by, field):
    means = np.array([getattr(t, field).mean() for t in homes.values()])
    for seed in range(5):
        drawn = np.sort([getattr(t, field).mean() for t in sample(homes, 10, seed=seed, by=by).values()])
        bounds = np.sort(means).reshape(10, 10)  # one of each tenth
        assert ((drawn >= bounds[:, 0]) & (drawn <= bounds[:, -1])).all()


def test_sample_by_name_keeps_the_shares(homes):
    drawn = list(sample(homes, 10, seed=3, by="name"))
    assert [sum(n.startswith(p) for n in drawn) for p in ("fttc", "cable", "dsl")] == [6, 3, 1]


def test_sample_of_devices_by_availability():
    devices = generate_availability("evening", 40, seed=1)
    shares = sorted(t.fraction() for t in devices.values())
    drawn = sorted(t.fraction() for t in sample(devices, 4, seed=1, by="available").values())
    assert all(shares[10 * k] <= share <= shares[10 * k + 9] for k, share in enumerate(drawn))


@pytest.mark.parametrize(
    ("count", "by", "message"),
    [
        (101, None, "101 asked for; the file holds 100"),
        (5, "available", "is no property of links"),
        (5, "speed", "expected download, upload, rtt, loss or name"),
    ],
)
def test_sample_refuses(homes, count, by, message):
    with pytest.raises(InputError, match=message):
        sample(homes, count, seed=1, by=by)


def test_cut_and_splice_are_inverse(homes):
    trace = homes["fttc-01"]
    parts = [{"a": cut(trace, 0, 5000)}, {"a": cut(trace, 5000, trace.span_s)}]
    assert parts[1]["a"].at(0) == trace.at(5000)
    whole = splice(parts)["a"]
    assert whole.span_s == trace.span_s
    for t in (0, 899, 900, 4999, 5000, 9000, 14000):
        assert whole.at(t) == trace.at(t)
    device = generate_availability("flaky", 1, seed=2, days=3)["flaky-01"]
    whole = splice([{"d": cut(device, 0, 50_000)}, {"d": cut(device, 50_000, device.span_s)}])["d"]
    assert whole.intervals_s.tolist() == device.intervals_s.tolist()


def test_cut_and_splice_refuse(homes):
    trace = homes["fttc-01"]
    with pytest.raises(InputError, match="expected a part of fttc-01's 14400 s"):
        cut(trace, 0, 20_000)
    with pytest.raises(InputError, match="'fttc-01' is not in both part 1 and part 2"):
        splice([homes, {"x": trace}])


def test_scale(homes):
    trace = homes["cable-01"]
    got = scale({"a": trace}, time=0.5, download=2, upload=0.5, rtt=3, jitter=0, loss=0)["a"]
    assert got.span_s == trace.span_s / 2
    assert np.array_equal(got.times_s, trace.times_s / 2)
    assert np.array_equal(got.down_bps, trace.down_bps * 2)
    assert np.array_equal(got.rtt_s, trace.rtt_s * 3)
    assert not got.loss.any()
    devices = generate_availability("evening", 2, seed=1)
    assert scale(devices, time=2)["evening-01"].span_s == 2 * 86400


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"download": 0}, "--download: 0; expected a factor above 0"),
        ({"loss": -1}, "factors from 0 on"),
        ({"loss": 1e9}, "after scaling; expected a share of 0 to 1"),
        ({"rtt": 1e9}, "expected a delay of 0 to 600 s"),
    ],
)
def test_scale_refuses(homes, factors, message):
    with pytest.raises(InputError, match=message):
        scale(homes, **factors)
