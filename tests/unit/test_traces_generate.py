"""Generated populations have the quantiles that their presets quote; a seed gives the same traces."""

from pathlib import Path

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.traces.generate_availability import generate_availability
from testbed.traces.generate_links import generate_links, mixed
from testbed.traces.presets import AVAILABILITY, LEVELS, LINKS

WITHIN = 0.05
REAL = Path(__file__).resolve().parents[3] / "shared/traces/collection/A_speedtest"


@pytest.fixture(scope="module")
def populations():
    return {name: list(generate_links({name: 200}, seed=5).values()) for name in LINKS}


def quantiles(values):
    return np.quantile(values, LEVELS)


@pytest.mark.parametrize("preset", LINKS)
@pytest.mark.parametrize(
    ("field", "quoted", "factor"),
    [
        ("down_bps", "down_mbps", 1e-6),
        ("up_bps", "up_mbps", 1e-6),
        ("rtt_s", "rtt_ms", 1e3),
        ("jitter_s", "jitter_ms", 1e3),
        ("loss", "loss_pct", 1e2),
    ],
)
def test_means_of_homes_have_the_quoted_quantiles(populations, preset, field, quoted, factor):
    got = quantiles([getattr(t, field).mean() * factor for t in populations[preset]])
    expected = np.array(getattr(LINKS[preset], quoted))
    assert got[expected > 0] == pytest.approx(expected[expected > 0], rel=WITHIN)
    assert (got[expected == 0] < 1e-3).all()


@pytest.mark.parametrize("preset", LINKS)
@pytest.mark.parametrize(("field", "quoted"), [("down_bps", "down_dip"), ("up_bps", "up_dip")])
def test_daily_dips_have_the_quoted_quantiles(populations, preset, field, quoted):
    dips = [1 - getattr(t, field).min() / getattr(t, field).mean() for t in populations[preset]]
    assert quantiles(dips) == pytest.approx(getattr(LINKS[preset], quoted), rel=WITHIN)


@pytest.mark.parametrize("preset", LINKS)
def test_download_and_upload_rank_together_as_quoted(populations, preset):
    from scipy.stats import spearmanr

    down, up, rtt = (
        np.array([getattr(t, f).mean() for t in populations[preset]]) for f in ("down_bps", "up_bps", "rtt_s")
    )
    expected = LINKS[preset].rank_correlation
    assert spearmanr(down, up)[0] == pytest.approx(expected[0], abs=0.12)
    assert spearmanr(down, rtt)[0] == pytest.approx(expected[1], abs=0.15)
    assert np.median(down / up) > 2


def test_evenings_are_slower_and_samples_follow_each_other(populations):
    relative = np.array([t.down_bps / t.down_bps.mean() for t in populations["lte"]])
    assert relative[:, 80:88].mean() < 0.85 < 1.1 < relative[:, 8:16].mean()  # 20 to 22 h, 2 to 4 h
    residual = relative - relative.mean(axis=0)
    lag1 = np.mean([np.corrcoef(r[:-1], r[1:])[0, 1] for r in residual])
    assert 0.4 < lag1 < 0.75


def test_same_seed_same_traces():
    a, b, c = (generate_links({"cable": 3, "lte": 2}, seed=s) for s in (1, 1, 2))
    assert list(a) == ["cable-01", "cable-02", "cable-03", "lte-01", "lte-02"]
    assert all(np.array_equal(a[n].down_bps, b[n].down_bps) for n in a)
    assert not any(np.array_equal(a[n].down_bps, c[n].down_bps) for n in a)


def test_part_of_a_day_and_several_days():
    trace = generate_links({"fttc": 1}, seed=1, duration_s=7200, step_s=300, start_hour=18)["fttc-01"]
    assert (len(trace), trace.span_s, trace.times_s[-1]) == (24, 7200, 6900)
    trace = generate_links({"fttc": 1}, seed=1, duration_s=3 * 86400, step_s=3600)["fttc-01"]
    assert len(trace) == 72


def test_mixed_population_adds_up():
    for homes in (1, 7, 24, 1000):
        assert sum(mixed(homes).values()) == homes
    assert mixed(1000) == pytest.approx({"dsl": 56, "fttc": 584, "cable": 214, "fibre": 147}, abs=1)


