"""The virtual-time engine keeps the rules that runners rely on, and prices what they do."""

import pytest
import torch

from testbed.cluster import Cluster, Device, Link, LinkState, ModelSpec, SharedLink, TrainingSpec
from testbed.cluster.model import SERVER
from testbed.cluster.tcp import INITIAL_WINDOW, MAX_RTO_S, Window
from testbed.runtime import ANY, PeerLost, Plan, wire
from testbed.simulation import tcp
from testbed.simulation.engine import PortChange, Simulation
from testbed.simulation.network import PortSettings

MB = 1_000_000


def simulation(runner, devices=3, *, up=8e6, down=80e6, delay=0.01, memory=1 << 30, shared=(), changes=(), **settings):
    """Homes home0 … behind like links: 1 MB/s up, 10 MB/s down, 22 ms of RTT to the server."""
    port = PortSettings(up, down, delay, delay)
    server = PortSettings(1e9, 1e9, 0.001, 0.001)
    link = Link(up, down, delay, delay)
    names = [f"home{i}" for i in range(devices)]
    cluster = Cluster(
        Device(SERVER, 1e10, 1 << 40, Link(1e9, 1e9, 0.001, 0.001)),
        tuple(Device(n, 1e9, memory, link) for n in names),
        shared,
    )
    state = LinkState(down, up, 2 * delay)
    links = {SERVER: [PortChange(0.0, server, state)], **{n: [PortChange(0.0, port, state)] for n in names}}
    for at, name, up, down in changes:
        links[name].append(PortChange(at, PortSettings(up, down, delay, delay), LinkState(down, up, 2 * delay)))
    events = []
    plan = Plan("test", ModelSpec(), TrainingSpec(), cluster, data=settings.pop("data", {}))
    sim = Simulation(plan, runner, links, on_event=events.append, **settings)
    return sim, events


def run(*args, status="complete", **settings):
    sim, events = simulation(*args, **settings)
    outcome = sim.run()
    assert outcome.status == status, outcome
    return events if status == "complete" else (outcome, events)


def of(events, kind, node=None):
    return [e for e in events if e["event"] == kind and node in (None, e["node"])]


class Base:
    correctness = "E0"

    async def work(self, node, plan):
        pass


