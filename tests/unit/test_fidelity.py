"""Each check finds the defect it is for, says so with the number, and leaves a good run alone."""

import json
from datetime import datetime

import pytest
from synthetic_run import Synthetic, events_of

from testbed.errors import InputError
from testbed.measurement.events import frame
from testbed.measurement.fidelity import Thresholds, Verdict, judge
from testbed.measurement.rates import WIRE_PER_GOODPUT, rate_windows

BASE = events_of(Synthetic(homes=3, steps=6, micro_batches=3, churn=((6.0, 1, 6.0),), rate_error=0.001))


def _judge(change=None, manifest=None, extra=()):
    """The verdict on the base run, its events changed by change(event), or dropped where it is False."""
    events = [e for e in map(dict, BASE) if change is None or change(e) is not False]
    return judge(frame(sorted([*events, *extra], key=lambda e: e["t"])), manifest or {})


def _setting(kind, field, value, when=lambda e: True):
    def change(event):
        if event["event"] == kind and when(event):
            event[field] = value(event) if callable(value) else value

    return change


def _check(verdict, name):
    return next(c for c in verdict.checks if c.name == name)


def test_a_good_run_is_valid_and_every_check_was_made():
    verdict = _judge()
    assert verdict.valid, verdict.reasons
    assert verdict.label == "VALID"
    assert [c.name for c in verdict.checks if c.ok is not True] == []
    assert {c.name for c in verdict.checks} == {
        "probes",
        "rate_error_mean",
        "rate_error_worst",
        "rtt_error",
        "leak",
        "interference",
        "overflow",
        "replay_late",
        "churn_late",
        "delay_lag_p99",
        "delay_lag_max",
        "delay_stuck",
        "delay_paused",
        "sched_delay",
        "sched_delay_max",
        "overrun_time",
        "overrun_count",
        "host_coverage",
        "cpu",
        "memory",
        "memory_stall",
    }
    assert verdict.invalid_since_s is None


def _late(event):
    return event["t"] > 5


