"""The replay's plan as data, and its thread with recorded calls in place of a network."""

from __future__ import annotations

import threading
import time

import pytest

from testbed.cluster import Link, LinkState, Topology
from testbed.emulation.schedule.replay import Replayer, ReplayPlan
from testbed.scenario.network import NetworkSettings, NetworkSetup

SERVER = Link(1e9, 1e9, 0.001, 0.001)
A, B, C = LinkState(10e6, 1e6, 0.020), LinkState(20e6, 2e6, 0.030), LinkState(30e6, 3e6, 0.040)


def replay_of(changes, tdf=1.0):
    return ReplayPlan.of(NetworkSetup(Topology(tuple(changes), SERVER), changes, NetworkSettings(tdf=tdf)))


class Recorder:
    """Stands for network and delay backend: notes what it is told, in order."""

    def __init__(self, broken_at: int | None = None):
        self.calls: list[tuple[str, dict]] = []
        self.broken_at = broken_at

    def set_links(self, changes):
        if self.broken_at == len([c for c in self.calls if c[0] == "links"]):
            self.broken_at = None
            raise OSError("no such device")
        self.calls.append(("links", dict(changes)))

    def set(self, changes):
        self.calls.append(("delays", dict(changes)))


def test_changes_due_together_are_one_batch_and_in_order():
    plan = replay_of({"a": [(0, A), (2, C), (5, B)], "b": [(0, B), (5, A)]})
    assert [(b.t_s, sorted(b.states)) for b in plan.batches] == [(2, ["a"]), (5, ["a", "b"])]
    assert plan.batches[0].links["a"].downlink_bps == C.down_bps
    assert plan.batches[0].delays["a"].up_delay_s == pytest.approx((0.040 - 0.002) / 2)


def test_what_holds_at_the_start_is_not_set_again():
    plan = replay_of({"a": [(-3, C), (0, A), (4, A), (6, B), (8, B), (9, A)]})
    assert [(b.t_s, b.states["a"]) for b in plan.batches] == [(6, B), (9, A)]


def test_dilation_moves_the_due_times():
    plan = replay_of({"a": [(0, A), (60, B)]}, tdf=4)
    (batch,) = plan.batches
    assert (batch.t_s, batch.due_s) == (60, 240)
    assert batch.links["a"].uplink_bps == B.up_bps / 4
    assert batch.delays["a"].up_delay_s == pytest.approx(4 * (0.030 - 0.002) / 2)


def test_times_that_go_back_are_refused():
    with pytest.raises(ValueError, match="a: 1 s comes after 2 s"):
        replay_of({"a": [(2, A), (1, B)]})


def test_every_batch_is_applied_links_first_and_reported_after():
    target, steps = Recorder(), []
    plan = replay_of({"a": [(0, A), (0.01, B), (0.02, C)], "b": [(0, A), (0.02, B)]})
    replayer = Replayer(plan, target, target, on_step=lambda *step: steps.append((len(target.calls), *step)))
    replayer.start(time.monotonic())
    assert replayer.join(5)
    assert [kind for kind, _ in target.calls] == ["links", "delays"] * 2
    assert target.calls[2][1] == plan.batches[1].links
    assert [(n, t, home, state) for n, t, home, state, _ in steps] == [
        (2, 0.01, "a", B),
        (4, 0.02, "a", C),
        (4, 0.02, "b", B),
    ]
    assert len(replayer.lateness_s) == 2
    assert all(late >= 0 for late in replayer.lateness_s)
    assert steps[0][4] == replayer.lateness_s[0]


def test_what_was_due_in_the_past_is_applied_at_once_and_counted_late():
    target = Recorder()
    replayer = Replayer(replay_of({"a": [(0, A), (1, B), (2, C)]}), target, target)
    replayer.start(time.monotonic() - 10)
    assert replayer.join(5)
    assert replayer.lateness_s[0] >= 9
    assert len(target.calls) == 4


def test_stop_ends_a_long_wait_and_nothing_comes_after():
    target = Recorder()
    replayer = Replayer(replay_of({"a": [(0, A), (3600, B)]}), target, target)
    replayer.start(time.monotonic())
    assert not replayer.done
    replayer.stop()
    replayer.stop()
    assert replayer.done
    assert target.calls == []


def test_stopping_from_within_a_step_works():
    target = Recorder()
    plan = replay_of({"a": [(0, A), (0.001, B), (0.002, C)]})
    replayer = Replayer(plan, target, target, on_step=lambda *_: replayer.stop())
    replayer.start(time.monotonic())
    assert replayer.join(5)
    assert len(target.calls) == 2


def test_an_error_is_kept_and_ends_the_replay(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    target = Recorder(broken_at=0)
    replayer = Replayer(replay_of({"a": [(0, A), (0.001, B), (0.002, C)]}), target, target)
    replayer.start(time.monotonic())
    assert replayer.join(5)
    assert isinstance(replayer.error, OSError)
    assert target.calls == []


def test_with_a_handler_the_replay_goes_on_after_an_error():
    target, errors = Recorder(broken_at=0), []
    plan = replay_of({"a": [(0, A), (0.001, B), (0.002, C)]})
    replayer = Replayer(plan, target, target, on_error=errors.append)
    replayer.start(time.monotonic())
    assert replayer.join(5)
    assert len(errors) == 1
    assert target.calls[0][1] == plan.batches[1].links