class Echo(Base):
    async def coordinate(self, node, plan):
        x = torch.empty(MB // 4)
        for name in node.membership.alive:
            await node.send(name, "x", [x], k=[1, None])
        for name in node.membership.alive:
            m = await node.recv(name, "y")
            assert m.meta == {"k": [1, None]}
            assert m.tensors[0].shape == (MB // 4,)

    async def work(self, node, plan):
        m = await node.recv(SERVER, "x")
        y = await node.compute(lambda a: a * 2, m.tensors[0], flops=5e8)
        await node.send(SERVER, "y", [y], **m.meta)


def test_a_message_takes_its_bytes_over_the_rate_and_computation_its_flops_over_the_speed():
    events = run(Echo)
    for e in of(events, "compute"):
        assert e["end"] - e["start"] == pytest.approx(0.5)
    for e in of(events, "transfer", SERVER):
        slow_start = tcp.HANDSHAKE_RTTS * 0.022 + 0.05
        assert 1.0 + 0.011 < e["end"] - e["start"] < 1.0 + 0.011 + slow_start
    sent = {(e["node"], e["peer"], e["tag"]): e["bytes"] for e in of(events, "send")}
    came = {(e["peer"], e["node"], e["tag"]): e["bytes"] for e in of(events, "transfer")}
    assert sent == came
    assert len(sent) == 6
    totals = {e["node"]: e for e in of(events, "totals")}
    assert totals["home0"]["bytes_down"] == sent[SERVER, "home0", "x"]
    assert totals["home0"]["compute_s"] == pytest.approx(0.5)
    passed = sum(e["bytes"] for e in of(events, "throughput", "home0") if e["direction"] == "up")
    assert passed == pytest.approx(MB * 1514 / 1448, rel=0.01)


@pytest.mark.parametrize(
    "meta", [{}, {"i": 70_000, "part": [1, (2, 3.5)], "none": None}, {str(k): k for k in range(20)}]
)
def test_a_simulated_message_has_the_bytes_and_the_meta_of_one_on_the_wire(meta):
    def header():
        return wire.Header("server", 1, 2, 300, 70_000, "task", 1.5, [("float32", [3, 400])], meta)

    encoded = wire.encode_header(header())
    assert wire.as_received(header()) == (len(encoded), wire.decode_header(encoded).meta)


def test_meta_that_no_wire_could_carry_is_refused():
    header = wire.Header("server", 1, 1, 1, 0, "task", 0.0, [], {"x": object()})
    with pytest.raises(TypeError, match="'task': meta must be JSON-like"):
        wire.as_received(header)


def test_neighbours_share_their_neighbourhoods_uplink():
    def last(shared):
        return max(e["end"] for e in of(run(Echo, 2, shared=shared), "transfer", SERVER))

    alone = last(())
    together = last((SharedLink("north", ("home0", "home1"), 8e6, 80e6),))
    assert together - alone == pytest.approx(1.0, rel=0.15)


def test_a_link_change_is_followed_while_a_message_is_under_way():
    events = run(Echo, 1, changes=[(1.0, "home0", 4e6, 80e6)])
    (e,) = of(events, "transfer", SERVER)
    assert e["end"] == pytest.approx(1.0 + 2 * (1.0 - (1.0 - e["start"])), rel=0.1)


class Busy(Base):
    async def coordinate(self, node, plan):
        await node.recv(ANY, "done")

    async def work(self, node, plan):
        import asyncio

        if node.name == "home0":
            await asyncio.gather(*(node.compute(lambda: None, flops=1e9) for _ in range(3)))
            await node.send(SERVER, "done")


def test_a_node_computes_one_thing_at_a_time():
    assert [e["start"] for e in of(run(Busy), "compute")] == pytest.approx([0, 1, 2])


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
                await node.sleep(0.1)
            except PeerLost as e:
                node.record("lost", peer=e.peer)
                while "home1" not in node.membership.alive:
                    await node.membership.next_event()

    def __init__(self):
        self.lives = 0

    async def work(self, node, plan):
        self.lives += 1
        while node.name == "home1":
            await node.recv(SERVER, "ping")
            await node.send(SERVER, "pong", lives=self.lives)


def rounds(mode, leave, back, count=60):
    churn = [(leave, "home1", "leave"), (back, "home1", "return")]
    return run(Watcher, churn=churn, mode=mode, data={"rounds": count}, time_limit_s=100.0)


def test_a_killed_device_is_missed_after_the_detection_time_and_starts_anew():
    events = rounds("kill", 2.0, 5.0)
    (left,) = [e for e in of(events, "member", SERVER) if e["kind"] == "left"]
    assert 1.0 < left["detection"] < 1.3
    assert left["t"] - left["detection"] == pytest.approx(2.0 - 0.1, abs=0.13)
    assert {(e["generation"], e["lives"]) for e in of(events, "round")} == {(1, 1), (2, 1)}
    elsewhere = [e for e in of(events, "member", "home0") if e["peer"] == "home1"]
    assert [e["kind"] for e in elsewhere] == ["left", "joined"]
    assert elsewhere[0]["t"] - left["t"] == pytest.approx(0.011)


@pytest.mark.parametrize("mode", ["suspend", "disconnect"])
def test_a_short_absence_delays_and_a_long_one_costs_the_lease_but_not_the_memory(mode):
    short = rounds(mode, 2.0, 2.6)
    assert {(e["generation"], e["lives"]) for e in of(short, "round")} == {(1, 1)}
    assert not [e for e in of(short, "member", SERVER) if e["kind"] == "left"]
    long = rounds(mode, 2.0, 6.0)
    assert {(e["generation"], e["lives"]) for e in of(long, "round")} == {(1, 1), (2, 2)}


def test_a_device_back_before_its_loss_was_noticed_is_still_a_new_generation():
    events = rounds("kill", 2.0, 2.1)
    assert [e["kind"] for e in of(events, "member", SERVER)][3:] == ["left", "joined"]
    assert of(events, "round")[-1]["generation"] == 2


class Ordered(Base):
    async def coordinate(self, node, plan):
        last = dict.fromkeys(node.membership.alive, -1)
        for _ in range(3 * 50):
            m = await node.recv(ANY, "n")
            assert m.meta["n"] == last[m.source] + 1
            last[m.source] += 1

    async def work(self, node, plan):
        for n in range(50):
            await node.send(SERVER, "n", [torch.empty(1 + 5000 * (n % 3))], n=n)


def test_messages_keep_their_order_and_a_full_queue_makes_the_sender_wait():
    events = run(Ordered)
    waits = [e["end"] - e["start"] for e in of(events, "send", "home0")]
    assert waits[0] == 0
    assert max(waits) > 0


def test_more_than_a_devices_memory_ends_the_run_and_names_the_device():
    outcome, _ = run(Echo, memory=MB // 2, status="failed")
    assert "home0 needed 1 MB" in outcome.error
    assert "500 kB" in outcome.error


def test_a_plan_that_needs_more_than_there_is_fails_before_anything_happens():
    outcome, events = run(Echo, status="failed", data={"memory_bytes": {"home2": 1 << 40}})
    assert "home2 needed 1.1 TB" in outcome.error
    assert not of(events, "send")


class Stuck(Base):
    async def coordinate(self, node, plan):
        await node.recv("home0", "nothing")


def test_a_deadlock_says_who_waits_for_what():
    outcome, _ = run(Stuck, status="failed", time_limit_s=1000.0)
    assert "server: recv(home0, 'nothing')" in outcome.error


class Barrier(Base):
    """The server waits until every device has said that it is ready, whoever is still there."""

    async def coordinate(self, node, plan):
        for _ in plan.cluster.devices:
            await node.recv(ANY, "barrier 1")

    async def work(self, node, plan):
        await node.sleep(5.0)
        await node.send("server", "barrier 1")
        await node.recv("server", "go")


def test_a_barrier_that_meets_a_departure_names_the_device_the_time_and_the_wait():
    outcome, _ = run(Barrier, status="failed", churn=[(2.0, "home1", "leave")])
    assert "server: recv(ANY, 'barrier 1')" in outcome.error
    assert "home0: recv(server, 'go')" in outcome.error
    assert "home1 left at 2.000 s (kill), lost to the server at 3." in outcome.error
    assert "not back" in outcome.error


class Broken(Base):
    async def coordinate(self, node, plan):
        await node.recv(ANY, "nothing")

    async def work(self, node, plan):
        if node.name == "home1":
            raise ZeroDivisionError("bug in a runner")


def test_an_error_at_a_device_ends_the_run_with_its_name_and_traceback():
    outcome, _ = run(Broken, status="failed")
    assert outcome.error == "home1: ZeroDivisionError: bug in a runner"
    assert "in work" in outcome.log


class Endless(Base):
    async def coordinate(self, node, plan):
        while True:
            await node.sleep(1.0)


def test_the_time_limit_ends_a_run():
    outcome, events = run(Endless, status="interrupted", time_limit_s=10.5)
    assert "10.5" in outcome.error
    assert of(events, "totals")


def test_details_beyond_the_limit_are_only_in_the_totals():
    events = run(Ordered, details=20)
    assert len(of(events, "send") + of(events, "transfer") + of(events, "wait")) == 20
    assert {e["node"]: e["messages_up"] for e in of(events, "totals")}["home0"] == 50


def test_slow_start_doubles_a_round_until_the_share_is_full():
    window = Window()
    window.begin(0.1, 0.0)
    # 14,480 bytes, pause, 28,960 bytes, pause, …, at a rate that a round trip's worth of 8 windows fills
    share = 8 * INITIAL_WINDOW / 0.1
    assert window.pause(INITIAL_WINDOW, share, 0.1) == 0.0
    assert window.pause(1.0, share, 0.1) == pytest.approx(0.1 - INITIAL_WINDOW / share)
    assert window.pause(1e9, share, 0.1) == pytest.approx(0.3 - 7 * INITIAL_WINDOW / share - 0.1 * 7 / 8)
    assert window.pause(1e9, share, 0.1) == 0.0


def test_an_idle_connection_falls_back_to_its_initial_window():
    window = Window()
    window.begin(0.05, 0.0)
    window.pause(1e6, 1e6, 0.05)
    window.end(1e6, 0.05, 0.1, 1.0)
    grown = window.size
    assert grown == pytest.approx(0.7 * 1e6 * 0.15)
    window.begin(0.05, 1.2)
    assert window.size == grown
    window.begin(0.05, 1.55)
    assert window.size == pytest.approx(grown / 4)
    window.begin(0.05, 10.0)
    assert window.size == INITIAL_WINDOW


def test_after_an_outage_a_connection_resumes_within_the_largest_retransmission_timeout():
    for mended_s in (0.1, 1.9, 5.0, 60.0):
        assert 0 <= tcp.outage_end_s(0.0, mended_s, 0.05) - mended_s <= MAX_RTO_S
    assert tcp.outage_end_s(0.0, 60.0, 2.0) - 60.0 <= MAX_RTO_S
