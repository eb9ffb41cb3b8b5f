"""The in-process engine keeps the rules that runners rely on."""

import asyncio

import pytest
import torch

from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec
from testbed.runtime import ANY, PeerLost, Plan
from testbed.runtime.local import Deadlock, LocalEngine


def make_plan(devices=3, **data):
    link = Link(1e7, 1e8, 0.01, 0.01)
    cluster = Cluster(
        Device("server", 1e10, 1 << 30, Link(1e9, 1e9)),
        tuple(Device(f"home{i}", 1e9, 1 << 28, link) for i in range(devices)),
    )
    return Plan("test", ModelSpec(), TrainingSpec(), cluster, data=data)


class Base:
    correctness = "E0"

    async def work(self, node, plan):
        pass


def run(engine):
    return asyncio.run(engine.run())


def of(events, kind, node=None):
    return [e for e in events if e["event"] == kind and node in (None, e["node"])]


def left(event):
    return event["kind"] == "left"


def leaves(event):
    return event["action"] == "leave"


class Echo(Base):
    async def coordinate(self, node, plan):
        x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        for name in node.membership.alive:
            await node.send(name, "x", [x, torch.empty(0)], k=[1, None])
        x.zero_()
        for name in node.membership.alive:
            m = await node.recv(name, "y")
            assert m.tensors[0].dtype == torch.bfloat16
            assert m.tensors[0].tolist() == [[0, 2, 4], [6, 8, 10]]
            assert m.meta == {"k": [1, None]}
            assert m.received_s > m.sent_s
            node.record("got", name=name)

    async def work(self, node, plan):
        m = await node.recv("server", "x")
        y = await node.compute(lambda a: a * 2, m.tensors[0], flops=5e8)
        await node.send("server", "y", [y], **m.meta)


def test_messages_are_copies_and_keep_dtype_shape_and_meta():
    events = run(LocalEngine(make_plan(), Echo))
    assert len(of(events, "got")) == 3
    for c in of(events, "compute"):
        assert c["end"] - c["start"] == pytest.approx(0.5)
    sent = {(e["node"], e["peer"], e["tag"]): e["bytes"] for e in of(events, "send")}
    came = {(e["peer"], e["node"], e["tag"]): e["bytes"] for e in of(events, "transfer")}
    assert sent == came
    assert len(sent) == 6


class Ordered(Base):
    async def coordinate(self, node, plan):
        last = dict.fromkeys(node.membership.alive, -1)
        for _ in range(3 * 50):
            m = await node.recv(ANY, "n")
            assert m.meta["n"] == last[m.source] + 1
            last[m.source] += 1

    async def work(self, node, plan):
        for n in range(50):
            await node.send("server", "n", n=n)


@pytest.mark.parametrize("seed", range(3))
def test_messages_of_a_pair_keep_their_order(seed):
    run(LocalEngine(make_plan(), Ordered, seed=seed))


def test_a_seed_fixes_the_interleaving():
    def order(seed):
        return [e["peer"] for e in of(run(LocalEngine(make_plan(), Ordered, seed=seed)), "transfer")]

    assert order(1) == order(1)
    assert order(1) != order(2)


class Watcher(Base):
    """The server pings home1 for ever; reports losses and returns."""

    async def coordinate(self, node, plan):
        served = 0
        while served < plan.data["rounds"]:
            try:
                await node.send("home1", "ping", served=served)
                m = await node.recv("home1", "pong")
                served += 1
                node.record("round", n=served, lives=m.meta["lives"], generation=m.generation)
            except PeerLost as e:
                node.record("lost", peer=e.peer)
                while "home1" not in node.membership.alive:
                    await node.membership.next_event()

    async def work(self, node, plan):
        if node.name != "home1":
            return
        lives = 0
        while True:
            await node.recv("server", "ping")
            lives += 1
            await node.sleep(0.1)
            await node.send("server", "pong", lives=lives)


def test_kill_is_noticed_after_the_detection_time_and_a_rejoined_device_starts_anew():
    engine = LocalEngine(make_plan(rounds=5), Watcher, detection_s=1.5)
    engine.at("round", lambda e: e["n"] == 2, lambda: engine.after(0.05, lambda: engine.kill("home1")))
    engine.at("member", left, lambda: engine.after(3.0, lambda: engine.rejoin("home1")))
    events = run(engine)
    (noticed,) = filter(left, of(events, "member", "server"))
    (killed,) = filter(leaves, of(events, "churn"))
    assert noticed["t"] - killed["t"] == pytest.approx(1.5)
    assert noticed["detection"] == pytest.approx(1.5)
    lives = [(e["lives"], e["generation"]) for e in of(events, "round")]
    assert lives == [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2)]
    assert [e["peer"] for e in of(events, "lost")] == ["home1"]
    elsewhere = [e for e in of(events, "member", "home0") if e["peer"] == "home1"]
    assert [e["kind"] for e in elsewhere] == ["left", "joined"]
    assert elsewhere[0]["t"] > noticed["t"]


def test_a_device_back_before_its_loss_was_noticed_is_still_a_new_generation():
    engine = LocalEngine(make_plan(rounds=3), Watcher, detection_s=10)
    engine.at("round", lambda e: e["n"] == 1, lambda: engine.after(0.05, lambda: engine.kill("home1")))
    engine.at("churn", leaves, lambda: engine.after(0.5, lambda: engine.rejoin("home1")))
    events = run(engine)
    assert [e["kind"] for e in of(events, "member", "server")][3:] == ["left", "joined"]
    assert of(events, "round")[-1]["generation"] == 2