# what goes wrong: (change, the checks that must fail, the measured number of the first)
DEFECTS = {
    "one link slow": (
        _setting(
            "probe", "measured", lambda e: e["set"] * 0.93, lambda e: e["node"] == "h2" and e["quantity"] == "rate_up"
        ),
        {"rate_error_worst"},
        0.07,
    ),
    "all links a little fast": (
        _setting("probe", "measured", lambda e: e["set"] * 1.03, lambda e: e["quantity"] != "rtt"),
        {"rate_error_mean"},
        0.03,
    ),
    "RTT too long": (
        _setting(
            "probe",
            "measured",
            lambda e: e["set"] * 1.02 + 0.0012,
            lambda e: e["quantity"] == "rtt" and e["node"] == "h1",
        ),
        {"rtt_error"},
        None,
    ),
    "a link changed late": (
        _setting("link", "late", 0.06, lambda e: e["node"] == "h3" and _late(e)),
        {"replay_late"},
        0.06,
    ),
    "a device toggled late": (_setting("churn", "late", 0.2, lambda e: e["action"] == "return"), {"churn_late"}, 0.2),
    "packets late": (_setting("host", "delay_lag_p99", 0.007), {"delay_lag_p99"}, 0.007),
    "one packet very late": (
        _setting("host", "delay_lag_max", 0.3, lambda e: 10 < e["t"] < 11.5),
        {"delay_lag_max"},
        0.3,
    ),
    "delay line dead": (_setting("host", "delay_age", 5.0, _late), {"delay_stuck"}, 5.0),
    "delay line's queue full": (_setting("host", "delay_overflowed", 4, lambda e: 10 < e["t"] < 11.5), {"overflow"}, 4),
    "delay line paused": (_setting("host", "delay_paused", 2, lambda e: 10 < e["t"] < 11.5), {"delay_paused"}, 2),
    "engine stood still once": (
        _setting("host", "sched_delay", 0.8, lambda e: 10 < e["t"] < 11.5),
        {"sched_delay_max"},
        0.8,
    ),
    "a change of the links never done": (
        _setting("host", "replay_overdue", lambda e: e["t"] - 10, lambda e: e["t"] > 10),
        {"replay_late"},
        None,
    ),
    "a device never toggled": (_setting("host", "churn_overdue", 3.0, _late), {"churn_late"}, 3.0),
    "engine not scheduled": (_setting("host", "sched_delay", 0.05, _late), {"sched_delay"}, 0.05),
    "devices too slow": (
        _setting("compute", "overrun", lambda e: 0.05 * (e["end"] - e["start"])),
        {"overrun_time"},
        0.05 / 0.95,
    ),
    "short computations far too slow": (
        _setting("compute", "overrun", lambda e: 0.5 * (e["end"] - e["start"]), lambda e: e["label"] == "optimizer"),
        {"overrun_count"},
        None,
    ),
    "CPU saturated": (_setting("host", "cpu", 0.99, _late), {"cpu"}, None),
    "memory full": (_setting("host", "memory_available_bytes", 1e7, _late), {"memory"}, None),
    "swapping": (_setting("host", "memory_stall", 0.4, _late), {"memory_stall"}, 0.4),
    "nobody watched the machine": (lambda e: e["event"] != "host", {"host_coverage"}, 0.0),
    "watched too seldom": (lambda e: e["event"] != "host" or e["t"] % 4 < 0.9, {"host_coverage"}, None),
    "one direction not probed": (
        lambda e: not (e["event"] == "probe" and e["node"] == "h2" and e["quantity"] == "rate_up"),
        {"probes"},
        1,
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_fails_its_check_and_no_other(name):
    change, expected, measured = DEFECTS[name]
    verdict = _judge(change)
    assert {c.name for c in verdict.checks if c.ok is False} == expected
    assert not verdict.valid
    assert verdict.label == "INVALID"
    reason = verdict.reasons[0]
    assert reason.name in expected
    if measured is not None:
        assert reason.measured == pytest.approx(measured)
    assert len(reason.text) > 20
    assert reason.threshold == _check(verdict, reason.name).threshold


def test_changes_behind_the_tools_back_are_named():
    found = [
        {
            "t": 7.5 + i,
            "node": node,
            "event": "interference",
            "quantity": "rate",
            "direction": "down",
            "set": 1e7,
            "measured": 5e6,
            "text": f"{node} downlink: rate set to 5 Mbit/s",
        }
        for i, node in enumerate(("h2", "h3"))
    ]
    verdict = _judge(extra=found)
    assert [(r.name, r.measured, r.where) for r in verdict.reasons] == [("interference", 2, "h2, h3")]
    assert "h3 downlink: rate set to 5 Mbit/s (at 8.5 s)" in verdict.reasons[0].text
    assert verdict.invalid_since_s == 7.5
    unwatched = _judge(_setting("host", "links_watched", 0))
    assert _check(unwatched, "interference").ok is None


def test_the_moment_by_the_clock():
    verdict = _judge(
        _setting("link", "late", 0.2, lambda e: e["t"] > 12), {"zero_at": "2026-03-01T12:00:00+01:00", "tdf": 2.0}
    )
    after_s = datetime.fromisoformat(verdict.invalid_at) - datetime.fromisoformat("2026-03-01T12:00:00+01:00")
    assert after_s.total_seconds() == pytest.approx(2.0 * verdict.invalid_since_s, abs=0.001)
    assert json.loads(json.dumps(verdict.to_dict()))["invalid_at"] == verdict.invalid_at
    assert Verdict.from_dict(verdict.to_dict()) == verdict
    assert _judge().invalid_at is None


def test_the_first_moment_at_which_it_became_invalid():
    verdict = _judge(_setting("link", "late", 0.2, lambda e: e["t"] > 12))
    first = min(e["t"] for e in BASE if e["event"] == "link" and e["t"] > 12)
    assert verdict.invalid_since_s == pytest.approx(first)
    assert verdict.reasons[0].at_s == pytest.approx(first)


def test_reasons_name_the_place_and_the_numbers():
    verdict = _judge(DEFECTS["one link slow"][0])
    text = verdict.reasons[0].text
    assert "h2 uplink" in text
    assert "7 % (threshold 5 %)" in text
    assert "measured" in text
    assert verdict.reasons[0].where == "h2 uplink"


# leaks


def _window(rate_factor, seconds=1.0, t=3.5):
    link = max(
        (e for e in BASE if e["event"] == "link" and e["node"] == "h1" and e["t"] < t - seconds), key=lambda e: e["t"]
    )
    size = link["up_bps"] * WIRE_PER_GOODPUT * rate_factor / 8 * seconds
    return {
        "t": t,
        "node": "h1",
        "event": "throughput",
        "direction": "up",
        "bytes": size,
        "seconds": seconds,
        "drops": 0,
    }


def _without_counters(event):
    return event["event"] != "throughput"


def test_a_full_link_is_no_leak():
    assert _check(_judge(_without_counters, extra=[_window(1.0)]), "leak").ok


def test_more_than_the_set_rate_is_a_leak():
    check = _check(_judge(_without_counters, extra=[_window(1.1)]), "leak")
    assert check.ok is False
    assert 0.08 < check.measured < 0.1  # less the frames on the window's edges
    assert check.where == "h1 uplink"
    assert check.at_s == 2.5


def test_a_burst_within_one_short_window_is_averaged_over_a_second():
    burst = [_window(3.0, 0.1, 3.0), _window(0.1, 0.9, 3.9)]
    assert _check(_judge(_without_counters, extra=burst), "leak").ok
    assert _check(_judge(_without_counters, extra=burst), "leak").measured == 0


def test_a_window_across_a_change_may_use_the_higher_rate():
    changes = sorted((e for e in BASE if e["event"] == "link" and e["node"] == "h1"), key=lambda e: e["t"])
    i = next(i for i in range(1, len(changes) - 1) if changes[i]["up_bps"] < 0.9 * changes[i - 1]["up_bps"])
    at, high = changes[i]["t"], changes[i - 1]["up_bps"]
    size = high * WIRE_PER_GOODPUT / 8
    across = {"t": at + 0.5, "node": "h1", "event": "throughput", "direction": "up", "bytes": size, "seconds": 1.0}
    assert _check(_judge(_without_counters, extra=[across]), "leak").ok
    after = across | {"t": at + 1.5}
    assert _check(_judge(_without_counters, extra=[after]), "leak").ok is False


def test_windows_are_joined_to_at_least_a_second():
    samples = [
        {"t": (i + 1) * 0.3, "node": "h1", "event": "throughput", "direction": "up", "bytes": 10.0, "seconds": 0.3}
        for i in range(9)
    ]
    windows = rate_windows(frame(samples), 1.0)
    assert windows["bytes"].tolist() == [40, 50]  # the ninth is too short to stand alone
    assert windows["start_s"].tolist() == pytest.approx([0, 1.2])
    assert windows["end_s"].tolist() == pytest.approx([1.2, 2.7])
    assert rate_windows(frame(samples))["bytes"].tolist() == [10] * 9


def test_links_without_settings_are_not_judged_for_leaks():
    stranger = {"t": 2.0, "node": "core", "event": "throughput", "direction": "up", "bytes": 1e12, "seconds": 1.0}
    assert _judge(extra=[stranger]).valid


# probes


def test_no_probes_is_not_measured():
    verdict = _judge(lambda e: e["event"] != "probe")
    assert verdict.label == "INVALID: not measured"
    assert not verdict.valid


def check_unverified(verdict, why: str) -> None:
    assert verdict.label == "UNVERIFIED"
    assert not verdict.valid
    assert verdict.reasons == []
    assert why in verdict.notes[0]


@pytest.mark.parametrize("manifest", [{}, {"engine": "simulation"}])
def test_a_run_that_ended_before_its_first_step_is_not_vouched_for(manifest):
    verdict = _judge(lambda e: e["event"] != "step", manifest)
    check_unverified(verdict, "no step")


def test_an_empty_run_is_not_measured():
    assert judge(frame([]), {}).label == "INVALID: not measured"


@pytest.mark.parametrize(
    "manifest", [{"experiment": {"probes": {"enabled": False}}}, {"experiment": {"probes": False}}, {"probes": False}]
)
def test_probes_switched_off_on_purpose_is_said_and_never_called_valid(manifest):
    verdict = _judge(lambda e: e["event"] != "probe", manifest)
    check_unverified(verdict, "switched off")
    broken = _judge(lambda e: e["event"] != "probe" and DEFECTS["CPU saturated"][0](e) is None, manifest)
    assert broken.label == "INVALID"
    assert [r.name for r in broken.reasons] == ["cpu"]


def test_a_link_that_gave_no_answer_is_a_failure_with_a_number():
    lost = _setting("probe", "measured", float("inf"), lambda e: e["node"] == "h2" and e["quantity"] == "rtt")
    verdict = _judge(lost)
    assert verdict.label == "INVALID"
    assert [(r.name, r.measured) for r in verdict.reasons] == [("probes", 1)]
    assert "h2, rtt" in verdict.reasons[0].text


def _not_judged(event):
    if event["event"] == "probe" and event["node"] == "h2" and event["quantity"] == "rate_up":
        event |= {"measured": None, "text": "one TCP flow did not fill it"}


def test_a_link_that_could_not_be_filled_is_not_judged_and_not_blamed():
    verdict = _judge(_not_judged)
    assert verdict.valid, verdict.reasons
    assert "the rate of h2's uplink was not judged: one TCP flow did not fill it" in verdict.notes
    assert "1 were not judged" in _check(verdict, "rate_error_mean").text


def test_the_server_and_shared_links_need_no_probe_of_their_own():
    shared = {"t": 0.0, "node": "street", "event": "link", "role": "shared", "up_bps": 1e8, "down_bps": 1e8}
    assert _judge(extra=[shared]).valid


def test_jitter_lets_the_median_rtt_scatter_by_three_standard_errors():
    def jittery(event):
        if event["event"] == "link":
            event["jitter_s"] = 0.01
        if event["event"] == "probe" and event["quantity"] == "rtt":
            event["measured"] = event["set"] + 0.006

    check = _check(_judge(jittery), "rtt_error")
    assert check.ok
    assert check.threshold > 0.0085
    assert (
        _check(
            _judge(_setting("probe", "measured", lambda e: e["set"] + 0.006, lambda e: e["quantity"] == "rtt")),
            "rtt_error",
        ).ok
        is False
    )


# clocks, thresholds, form


def test_lateness_is_judged_in_real_seconds():
    change = _setting("link", "late", 0.03, _late)
    assert _judge(change).valid
    verdict = _judge(change, {"tdf": 4.0})
    assert [r.name for r in verdict.reasons if r.name == "replay_late"] == ["replay_late"]
    assert _check(verdict, "replay_late").measured == pytest.approx(0.12)


def test_lag_of_the_delay_line_is_in_real_seconds_already():
    assert _check(_judge(_setting("host", "delay_lag_p99", 0.003), {"tdf": 4.0}), "delay_lag_p99").measured == 0.003


def test_an_experiment_overrides_thresholds():
    change = DEFECTS["one link slow"][0]
    assert _judge(change, {"experiment": {"fidelity": {"rate_error_worst": 0.1}}}).valid
    verdict = _judge(change, {"experiment": {"fidelity": {"thresholds": {"rate_error_worst": "10 %"}}}})
    assert verdict.valid
    assert verdict.notes == ["by thresholds of the experiment's own: rate_error_worst 0.1 instead of 0.05"]
    assert _judge(None, {"experiment": {"fidelity": {"rate_error_worst": 1e-6}}}).label == "INVALID"


def test_thresholds_are_read_with_units():
    limits = Thresholds.from_mapping({"replay_late_s": "80 ms", "rate_error_mean": "4 %", "cpu_busy": 0.9})
    assert (limits.replay_late_s, limits.rate_error_mean, limits.cpu_busy) == (0.08, 0.04, 0.9)
    assert Thresholds.from_mapping(None) == Thresholds()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate_eror_worst": 0.1}, "did you mean 'rate_error_worst'"),
        ({"replay_late_s": "80 bit"}, "fidelity.replay_late_s: '80 bit': expected a duration"),
        ({"rate_error_mean": "much"}, "fidelity.rate_error_mean: 'much': expected a number, or a percentage"),
        ({"rate_error_mean": -1}, "not negative"),
        ({"rate_error_mean": float("nan")}, "not negative"),
        ({"rate_error_mean": "inf"}, "finite"),
        ({"rate_error_mean": "1e999 %"}, "finite"),
        ({"rate_error_mean": True}, "expected a number"),
        ({"rate_error_mean": None}, "expected a number"),
        ([1], "expected names of thresholds"),
    ],
)
def test_bad_thresholds_are_refused(given, message):
    with pytest.raises(InputError) as caught:
        Thresholds.from_mapping(given)
    assert message in str(caught.value)


def test_a_simulation_has_nothing_to_measure():
    verdict = judge(frame(BASE), {"engine": "simulation"})
    assert verdict.valid
    assert "simulated" in verdict.notes[0]


def test_a_verdict_survives_json():
    verdict = _judge(DEFECTS["one link slow"][0])
    again = Verdict.from_dict(json.loads(json.dumps(verdict.to_dict(), allow_nan=False)))
    assert again == verdict


def test_every_threshold_is_explained_in_the_docs(request):
    text = (request.config.rootpath / "docs" / "fidelity.md").read_text()
    assert [name for name in Thresholds.__dataclass_fields__ if f"`{name}`" not in text] == []


def test_lost_in_time_events_without_numbers_do_no_harm():
    odd = [
        {"t": 1.0, "node": "h1", "event": kind} for kind in ("probe", "link", "throughput", "compute", "host", "churn")
    ]
    assert isinstance(_judge(extra=odd).label, str)
