"""Comparisons: grouping, intervals, the figures themselves against hand-made events, and every form of output."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats
from synthetic_run import Synthetic, write_run

from testbed.cli.compare import compare as command
from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec
from testbed.errors import InputError
from testbed.measurement.run_folder import RunFolder
from testbed.report import compare_text
from testbed.report.compare import compare, find_runs, interval
from testbed.report.compare_figures import METRICS, run_figures
from testbed.report.compare_page import axis, html
from testbed.runtime.interface import Plan

SMALL = {"homes": 3, "steps": 6, "micro_batches": 2, "churn": ()}


def tiny_run(
    base,
    *,
    name="tiny",
    seed=0,
    step_s=2.0,
    homes=2,
    power=(10.0, None),
    engine="simulation",
    runner="cleave",
    away=None,
):
    """Four steps of `step_s`; h1 computes half of each, h2 a quarter; a step moves 1 kB down and 100 B up a device."""
    folder = RunFolder.create(base, name)
    folder.write_manifest(
        engine=engine,
        seed=seed,
        experiment={
            "name": name,
            "seed": seed,
            "topology": {"homes": homes},
            "training": {"runner": runner, "steps": 4},
            "model": {"sequence": 10},
        },
    )
    link = Link(1e6, 1e7)
    devices = tuple(Device(f"h{i + 1}", 1e9, 1 << 30, link, "x", 1.0, p) for i, p in enumerate(power))
    folder.write_plan(
        Plan(
            runner,
            ModelSpec(sequence=10),
            TrainingSpec(steps=4),
            Cluster(Device("server", 1e12, 1 << 34, link), devices),
        )
    )

    def record(t, node, event, **fields):
        folder.recorder.append({"t": t, "node": node, "event": event, **fields})

    for step in range(4):
        start, end = step * step_s, (step + 1) * step_s
        for name_, share in (("h1", 0.5), ("h2", 0.25)):
            record(start, "server", "send", start=start, end=start, peer=name_, tag="x", bytes=1000)
            record(start + 0.1, name_, "transfer", start=start, end=start + 0.1, peer="server", tag="x", bytes=1000)
            record(
                end,
                name_,
                "compute",
                start=start,
                end=start + share * step_s,
                label="c",
                flops=1.0,
                busy=0.0,
                overrun=0.0,
            )
            record(end, name_, "send", start=end, end=end, peer="server", tag="y", bytes=100)
            record(end, "server", "transfer", start=end, end=end, peer=name_, tag="y", bytes=100)
        record(end, "server", "step", step=step, loss=1.0, start=start, end=end, samples=3, attempt=0, devices=2)
    if away:
        record(away[0], "h2", "churn", action="leave", mode="kill", late=0.0, cause="trace")
        record(away[1], "h2", "churn", action="return", mode="kill", late=0.0, cause="trace")
    record(
        9.0,
        "server",
        "recovery",
        kind="replan",
        peer="h2",
        detected=1.5,
        start=6.0,
        end=6.5,
        step=3,
        lost_steps=0,
        restored=6.2,
    )
    folder.finish()
    return folder.path


def test_figures_of_a_run_worked_out_by_hand(tmp_path):
    f = run_figures(tiny_run(tmp_path), g_co2_per_kwh=360.0)
    assert (f.name, f.engine, f.runner, f.devices, f.powered_devices) == ("tiny", "simulation", "cleave", 2, 1)
    assert f.metrics["step_time_s"] == pytest.approx(2.0)
    assert f.metrics["tokens_per_s"] == pytest.approx(4 * 3 * 10 / 8)
    assert f.metrics["idle_fraction"] == pytest.approx((0.5 + 0.75) / 2)
    assert f.metrics["device_down_bytes"] == pytest.approx(1000)
    assert f.metrics["device_up_bytes"] == pytest.approx(100)
    assert f.metrics["server_egress_bytes"] == pytest.approx(2000)
    assert f.metrics["server_ingress_bytes"] == pytest.approx(200)
    assert f.metrics["detection_s"] == pytest.approx(1.5)
    assert f.metrics["recovery_s"] == pytest.approx(0.5)
    assert f.metrics["energy_j"] == pytest.approx(10.0)  # 10 W for 1 s of each step
    assert f.metrics["co2_g"] == pytest.approx(10 / 3.6e6 * 360)


def test_absences_do_not_count_as_idle(tmp_path):
    f = run_figures(tiny_run(tmp_path, away=(2.0, 6.0)))  # h2 is there for 4 s of 8; its computing does not change here
    assert f.metrics["idle_fraction"] == pytest.approx((0.5 + (1 - 2.0 / 4)) / 2)


def test_repeats_are_grouped_and_have_students_interval(tmp_path):
    times = [2.0, 2.2, 2.4]
    for seed, t in enumerate(times):
        tiny_run(tmp_path, seed=seed, step_s=t)
    tiny_run(tmp_path, homes=5)
    comparison = compare(find_runs([tmp_path]), g_co2_per_kwh=480.0)
    assert [len(g.runs) for g in comparison.groups] == [3, 1]
    assert [g.label for g in comparison.groups] == ["tiny homes=2", "tiny homes=5"]
    assert [g.settings for g in comparison.groups] == [{"topology.homes": 2}, {"topology.homes": 5}]
    i = comparison.groups[0].metrics["step_time_s"]
    low, high = stats.t.interval(0.95, 2, np.mean(times), stats.sem(times))
    assert (i.mean, i.low, i.high, i.n) == pytest.approx((2.2, low, high, 3))
    single = comparison.groups[1].metrics["step_time_s"]
    assert (single.low, single.high, single.n) == (None, None, 1)
    assert any("n = 1" in n for n in comparison.notes)


def test_other_engines_and_other_runners_are_other_groups(tmp_path):
    tiny_run(tmp_path)
    tiny_run(tmp_path, engine="emulation")
    tiny_run(tmp_path, runner="pipeline")
    labels = [g.label for g in compare(find_runs([tmp_path]), g_co2_per_kwh=1.0).groups]
    assert labels == [
        "tiny runner=cleave simulation",
        "tiny runner=cleave emulation",
        "tiny runner=pipeline simulation",
    ]


def test_intervals():
    assert interval([None, float("nan")]).n == 0
    assert interval([3.0]).mean == 3.0
    same = interval([2.0, 2.0, 2.0])
    assert (same.low, same.high) == (2.0, 2.0)
    values = np.random.default_rng(0).normal(10, 1, 30)
    t, b = interval(values), interval(values, method="bootstrap")
    assert b == interval(values, method="bootstrap")  # seeded
    assert b.high - b.low == pytest.approx(t.high - t.low, rel=0.15)
    assert interval(values, 0.99).high > t.high


def test_intervals_cover_as_often_as_they_say():
    random = np.random.default_rng(4)
    covered = sum(i.low <= 5 <= i.high for i in (interval(random.normal(5, 2, 4)) for _ in range(1000)))
    assert covered == pytest.approx(950, abs=25)


def test_invalid_runs_are_flagged_everywhere(tmp_path):
    write_run(tmp_path, Synthetic(**SMALL, rate_error=0.4), name="bad")
    write_run(tmp_path, Synthetic(**SMALL), name="good")
    comparison = compare(find_runs([tmp_path]), g_co2_per_kwh=480.0)
    by_name = {g.name: g for g in comparison.groups}
    assert by_name["bad"].verdicts == ["INVALID"]
    assert (by_name["bad"].doubtful, by_name["good"].doubtful) == (1, 0)
    assert "bad ⚠ INVALID" in compare_text.markdown(comparison)
    assert "1, 1 INVALID" in compare_text.markdown(comparison)
    assert "should not be relied on: bad: 1 of 1" in " ".join(comparison.notes)
    assert 'class="banner bad"' in html(comparison)
    rows = list(csv.DictReader(io.StringIO(compare_text.csv_text(comparison))))
    assert {r["invalid_runs"] for r in rows if r["experiment"] == "bad"} == {"1"}


@pytest.mark.parametrize(("cost", "said"), [(-120.0, True), (0.0, False), (80.0, False)])
def test_a_negative_cost_of_a_loss_is_explained(tmp_path, cost, said):
    comparison = compare(find_runs([tiny_run(tmp_path)]), g_co2_per_kwh=480.0)
    comparison.groups[0].metrics["recovery_extra_s"] = interval([cost])
    for shown in (compare_text.markdown(comparison), html(comparison), compare_text.json_of(comparison)):
        assert ("training was faster without the device that was lost" in shown) == said


def test_the_page_draws_over_a_numeric_setting(tmp_path):
    for homes in (2, 4, 8):
        for runner in ("cleave", "pipeline"):
            tiny_run(tmp_path, homes=homes, step_s=homes, runner=runner)
    comparison = compare(find_runs([tmp_path]), g_co2_per_kwh=480.0)
    assert axis(comparison) == "topology.homes"
    page = html(comparison)
    assert page.count('<div class="plot" role="figure"') == len(
        [m for m in METRICS if comparison.groups[0].metrics[m].n]
    )
    assert "http" not in page.replace("http://www.w3.org", "").split("</script>")[-1]


def test_find_runs_by_pattern_folder_and_name(tmp_path, monkeypatch):
    a, b = tiny_run(tmp_path / "runs", name="a"), tiny_run(tmp_path / "runs", name="b")
    monkeypatch.chdir(tmp_path)
    assert find_runs(["runs"]) == [a.resolve(), b.resolve()]
    assert find_runs(["runs/a-*", a]) == [a.resolve()]
    assert find_runs([b.name]) == [b.resolve()]
    with pytest.raises(InputError, match="stands for no run folder"):
        find_runs(["runs/c-*"])
    with pytest.raises(InputError, match="no such run folder"):
        find_runs(["rums/a"])


def test_a_run_that_may_not_be_looked_up_is_an_input_error():
    with pytest.raises(InputError, match="File name too long"):
        find_runs(["x" * 400])


def test_the_verb(tmp_path):
    tiny_run(tmp_path)
    tiny_run(tmp_path, homes=3, step_s=1.0)
    out = CliRunner().invoke(command, [str(tmp_path), "--html", str(tmp_path / "c.html")])
    assert out.exit_code == 0, out.output
    assert "0.5×" in out.output
    assert (tmp_path / "c.html").stat().st_size > 1e6  # plotly is inside
    data = json.loads(CliRunner().invoke(command, [str(tmp_path), "--format", "json"]).output)
    assert [g["metrics"]["step_time_s"]["mean"] for g in data["groups"]] == pytest.approx([2.0, 1.0])
    assert data["units"]["energy_j"] == "J"
    rows = list(csv.DictReader(io.StringIO(CliRunner().invoke(command, [str(tmp_path), "--format", "csv"]).output)))
    assert {r["metric"] for r in rows} <= set(METRICS)
    assert "Energy covers the devices" in CliRunner().invoke(command, [str(tmp_path), "--format", "markdown"]).output
