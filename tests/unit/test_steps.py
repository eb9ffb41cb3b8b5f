import numpy as np
import pytest
from scipy import stats

from testbed.measurement.events import frame
from testbed.measurement.steps import attempts, counted_steps, median_interval, recoveries


def _step(step, start, end, attempt=1, **fields):
    return {
        "t": end,
        "node": "server",
        "event": "step",
        "step": step,
        "start": start,
        "end": end,
        "samples": 8,
        "attempt": attempt,
        "loss": 1.0,
        **fields,
    }


def _counts(events):
    table = attempts(frame(events))
    return [(int(r.step), int(r.attempt)) for r in table[table["counts"]].itertuples()]


def test_the_last_attempt_counts():
    events = [_step(0, 0, 1), _step(1, 1, 2), _step(2, 2, 3), _step(1, 5, 6, 2), _step(2, 6, 7, 2), _step(3, 7, 8)]
    assert _counts(events) == [(0, 1), (1, 2), (2, 2), (3, 1)]
    assert counted_steps(frame(events))["start_s"].tolist() == [0, 5, 6, 7]


def test_steps_lost_in_a_rollback_and_not_redone_before_the_end_do_not_count():
    assert _counts([_step(0, 0, 1), _step(1, 1, 2), _step(2, 2, 3), _step(1, 5, 6, 2)]) == [(0, 1), (1, 2)]


def test_a_first_report_with_a_higher_attempt_is_no_rollback():
    """Its first attempt was cut short by a failure and never reported."""
    assert _counts([_step(0, 0, 1), _step(1, 4, 5, 2)]) == [(0, 1), (1, 2)]


def test_out_of_order_reports_are_no_rollback():
    assert sorted(_counts([_step(1, 0, 1), _step(0, 0, 2), _step(2, 1, 3)])) == [(0, 1), (1, 1), (2, 1)]


def test_a_report_that_came_twice_counts_once():
    assert _counts([_step(0, 0, 1), _step(1, 1, 2), _step(1, 1, 2)]) == [(0, 1), (1, 1)]


def test_devices_as_names_or_as_number():
    events = [_step(0, 0, 1, devices=["a", "b", "c"]), _step(1, 1, 2, devices=2), _step(2, 2, 3)]
    devices = attempts(frame(events))["devices"].tolist()
    assert devices[:2] == [3, 2]
    assert np.isnan(devices[2])


def test_no_steps():
    assert len(counted_steps(frame([]))) == 0
    assert len(recoveries(frame([]))) == 0


@pytest.mark.parametrize("n", [6, 7, 10, 25, 60, 200])
def test_the_median_interval_covers_95_percent_and_not_much_more_than_needed(n):
    low, high = median_interval(np.arange(1, n + 1))
    assert low + high == n + 1  # symmetric ranks
    covers = stats.binom.cdf(high - 1, n, 0.5) - stats.binom.cdf(low - 1, n, 0.5)
    narrower = stats.binom.cdf(high - 2, n, 0.5) - stats.binom.cdf(low, n, 0.5)
    assert covers >= 0.95 > narrower


def test_the_median_interval_of_too_few():
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([]) is None
    assert median_interval([np.nan] * 10) is None


def test_the_cost_of_a_failure_has_everything_in_it_but_the_checkpoint_before():
    # steps of 2 s; a checkpoint from 4 to 5; step 2 fails at 6, found at 7; 1 is redone; 2 ends at 13
    events = [
        _step(0, 0, 2),
        _step(1, 2, 4),
        {"t": 5, "node": "server", "event": "checkpoint", "start": 4, "end": 5, "step": 0},
        _step(1, 9, 11, 2),
        {
            "t": 11,
            "node": "server",
            "event": "recovery",
            "kind": "replan",
            "peer": "h1",
            "detected": 1,
            "start": 7,
            "restored": 9,
            "end": 11,
            "step": 2,
            "lost_steps": 1,
        },
        _step(2, 11, 13),
    ]
    row = recoveries(frame(events)).iloc[0]
    assert (row["detection_s"], row["restored_s"], row["recovery_s"]) == (1, 2, 4)
    assert row["extra_s"] == (13 - 5) - 2


def test_the_loss_of_the_slowest_device_can_cost_less_than_nothing():
    lost = {
        "t": 41,
        "node": "server",
        "event": "recovery",
        "kind": "replan",
        "peer": "h1",
        "detected": 1,
        "start": 40.5,
        "restored": 41,
        "end": 43,
        "step": 2,
        "lost_steps": 0,
    }
    events = [_step(0, 0, 20), _step(1, 20, 40), lost, _step(2, 40, 43, 2), _step(3, 43, 45)]
    assert recoveries(frame(events)).iloc[0]["extra_s"] == (43 - 40) - 20


def test_a_recovery_that_the_run_did_not_get_past_has_no_cost():
    recovery = {"t": 9, "node": "server", "event": "recovery", "kind": "wait", "start": 7, "end": 9, "lost_steps": 0}
    row = recoveries(frame([_step(0, 0, 2), recovery])).iloc[0]
    assert np.isnan(row["extra_s"])
    assert row["recovery_s"] == 2
