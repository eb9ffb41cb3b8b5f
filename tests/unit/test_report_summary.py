import dataclasses
import json
import math

import pytest
from rich.console import Console
from scipy import stats
from synthetic_run import Synthetic, write_run

from testbed.measurement.events import natural
from testbed.report import text
from testbed.report.summary import render_repeats, render_summary, summarize, summarize_repeats

SMALL = Synthetic(homes=3, steps=9, micro_batches=3, churn=((11.0, 1, 6.0),), checkpoint_every=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"), SMALL)


def _printed(renderable, width=110):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    console.file.close()
    return console.export_text()


def test_goodput_counts_only_what_reached_a_step_that_counts(run):
    s = summarize(run)
    assert s.steps == 9
    assert s.steps_redone > 0
    assert s.goodput_fraction == pytest.approx(9 / (9 + s.steps_redone))
    assert s.tokens_per_s == pytest.approx(s.samples_per_s * 64)
    assert s.samples_per_s < 16 / s.step_time_median_s  # churn costs something


@pytest.mark.parametrize(("costs", "said"), [([3.0, -120.0], True), ([3.0], False)])
def test_a_negative_cost_of_a_failure_is_explained(run, costs, said):
    shown = _printed(render_summary(dataclasses.replace(summarize(run), recovery_extra_s=costs)), 200)
    assert ("training was faster without the device that was lost" in shown) == said


def test_message_bytes_balance(run):
    s = summarize(run)
    assert sum(s.bytes_down.values()) <= sum(s.bytes_up.values())  # what was lost on the way was sent, not received
    assert s.server_egress_bytes == s.bytes_up["server"] > 0
    assert s.server_ingress_bytes == s.bytes_down["server"] > 0


def test_without_messages_the_links_counters_stand_in(tmp_path):
    counter = {"t": 1.0, "node": "h1", "event": "throughput", "direction": "up", "bytes": 1514.0, "seconds": 1.0}
    s = summarize(write_run(tmp_path, SMALL, keep=lambda e: False, extra=[counter]))
    assert s.bytes_up == {"h1": pytest.approx(1448)}


def test_a_summary_is_json_whatever_happened(run, tmp_path):
    for path in (run, write_run(tmp_path, SMALL, keep=lambda e: False)):
        again = json.loads(json.dumps(summarize(path).as_dict(), allow_nan=False))
        assert again["verdict"]
        assert "server_egress_bytes" in again
    diverged = dataclasses.replace(summarize(run), final_loss=math.nan)
    assert json.loads(json.dumps(diverged.as_dict(), allow_nan=False))["final_loss"] == "nan"


def test_what_is_printed(run):
    out = _printed(render_summary(summarize(run)))
    assert out.index("VALID") < out.index("Steps")
    for part in ("9 of 9", "Step time, median", "Tokens/s", "Recovery", "Server egress", run.name):
        assert part in out.replace("\n", "")


def test_invalid_is_loud_and_its_reasons_are_printed_as_they_are(run):
    s = dataclasses.replace(
        summarize(run),
        verdict="INVALID",
        reasons=["[red]h1[/] is slow"],
        invalid_since_s=3.25,
        status="failed",
        error="no [memory]",
    )
    out = _printed(render_summary(s))
    assert "INVALID" in out
    assert "[red]h1[/] is slow" in out
    assert "3.2 s" in out
    assert "FAILED: no [memory]" in out


def test_repeats_have_t_intervals(run):
    base = summarize(run)
    times = [1.0, 1.2, 1.4, 1.1]
    runs = [dataclasses.replace(base, step_time_median_s=t, recovery_s=[t, 2 * t]) for t in times]
    r = summarize_repeats(runs)
    assert r.step_time_s.mean == pytest.approx(1.175)
    low, high = stats.t.interval(0.95, 3, loc=1.175, scale=stats.sem(times))
    assert r.step_time_s.half_width == pytest.approx((high - low) / 2)
    assert r.recovery_s.mean == pytest.approx(1.175 * 1.5)
    assert r.step_time_s.values == times
    assert "4 runs" in _printed(render_repeats(r))
    json.dumps(r.as_dict(), allow_nan=False)


def test_one_run_has_no_interval_and_says_so(run):
    r = summarize_repeats([run])
    assert r.step_time_s.half_width is None
    assert r.step_time_s.n == 1
    assert "proves nothing" in _printed(render_repeats(r))


def test_repeats_with_bad_runs_say_which_verdicts(run):
    base = summarize(run)
    bad = dataclasses.replace(base, verdict="INVALID", final_loss=math.nan, step_time_median_s=None, recovery_s=[])
    r = summarize_repeats([base, bad, base])
    assert r.final_loss.n == 2
    assert r.recovery_s.n == 2
    assert "1 of them not VALID: INVALID" in _printed(render_repeats(r))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("step_time_s", 0.0123, "12.3 ms"),
        ("step_time_s", 0.0, "0 s"),
        ("step_time_s", None, "–"),
        ("rate_bps", 2e7, "20 Mbit/s"),
        ("memory_bytes", 3e9, "3 GB"),
        ("flops", 1e10, "10 GFLOP/s"),
        ("bubble_fraction", 0.41, "41 %"),
        ("steps", 12345, "12\u2009345"),
        ("layers", [0, 1, 2, 3], "0–3"),
        ("layers", [1, 3], "1, 3"),
        ("layers", [], "–"),
        ("on", True, "yes"),
        ("nested", {"a": [1]}, '{"a": [1]}'),
        ("devices", ["h1", "h2"], "h1, h2"),
        ("x", float("nan"), "–"),
        ("x", float("inf"), "∞"),
    ],
)
def test_values_are_shown_by_what_their_name_says(name, value, shown):
    assert text.quantity(name, value) == shown


def test_names_sort_as_people_count():
    assert sorted(["h10", "h2", "server", "h1"], key=natural) == ["h1", "h2", "h10", "server"]


def test_a_complete_run_whose_events_are_damaged_says_so(tmp_path):
    folder = write_run(tmp_path, SMALL)
    (folder / "events.parquet").unlink(missing_ok=True)
    assert summarize(folder).status == "complete"
    log = folder / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    s = summarize(folder)
    assert s.status == "damaged"
    assert s.error.startswith("1 line of events.jsonl")