def test_a_short_suspension_delays_and_a_long_one_costs_the_lease():
    def rounds(length):
        engine = LocalEngine(make_plan(rounds=4), Watcher, detection_s=1.0)
        engine.at("round", lambda e: e["n"] == 1, lambda: engine.suspend("home1"))
        engine.after(length, lambda: engine.resume("home1"))
        return run(engine)

    short = rounds(0.9)
    assert [e["generation"] for e in of(short, "round")] == [1, 1, 1, 1]
    assert short[-1]["t"] > 1.0
    long = rounds(5.0)
    assert [(e["lives"], e["generation"]) for e in of(long, "round")] == [(1, 1), (1, 2), (2, 2), (3, 2)]


class Lease(Base):
    async def coordinate(self, node, plan):
        try:
            await node.recv("home0", "never")
        except PeerLost:
            await node.membership.next_event()
            await node.membership.next_event()
        await node.recv("home0", "second life")

    async def work(self, node, plan):
        if node.name != "home0":
            return
        if node.membership.alive["home0"] == 2:
            await node.send("server", "second life")
            return
        try:
            await node.recv("server", "never")
        except PeerLost as e:
            node.record("self-lost", peer=e.peer, at=node.now())
            with pytest.raises(PeerLost):
                await node.send("server", "too late")
            raise


def test_a_disconnected_device_notices_by_itself_and_rejoins():
    engine = LocalEngine(make_plan(), Lease, detection_s=2.0)
    engine.after(1.0, lambda: engine.disconnect("home0"))
    engine.after(9.0, lambda: engine.reconnect("home0"))
    (lost,) = of(run(engine), "self-lost")
    assert lost["peer"] == "home0"
    assert lost["at"] == pytest.approx(3.0)


class Late(Base):
    """home0 sends to the server just before it dies; the message must not be taken for the next life's."""

    async def coordinate(self, node, plan):
        while True:
            event = await node.membership.next_event()
            if event.kind == "joined":
                break
        m = await node.recv("home0", "hello")
        node.record("hello", generation=m.generation, life=m.meta["life"])

    async def work(self, node, plan):
        if node.name == "home0":
            life = node.membership.alive["home0"]
            if life == 2:
                await node.sleep(1.0)
            await node.send("server", "hello", life=life)


def test_messages_of_an_earlier_generation_are_dropped():
    engine = LocalEngine(make_plan(), Late)
    engine.at("transfer", lambda e: e["tag"] == "hello", lambda: engine.kill("home0"))
    engine.at("member", left, lambda: engine.rejoin("home0"))
    (hello,) = of(run(engine), "hello")
    assert (hello["generation"], hello["life"]) == (2, 2)


class Introduce(Base):
    """The server tells home0 of a newcomer; home0 must know it by then, however slow the view is."""

    async def coordinate(self, node, plan):
        event = await node.membership.next_event()
        assert (event.kind, event.name) == ("joined", "home2")
        await node.send("home0", "meet", who=event.name)
        await node.recv("home2", "done")

    async def work(self, node, plan):
        if node.name == "home0":
            m = await node.recv("server", "meet")
            await node.send(m.meta["who"], "hi")
        if node.name == "home2":
            await node.recv("home0", "hi")
            await node.send("server", "done")


@pytest.mark.parametrize("seed", range(8))
def test_a_message_never_overtakes_the_view_behind_it(seed):
    engine = LocalEngine(make_plan(), Introduce, seed=seed, absent=["home2"], jitter=5.0)
    engine.after(0.5, lambda: engine.rejoin("home2"))
    run(engine)


class Cancelling(Base):
    async def coordinate(self, node, plan):
        got = []
        for _ in range(20):
            receive = asyncio.ensure_future(node.recv("home0", "n"))
            await node.sleep(0.003)
            receive.cancel()
            try:
                got.append((await receive).meta["n"])
            except asyncio.CancelledError:
                pass
        while len(got) < 10:
            got.append((await node.recv("home0", "n")).meta["n"])
        assert got == list(range(10))

    async def work(self, node, plan):
        if node.name == "home0":
            for n in range(10):
                await node.send("server", "n", n=n)
                await node.sleep(0.002)


def test_cancelling_a_receive_loses_no_message():
    run(LocalEngine(make_plan(), Cancelling))


class Stuck(Base):
    async def coordinate(self, node, plan):
        await node.recv("home0", "nothing")

    async def work(self, node, plan):
        await node.recv("server", "either")


def test_a_deadlock_says_who_waits_for_what():
    with pytest.raises(Deadlock, match=r"server: recv\(home0, 'nothing'\)"):
        run(LocalEngine(make_plan(), Stuck))


class Broken(Base):
    async def coordinate(self, node, plan):
        await node.recv(ANY, "nothing")

    async def work(self, node, plan):
        if node.name == "home1":
            raise ZeroDivisionError("bug in a runner")


def test_an_error_at_a_device_ends_the_run_and_is_raised():
    with pytest.raises(ZeroDivisionError, match="bug in a runner"):
        run(LocalEngine(make_plan(), Broken))


class BadMeta(Base):
    async def coordinate(self, node, plan):
        with pytest.raises(TypeError, match="JSON-like"):
            await node.send("home0", "x", thing=object())
        with pytest.raises(PeerLost):
            await node.send("nobody", "x")
        with pytest.raises(PeerLost):
            await node.recv("nobody", "x")


def test_bad_sends_say_what_is_wrong():
    run(LocalEngine(make_plan(), BadMeta))