@pytest.mark.parametrize("preset", ["evening", "overnight-idle"])
def test_sessions_have_the_quoted_quantiles(preset):
    traces = generate_availability(preset, 300, seed=3).values()
    lengths = [sum(b - a for a, b in t.intervals_s.tolist()) / 60 for t in traces]  # one session, cut at midnight
    assert quantiles(lengths) == pytest.approx(AVAILABILITY[preset].length_min, rel=WITHIN)


def test_office_computers():
    traces = list(generate_availability("office", 300, seed=3).values())
    always = sum(t.fraction() == 1 for t in traces)
    assert always / 300 == pytest.approx(0.56, abs=0.01)
    others = [t.intervals_s for t in traces if t.fraction() < 1]
    lengths = [float((i[:, 1] - i[:, 0]).sum()) / 60 for i in others]
    assert quantiles(lengths) == pytest.approx(AVAILABILITY["office"].length_min, rel=WITHIN)
    assert all(7 * 3600 <= i[0, 0] < 10 * 3600 for i in others)


def test_renewals_have_the_quoted_distributions():
    traces = generate_availability("flaky", 600, seed=3, days=90).values()
    half = 45 * 86400  # of sessions that begin in the first half, hardly any outlives the second
    up = (
        np.concatenate(
            [np.diff(t.intervals_s[(t.intervals_s[:, 0] > 0) & (t.intervals_s[:, 0] < half)]).ravel() for t in traces]
        )
        / 3600
    )
    shape, scale = AVAILABILITY["flaky"].up_weibull
    levels = np.array([0.25, 0.5, 0.75, 0.95])
    assert np.quantile(up, levels) == pytest.approx(scale * (-np.log(1 - levels)) ** (1 / shape), rel=WITHIN)
    gaps = (
        np.concatenate([(t.intervals_s[1:, 0] - t.intervals_s[:-1, 1])[t.intervals_s[:-1, 1] < half] for t in traces])
        / 3600
    )
    mu, _ = AVAILABILITY["flaky"].down_lognormal
    assert np.median(gaps) == pytest.approx(np.exp(mu), rel=WITHIN)


def test_unknown_presets_name_the_nearest():
    with pytest.raises(InputError, match="did you mean 'fibre'"):
        generate_links({"fiber": 2}, seed=1)
    with pytest.raises(InputError, match="did you mean 'evening'"):
        generate_availability("evenings", 2, seed=1)


TECHNOLOGY = {
    "dsl": "ADSL2+",
    "fttc": "FTTC",
    "cable": "Cable",
    "fibre": "FTTP",
    "lte": "Fixed Wireless",
    "satellite": "Satellite",
}


@pytest.mark.parametrize("preset", LINKS)
def test_presets_are_the_panels_own_figures(preset):
    """Recompute what a preset quotes from Ofcom's table, where that is at hand."""
    file = REAL / "ofcom_panellist_2023-03" / "panellist_2023-03.csv"
    if not file.exists():
        pytest.skip("Ofcom's panel (../shared/traces/collection) is not here")
    import pandas as pd

    panel = pd.read_csv(file)
    homes, p = panel[panel["technology"] == TECHNOLOGY[preset]], LINKS[preset]
    down, up = homes["Download - 24 (ave)"], homes["Upload - 24 (ave)"]
    assert len(homes) == p.homes_measured
    jitter = homes["Jitter-upstream - 24h"] + homes["Jitter-downstream - 24h"]
    for values, quoted in (
        (down, p.down_mbps),
        (up, p.up_mbps),
        (homes["Latency - 24h"], p.rtt_ms),
        (jitter, p.jitter_ms),
        (homes["Packet Loss - 24h"] * 100, p.loss_pct),
        (1 - homes["Download - 24 min (ave)"] / down, p.down_dip),
        (1 - homes["Upload - 24 min(ave)"] / up, p.up_dip),
    ):
        assert values.dropna().quantile(LEVELS).tolist() == pytest.approx(quoted, rel=2e-3, abs=1e-9)
