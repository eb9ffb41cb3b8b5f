"""Computation takes the device's time, never less."""

import time

import pytest

from testbed.emulation.pacing import compute_thread, paced


class FakeTime:
    def __init__(self):
        self.now = 100.0
        self.slept = []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def work(self, seconds):
        self.now += seconds
        return "done"


@pytest.mark.parametrize(
    ("work_s", "target_s", "slept", "overrun"),
    [(0.2, 1.0, [0.8], 0.0), (1.0, 1.0, [], 0.0), (1.5, 1.0, [], 0.5), (0.0, 0.0, [], 0.0)],
)
def test_the_rest_is_waited_out_and_overruns_are_counted(work_s, target_s, slept, overrun):
    t = FakeTime()
    p = paced(t.work, (work_s,), target_s, clock=t.clock, sleep=t.sleep)
    assert p.result == "done"
    assert t.slept == pytest.approx(slept)
    assert p.busy_s == pytest.approx(work_s)
    assert p.overrun_s == pytest.approx(overrun)
    assert p.end_s - p.start_s == pytest.approx(max(work_s, target_s))


def test_an_error_comes_through_at_once():
    t = FakeTime()
    with pytest.raises(ZeroDivisionError):
        paced(lambda: 1 / 0, (), 5.0, clock=t.clock, sleep=t.sleep)
    assert t.slept == []


def test_one_thread_computes_in_order_and_real_time_is_kept():
    with compute_thread() as executor:
        futures = [executor.submit(paced, lambda i=i: i, (), 0.02) for i in range(5)]
        results = [f.result() for f in futures]
    assert [r.result for r in results] == list(range(5))
    for before, after in zip(results, results[1:]):
        assert after.start_s >= before.end_s
    assert results[-1].end_s - results[0].start_s >= 5 * 0.02
    assert time.monotonic() >= results[-1].end_s
