"""Verification without a network: statistics, retries, which points and homes, what is written."""

from __future__ import annotations

import errno
import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from testbed.cli import cli, main
from testbed.errors import InputError
from testbed.measurement.thresholds import Thresholds
from testbed.verification import grid, output, throughput
from testbed.verification.rows import Row, judged, passed, retry_each, shown, unjudged
from testbed.verification.statistics import Spread, binomial_interval, gap_deviations, step_up, window_deviations
from testbed.verification.verify import Verification, choose, mean_rate_row

FACTS = {"kernel": "6.1.0", "delay_backend": "nfqueue", "switch": "bridge", "time": "2026-01-02T03:04:05+0000"}


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 100, 0.0, 0.03622), (5, 100, 0.01643, 0.11283), (50, 100, 0.39832, 0.60168), (100, 100, 0.96378, 1.0)],
)
def test_exact_binomial_intervals(hits, trials, low, high):
    """Values of R's binom.test."""
    assert binomial_interval(hits, trials) == pytest.approx((low, high), abs=1e-5)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(7)
    for p in (0.0025, 0.05):
        hits = draw.binomial(1500, p, 400)
        covered = sum(low <= p <= high for low, high in (binomial_interval(int(k), 1500) for k in hits))
        assert covered >= 0.93 * 400


@pytest.mark.parametrize(("timers_late", "verdict"), [((0.01, 0.01), False), ((0.01, 0.3), None), ((0.3,), None)])
def test_packet_gaps_are_judged_where_timers_allow_it(monkeypatch, timers_late, verdict):
    """The machine's timers are measured again when a row would fail by them."""
    calls, draw = [], np.random.default_rng(1)

    def floor(gap_s, count, spin):
        if not spin:
            calls.append(timers_late[len(calls)] * gap_s)
        return draw.uniform(0, 0.001 * gap_s if spin else calls[-1], count)

    monkeypatch.setattr(throughput, "timer_floor_s", floor)
    measured = throughput.Throughput(SimpleNamespace(tdf=1.0), {}, {}, Thresholds(), None, print)
    fine = measured._gap_row("h1", "down", Spread(0.01, 0.02, 0.05), 0.001)
    assert fine.ok is True
    assert len(calls) == 1  # for nothing depends on it
    row = measured._gap_row("h1", "down", Spread(0.01, 0.02, 0.5), 0.001)
    assert row.ok is verdict
    assert len(calls) == len(timers_late)


@pytest.mark.parametrize(("hits", "trials"), [(1, 0), (-1, 10), (11, 10)])
def test_impossible_counts_are_refused(hits, trials):
    with pytest.raises(ValueError, match="expected"):
        binomial_interval(hits, trials)


def test_gaps_of_a_perfect_link_deviate_by_nothing_and_a_late_packet_shows_twice():
    arrivals = np.arange(100) * 0.01
    assert gap_deviations(arrivals, 0.01) == pytest.approx(0, abs=1e-9)
    arrivals[50] += 0.004
    late = gap_deviations(arrivals, 0.01)
    assert sorted(late)[-2:] == pytest.approx([0.4, 0.4])
    assert sum(late > 1e-6) == 2


def test_a_late_packet_whose_followers_catch_up_hardly_shows_over_longer_spans():
    arrivals = np.arange(1000) * 0.001
    arrivals[300] += 0.0005  # an end of a span of 100
    assert window_deviations(arrivals, 0.001, 0.1).max() == pytest.approx(0.005)
    slow = np.arange(1000) * 0.0011
    assert window_deviations(slow, 0.001, 0.1) == pytest.approx(0.1)


def test_spread_of_nothing_is_unknown():
    assert math.isnan(Spread.of(np.array([])).p99)


@given(st.integers(3, 97), st.integers(0, 10_000))
def test_a_step_is_found_where_it_is(at, seed):
    noise = np.random.default_rng(seed).normal(0, 0.001, 100)
    values = np.where(np.arange(100) < at, 0.02, 0.05) + noise
    assert step_up(np.arange(100) * 1.0, values, 0.02, 0.05) == at


