"""Computation takes the device's time, never less."""

import pytest

from testbed.emulation.process.pacing import SLACK_S, Pacer, compute_thread


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
    p = Pacer(t.clock, t.sleep).run(t.work, (work_s,), target_s, t.now)
    assert p.result == "done"
    assert t.slept == pytest.approx(slept)
    assert p.busy_s == pytest.approx(work_s)
    assert p.overrun_s == pytest.approx(overrun)
    assert p.end_s - p.start_s == pytest.approx(max(work_s, target_s))


def test_an_error_comes_through_at_once():
    t = FakeTime()
    with pytest.raises(ZeroDivisionError):
        Pacer(t.clock, t.sleep).run(lambda: 1 / 0, (), 5.0, t.now)
    assert t.slept == []


def test_one_right_after_another_loses_no_time_and_a_pause_is_a_pause():
    t = FakeTime()
    pacer = Pacer(t.clock, t.sleep)
    first = pacer.run(t.work, (0.001,), 0.005, t.now)
    for _ in range(9):
        t.now += 0.0003  # the event loop hears of it and asks for the next
        last = pacer.run(t.work, (0.001,), 0.005, t.now)
    assert last.end_s - first.start_s == pytest.approx(10 * 0.005)
    assert t.now == pytest.approx(last.end_s)
    t.now += 0.1
    after = pacer.run(t.work, (0.0,), 0.005, t.now)
    assert after.start_s == pytest.approx(last.end_s + 0.1)


def test_one_asked_for_while_another_runs_follows_it():
    t = FakeTime()
    pacer = Pacer(t.clock, t.sleep)
    asked = t.now
    first = pacer.run(t.work, (2.0,), 1.0, asked)
    second = pacer.run(t.work, (0.1,), 1.0, asked)
    assert first.end_s == second.start_s == pytest.approx(102.0)
    assert second.end_s == pytest.approx(103.0)
    assert (first.overrun_s, second.overrun_s) == (pytest.approx(1.0), 0.0)


def test_a_late_wake_up_counts():
    t = FakeTime()
    p = Pacer(t.clock, lambda s: t.sleep(s + 0.02)).run(t.work, (0.1,), 1.0, t.now)
    assert p.end_s - p.start_s == pytest.approx(1.02)
    assert p.overrun_s == 0.0


def test_one_thread_computes_in_order_and_real_time_is_kept():
    pacer = Pacer()
    with compute_thread() as executor:
        asked = pacer._clock()
        futures = [executor.submit(pacer.run, lambda i=i: i, (), 0.02, asked) for i in range(5)]
        results = [f.result() for f in futures]
    assert [r.result for r in results] == list(range(5))
    for before, after in zip(results, results[1:]):
        assert after.start_s >= before.end_s
    assert pacer._clock() - asked >= 5 * 0.02 - SLACK_S
