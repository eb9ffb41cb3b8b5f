"""The failure detector on links and machines that misbehave, in simulated time."""

import heapq
import itertools
import random

import pytest

from testbed.emulation.process.membership import Expelled, Joined, Lease, Registry
from testbed.runtime import MembershipEvent
from testbed.runtime.failure_detector import AwakeTime, DetectorSettings, LossWindow, RoundTrip, WindowMax

SETTINGS = DetectorSettings()


class World:
    """Registry and leases over links whose delay and loss are functions of (simulated) time."""

    def __init__(
        self, names=("a",), *, delay=lambda t: 0.015, loss=0.0, stalled=lambda who, t: False, seed=0
    ):  # fmt: skip
        self.names = list(names)
        self.now = 0.0
        self.random = random.Random(seed)
        self.delay, self.loss, self.stalled = delay, loss, stalled
        self.cut = set()
        self.order = itertools.count()
        self.flying = []
        self.registry = Registry(self.names, SETTINGS, 0.0)
        self.leases = {n: Lease(self.names, n, SETTINGS, 0.0, nonce=1) for n in names}
        self.inbox = {n: [] for n in (*names, "server")}
        self.events = []  # the server's
        self.changes = {n: [] for n in names}

    def send(self, device, to, data):
        if device in self.cut or self.random.random() < self.loss:
            return
        heapq.heappush(self.flying, (self.now + self.delay(self.now), next(self.order), device, to, data))

    def run(self, seconds, tick=0.01):
        end = self.now + seconds
        while self.now < end:
            self.now += tick
            while self.flying and self.flying[0][0] <= self.now:
                _, _, device, to, data = heapq.heappop(self.flying)
                if device not in self.cut:
                    self.inbox[to].append((device, data))
            if not self.stalled("server", self.now):
                box, self.inbox["server"] = self.inbox["server"], []
                for device, data in box:
                    self._server(self.registry.receive(data, device, self.now))
                self._server(self.registry.judge(self.now))
            for name, lease in self.leases.items():
                if not self.stalled(name, self.now):
                    box, self.inbox[name] = self.inbox[name], []
                    for _, data in box:
                        self.changes[name] += lease.receive(data, self.now)
                    if lease.due_s <= self.now:
                        beat, changes = lease.poll(self.now)
                        self.changes[name] += changes
                        if beat:
                            self.send(name, "server", beat)

    def _server(self, outcome):
        out, events = outcome
        self.events += events
        for device, data in out:
            self.send(device, device, data)

    def lost(self):
        return [e for e in self.events if e.kind == "left"] + [
            c for cs in self.changes.values() for c in cs if isinstance(c, Expelled)
        ]


def bursts(t):
    """15 ms one way, and up to 100 ms more for 5 s of every 20, while training traffic fills the buffers."""
    return 0.015 + (0.1 * random.Random(int(t * 50)).random() ** 0.2 if t % 20 < 5 else 0.0)


def stalls(length, every):
    def stalled(who, t):
        offset = 0.0 if who == "server" else 1.7 + (sum(map(ord, who)) % 7)
        return (t + offset) % every < length

    return stalled


@pytest.mark.parametrize(
    "conditions",
    [
        dict(),
        dict(delay=bursts),
        dict(delay=bursts, loss=0.02),
        dict(loss=0.1),
        dict(stalled=stalls(0.4, 7.0)),
        dict(delay=bursts, loss=0.02, stalled=stalls(0.3, 11.0)),
        dict(delay=lambda t: 0.3),
        dict(delay=lambda t: 0.02 + 0.2 * random.Random(int(t * 100)).random()),
    ],
    ids=["idle", "bursts", "bursts+loss", "loss10%", "stalls", "all", "satellite", "jitter"],
)
def test_no_false_alarm_in_ten_minutes_and_detection_within_seconds(conditions):
    world = World(["a", "b"], **conditions)
    world.run(600)
    assert world.lost() == []
    world.cut.add("a")
    world.run(6)
    (left,) = [e for e in world.events if e.kind == "left"]
    assert left.name == "a"
    assert SETTINGS.floor_s <= left.detection_s < 3.5
    (expelled,) = [c for c in world.changes["a"] if isinstance(c, Expelled)]
    assert expelled.reason == "the lease ran out"
    (seen,) = [c for c in world.changes["b"] if isinstance(c, MembershipEvent) and c.kind == "left"]
    assert (seen.name, seen.generation) == ("a", 1)


def test_deadlines_begin_long_and_come_down_on_a_quiet_link():
    world = World()
    world.run(0.3)
    assert world.registry.deadline_s("a") > 2.0
    world.run(60)
    assert SETTINGS.floor_s <= world.registry.deadline_s("a") < 1.1


def test_the_deadline_grows_with_loss_and_comes_back():
    world = World()
    world.run(60)
    quiet = world.registry.deadline_s("a")
    world.loss = 0.12
    world.run(60)
    assert world.registry.deadline_s("a") > 1.5 * quiet
    assert world.lost() == []
    world.loss = 0.0
    world.run(120)
    assert world.registry.deadline_s("a") == pytest.approx(quiet, rel=0.05)


def test_a_machine_that_stalls_as_a_whole_blames_nobody():
    world = World(["a", "b", "c"], stalled=lambda who, t: 30 < t < 33)
    world.run(60)
    assert world.lost() == []