def test_no_step_is_no_time():
    assert step_up(np.arange(9.0), np.full(9, 0.02), 0.02, 0.05) is None
    assert step_up(np.arange(9.0), np.full(9, 0.05), 0.02, 0.05) is None
    assert step_up(np.array([]), np.array([]), 0.02, 0.05) is None


def row(home="h1", quantity="UDP rate", error=0.0, direction="down", limit=0.05) -> Row:
    return judged(home, direction, quantity, 20e6, 20e6 * (1 + error), "bit/s", error, "%", limit)


def test_a_row_passes_up_to_its_limit_and_nan_fails():
    assert row(error=0.05).ok
    assert row(error=-0.05).ok
    assert row(error=-0.051).ok is False
    assert row(error=math.nan).ok is False
    assert unjudged("h1", "up", "TCP rate", "lossy").ok is None
    assert passed([row(), unjudged("h1", "up", "TCP rate", "lossy")])
    assert not passed([row(), row(error=1)])


def test_only_what_fails_is_measured_again_and_the_last_number_counts():
    errors = {"a": iter([0.0]), "b": iter([0.9, 0.01]), "c": iter([0.9, 0.8, 0.7])}
    asked = []

    def measure(keys, attempt):
        asked.append((attempt, list(keys)))
        return {
            key: [row(key, error=next(errors[key])), row(key, "buffer", error=0.9 if attempt > 1 else 0)]
            for key in keys
        }

    found = retry_each("abc", measure, 3)
    assert asked == [(1, ["a", "b", "c"]), (2, ["b", "c"]), (3, ["c"])]
    assert [(r.error, r.attempts) for r in found["b"]] == [(0.01, 2), (0, 1)]  # what had passed stays
    assert [(r.error, r.attempts, r.ok) for r in found["c"]] == [(0.7, 3, False), (0, 1, True)]


def test_the_mean_of_rates_leaves_out_what_was_not_judged():
    rows = [
        row(error=0.01),
        row(error=-0.03),
        unjudged("h2", "up", "TCP rate", "x", 1.0, 9.0),
        row(quantity="loss", error=9),
    ]
    mean = mean_rate_row(rows, Thresholds())
    assert mean.measured == pytest.approx(0.02)
    assert mean.ok
    assert mean_rate_row([], Thresholds()).ok is False  # nothing measured is nothing vouched for


def test_grid_points_cover_every_axis():
    chosen = grid.points(18)
    assert len(set(chosen)) == 18
    assert {p.rate_bps for p in chosen} == set(grid.RATES_BPS)
    for rate in grid.RATES_BPS:  # with and without loss
        assert {p.loss > 0 for p in chosen if p.rate_bps == rate} == {True, False}
    assert {p.rtt_s for p in chosen} == set(grid.RTTS_S)
    assert {p.loss for p in chosen} == {0.0, *grid.LOSSES}
    assert grid.points(18) == chosen
    most = len(grid.RATES_BPS) * len(grid.RTTS_S) * (1 + len(grid.LOSSES))
    assert len(set(grid.points(most))) == most
    for count in (0, most + 1):
        with pytest.raises(InputError, match="--points"):
            grid.points(count)


def test_a_sample_is_drawn_by_seed_and_in_order():
    homes = [f"h{i}" for i in range(1, 101)]
    assert choose(homes[:8], None, 1) == homes[:8]
    sample = choose(homes, None, 1)
    assert len(sample) == 8
    assert sample == sorted(sample, key=homes.index)
    assert choose(homes, None, 1) == sample
    assert choose(homes, None, 2) != sample
    assert len(choose(homes, 20, 1)) == 20
    with pytest.raises(InputError, match="the network has 100"):
        choose(homes, 101, 1)


def grid_rows(failing: bool) -> list[Row]:
    p99 = math.inf if failing else 0.021
    return [
        row("g1"),
        row("g1", direction="up", error=0.2 if failing else 0),
        Row("g1", "down", "loss", 0.01, 0.012, "", 0.002, "", None, True, "x", more={"low": 0.007, "high": 0.02}),
        judged("g1", "both", "RTT p50", 0.02, 0.0203, "s", 0.0003, "s", 0.0014),
        judged("g1", "both", "RTT p99", 0.02, p99, "s", p99 - 0.02, "s", 0.003),
        unjudged(
            "g1", "down", "packet gap p99", "timers", 0.0006, 0.0009, "s", p50=0.02, p90=0.2, p99=0.5, timer_p99=0.4
        ),
    ]


