"""Devices that leave and return on a real network: what others notice, when, and what goes on afterwards."""

from __future__ import annotations

import time

import pytest
from steady import measured
from test_workers import make_plan

from testbed.emulation.process.workers import WorkerPool
from testbed.emulation.schedule.churn import ChurnController
from testbed.errors import InputError
from testbed.runtime.failure_detector import DetectorSettings

pytestmark = pytest.mark.emulation


@pytest.fixture
def started(build, tmp_path):
    """Network and pool with workers up: started(runner, homes, up_mbps=…, absent=…, **plan data)."""
    pools = []

    def start(runner, homes, *, absent=(), up_mbps=20, **data):
        network = build(tuple(homes), up_mbps=up_mbps)
        events = []
        pool = WorkerPool(
            state=network.state, run_dir=tmp_path, runner=f"worker_runners:{runner}",
            plan=make_plan(homes, **data), addresses=network.hosts, on_event=events.append,
        )  # fmt: skip
        pools.append(pool)
        for name in absent:
            network.link_down(name)
        pool.start()
        pool.launch(["server", *(h for h in homes if h not in absent)])
        return network, pool, events

    yield start
    for pool in pools:
        pool.close()


def of(events, event, /, **fields):
    return [e for e in events if e["event"] == event and all(e.get(k) == v for k, v in fields.items())]


def test_every_mode_is_noticed_and_survived(started):
    homes = {"home0": "kill", "home1": "suspend", "home2": "disconnect"}
    network, pool, events = started("Rounds", [*homes, "home3"], absent=["home3"], rounds=30, pause=0.1)
    t0 = time.monotonic() + 0.1
    pool.begin(t0)
    churn = []
    for name, mode in homes.items():
        schedule = [(1.0, name, "leave"), (4.0, name, "return")]
        if mode == "suspend":
            schedule.append((0.5, "home3", "return"))  # absent so far: launched, whatever the mode
        c = ChurnController(schedule, mode=mode, network=network, pool=pool, on_event=events.append)
        c.start(t0)
        churn.append(c)
    outcome = pool.wait(60)
    for c in churn:
        c.stop()
        assert c.error is None
    assert outcome.ok, outcome
    pool.close()
    settings = DetectorSettings()
    for name, mode in homes.items():
        leave, back = of(events, "churn", node=name)
        assert (leave["action"], back["action"], leave["mode"]) == ("leave", "return", mode)
        assert leave["cause"] == "trace"
        (left,) = of(events, "member", node="server", kind="left", peer=name)
        assert leave["t"] < left["t"] < back["t"]
        assert settings.floor_s <= left["detection"] < 3.0
        (joined,) = [e for e in of(events, "member", node="server", kind="joined", peer=name) if e["t"] > 0]
        assert joined["generation"] == 2
        assert back["t"] < joined["t"] < back["t"] + 3.0
        rounds = of(events, "round", device=name)
        assert [e["n"] for e in rounds] == list(range(1, 31))
        assert [e["generation"] for e in rounds] == sorted(e["generation"] for e in rounds)
        first_again = next(e for e in rounds if e["generation"] == 2)
        assert first_again["lives"] == 1  # `work` started anew
        assert len(of(events, "lost", device=name)) == 1
        others = [h for h in homes if h != name]
        for other in others:  # who was away or not, all come to the same view
            changes = [e for e in of(events, "member", node=other, peer=name) if e["t"] > 0]
            seen = [(e["kind"], e["generation"]) for e in changes]
            assert seen in ([("left", 1), ("joined", 2)], [("joined", 2)], [])
    ready = [e for e in of(events, "worker", node="home3") if e["state"] == "ready"]
    assert len(ready) == 1
    assert ready[0]["t"] > 0.5


@measured
def test_a_short_outage_costs_time_but_no_generation_and_no_message(started):
    network, pool, events = started("Rounds", ["home0"], rounds=40, pause=0.05)
    t0 = time.monotonic() + 0.1
    pool.begin(t0)
    schedule = [(1.5, "home0", "leave"), (2.1, "home0", "return")]
    churn = ChurnController(schedule, mode="disconnect", network=network, pool=pool, on_event=events.append)
    churn.start(t0)
    outcome = pool.wait(60)
    churn.stop()
    assert outcome.ok
    assert of(events, "lost") == []
    rounds = of(events, "round")
    assert [(e["n"], e["lives"], e["generation"]) for e in rounds] == [(n, n, 1) for n in range(1, 41)]
    gaps = [(b["t"] - a["t"], a["t"]) for a, b in zip(rounds, rounds[1:])]
    longest, at = max(gaps)
    assert at < 2.1
    assert 0.5 < longest < 0.6 + 1.5  # the outage, and at most TCP's timeout and some scheduling on top


@measured
def test_saturated_slow_uplinks_cause_no_false_alarm(started):
    homes = ["home0", "home1"]
    network, pool, events = started("Stream", homes, up_mbps=1, messages=6, elements=40_000)
    pool.begin(time.monotonic() + 0.1)
    outcome = pool.wait(60)  # 2 × 0.96 MB at 1 Mbit/s each: 8 s with the buffers full
    assert outcome.ok
    assert of(events, "member", kind="left") == []
    assert max(e["t"] for e in of(events, "transfer", tag="bulk")) > 6


def test_toggles_by_hand_and_bad_schedules():
    calls = []

    class Fake:
        down = {"c"}

        def __getattr__(self, name):
            return lambda device: calls.append((name, device))

    class Pool(Fake):
        def state(self, name):
            return {"a": "ready", "b": "killed", "c": None}[name]

    events = []
    churn = ChurnController([], mode="kill", network=Fake(), pool=Pool(), on_event=events.append)
    assert churn.away == {"c"}
    assert churn.leave("a")
    assert not churn.leave("a")
    assert churn.leave("b")
    assert churn.come_back("b")
    assert churn.come_back("c")
    assert not churn.come_back("c")
    assert churn.away == {"a"}
    assert calls == [
        ("link_down", "a"), ("kill", "a"), ("link_down", "b"), ("kill", "b"),
        ("link_up", "b"), ("relaunch", "b"), ("link_up", "c"), ("relaunch", "c"),
    ]  # fmt: skip
    assert [(e["node"], e["action"], e["cause"]) for e in events] == [
        ("a", "leave", "manual"), ("b", "leave", "manual"),
        ("b", "return", "manual"), ("c", "return", "manual"),
    ]  # fmt: skip
    with pytest.raises(InputError, match="did you mean 'suspend'"):
        ChurnController([], mode="suspended", network=Fake(), pool=Pool())
    with pytest.raises(InputError, match="action 'go'"):
        ChurnController([(1.0, "a", "go")], mode="kill", network=Fake(), pool=Pool())