def test_a_device_frozen_for_long_learns_from_the_server_that_it_is_out_and_rejoins():
    world = World(["a", "b"], stalled=lambda who, t: who == "a" and 10 < t < 25)
    world.run(26)
    assert [(e.kind, e.name) for e in world.events] == [("joined", "a"), ("joined", "b"), ("left", "a")]
    expelled = [c.reason for c in world.changes["a"] if isinstance(c, Expelled)]
    assert expelled == ["the server gave this device up"]
    world.leases["a"].rejoin(2, world.now)
    world.run(1)
    assert world.registry.alive == {"a": 2, "b": 1}
    joined = [c for c in world.changes["a"] if isinstance(c, Joined)][-1]
    assert (joined.generation, joined.alive) == (2, {"a": 2, "b": 1})
    assert [(e.kind, e.generation) for e in world.changes["b"][-2:]] == [("left", 1), ("joined", 2)]


def test_a_device_relaunched_before_its_loss_was_noticed_leaves_and_joins():
    world = World(["a", "b"])
    world.run(5)
    world.leases["a"] = Lease(world.names, "a", SETTINGS, world.now, nonce=2)
    world.run(1)
    seen = [(e.kind, e.name, e.generation) for e in world.events[2:]]
    assert seen == [("left", "a", 1), ("joined", "a", 2)]


def test_an_admission_that_never_arrived_does_not_lock_a_device_out():
    world = World(["a", "b"])
    world.run(0.014)
    to_server = world.send
    world.send = lambda device, to, data: None if to == "a" else to_server(device, to, data)
    world.run(1)
    world.cut.add("a")
    world.run(10)
    world.cut.clear()
    world.send = to_server
    world.run(2)
    assert world.registry.alive["a"] == world.leases["a"]._generation >= 2


def test_views_are_the_servers_log_in_order_whatever_is_lost():
    names = [f"d{i}" for i in range(12)]
    world = World(names, loss=0.2, seed=5)
    chaos = random.Random(7)
    nonce = itertools.count(2)
    for _ in range(40):
        world.run(chaos.uniform(0.2, 2.0))
        name = chaos.choice(names[1:])
        if name in world.cut:
            world.cut.discard(name)
            world.leases[name] = Lease(names, name, SETTINGS, world.now, next(nonce))
        else:
            world.cut.add(name)
    world.loss = 0.0
    world.run(20)
    joined = next(i for i, c in enumerate(world.changes["d0"]) if isinstance(c, Joined))
    start = world.changes["d0"][joined].version
    assert not [c for c in world.changes["d0"] if isinstance(c, Expelled)]
    assert world.changes["d0"][joined + 1 :] == world.events[start:]
    assert len(world.events) > 40


def test_times_before_the_start_are_zero_and_later_ones_count_from_it():
    world = World(["a"])
    world.run(3)
    world.registry.start_s = world.now
    world.cut.add("a")
    world.run(5)
    assert world.events[0].at_s == 0.0
    assert world.events[1].at_s == pytest.approx(world.events[1].detection_s, abs=0.25)


def test_garbage_and_strangers_are_ignored():
    world = World(["a"])
    world.run(2)
    assert world.registry.receive(b"\xff\x00nonsense", "x", world.now) == ([], [])
    assert world.leases["a"].receive(b"nonsense", world.now) == []
    stranger = Lease(["x", "y", "z"], "z", SETTINGS, 0.0, 1)
    assert world.registry.receive(stranger.poll(0.0)[0], "x", world.now) == ([], [])


def test_window_max_forgets():
    w = WindowMax(3)
    seen = []
    for v in [5, 1, 4, 2, 1, 0]:
        w.add(v)
        seen.append(w.value)
    assert seen == [5, 5, 5, 4, 4, 2]


def test_loss_window_counts_gaps_and_ignores_duplicates():
    w = LossWindow(100)
    assert w.value == 0.5
    assert [w.add(s) for s in (1, 2, 5, 5, 4, 6)] == [1, 1, 3, 0, -1, 1]
    assert w.value == (2 + 1) / (6 + 2)
    for s in range(7, 200):
        w.add(s)
    assert w.value == 1 / (LossWindow.FEW + 2)


def test_loss_window_reacts_at_once_and_forgets_slowly():
    w = LossWindow(300)
    for s in range(300):
        w.add(s)
    for s in range(300, 330, 3):
        w.add(s)
    assert w.value > 0.6
    for s in range(330, 360):
        w.add(s)
    assert w.value == pytest.approx(20 / 300, rel=0.1)


def test_round_trip_follows_rfc_6298():
    r = RoundTrip(SETTINGS)
    r.echoed(1, 0.1)
    assert r.bound_s == pytest.approx(0.1 + 4 * 0.05)
    r.echoed(2, 0.2)
    variation = 0.75 * 0.05 + 0.25 * 0.1
    assert r.smoothed_s == pytest.approx(0.875 * 0.1 + 0.125 * 0.2)
    assert r.bound_s == pytest.approx(r.smoothed_s + 4 * variation)


def test_awake_time_counts_a_stall_once():
    a = AwakeTime(0.0, 0.2)
    for t in (0.1, 0.2, 5.0, 5.1):
        a.tick(t)
    assert a.value == pytest.approx(0.5)