def verification(failing: bool = False) -> Verification:
    point = {"rate_bps": 20e6, "rtt_s": 0.02, "loss": 0.02}
    return Verification("grid", grid_rows(failing), {**FACTS, "points": {"g1": point}})


def test_markdown_has_a_line_a_point_and_names_what_failed():
    lines = grid.markdown(verification()).splitlines()
    assert lines[2].startswith(
        "| 20 Mbit/s, 20 ms, 2 % | +0.00 % / +0.00 % | - / - | +0.30 ms | +1.00 ms | 0.70–2.00 % (1.00)"
    )
    assert lines[2].endswith("| PASS |")
    assert "Linux 6.1.0, nfqueue" in lines[-1]
    failed = grid.markdown(verification(failing=True)).splitlines()[2]
    assert "FAIL: UDP rate up, RTT p99 both" in failed
    assert failed.count("|") == lines[2].count("|")


@pytest.mark.parametrize("failing", [False, True])
def test_table_json_and_figure(tmp_path, failing):
    found = verification(failing)
    console = Console(width=180, file=io.StringIO())
    console.print(output.render(found))
    text = console.file.getvalue()
    assert ("FAIL: 2 of 5 rows out of bounds" if failing else "PASS: 5 rows within their limits (1 not judged)") in text
    (tmp_path / "out").mkdir()
    paths = output.write(found, tmp_path / "out", ("grid.md", "x"))
    assert {p.name for p in paths} == {"verify.json", "verify.png", "grid.md"}
    assert (tmp_path / "out/verify.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    data = json.loads((tmp_path / "out/verify.json").read_text(), parse_constant=pytest.fail)  # no Infinity, no NaN
    assert data["ok"] is not failing
    assert [r["verdict"] for r in data["rows"]].count("FAIL") == (2 if failing else 0)


def test_a_folder_of_its_own_each_time(tmp_path):
    made = [output.make_folder(tmp_path / "out", "a/b c", "x") for _ in range(2)]
    assert [path.name for path in made] == ["verify-a-b-c-x", "verify-a-b-c-x-2"]
    assert all(path.is_dir() for path in made)


@pytest.mark.parametrize("what", ["draw", "make_folder"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_loses_files_and_not_what_was_measured(what, as_json, tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("testbed.verification.verify.verify_experiment", lambda *_, **__: verification())
    monkeypatch.setattr(*((output, "draw", full) if what == "draw" else (output.Path, "mkdir", full)))
    with pytest.raises(SystemExit) as caught:
        main(["verify", "smoke", "--out", str(tmp_path), *["--json"] * as_json])
    assert caught.value.code == 1
    said, problem = capsys.readouterr()
    assert json.loads(said)["ok"] if as_json else "PASS: 5 rows" in said
    assert "No space left" in problem
    assert "free some space" in problem


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (20e6, "bit/s", "20 Mbit/s"),
        (0.0152, "s", "15.2 ms"),
        (0.012, "%", "1.2 %"),
        (None, "s", "-"),
        (math.inf, "s", "none"),
    ],
)
def test_shown(value, unit, text):
    assert shown(value, unit) == text


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "expected one of them"),
        (["smoke", "--grid"], "expected one of them"),
        (["--grid", "--sample", "2"], "--set and --sample don't apply"),
        (["smoke", "--points", "3"], "are for --grid"),
        (["--grid", "--points", "9999"], "expected 1 to"),
        (["smok"], "did you mean experiments/smoke.yaml?"),
        (["smoke", "--set", "links.queue=fq_code"], "did you mean 'fq_codel'?"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(args, expected):
    result = CliRunner().invoke(cli, ["verify", *args])
    assert isinstance(result.exception, InputError), result.output
    assert expected in str(result.exception)
