"""Nodes that talk over real TCP connections, on loopback addresses of their own, in one process."""

import asyncio
import itertools
import os

import pytest
import torch

from testbed.cluster import Device, Link
from testbed.emulation.process import control
from testbed.emulation.process.node import Clock, EmulatedNode
from testbed.emulation.process.pacing import compute_thread
from testbed.emulation.process.transport import QUEUE_MESSAGES, Transport
from testbed.runtime import ANY, MembershipEvent, PeerLost, wire
from testbed.runtime.mailbox import View

_ports = itertools.count(20000 + os.getpid() % 20000)


class Peers:
    """Nodes 'server', 'a', 'b' that all see each other."""

    async def __aenter__(self):
        port = next(_ports)
        self.addresses = {n: (f"127.91.0.{i + 1}", port) for i, n in enumerate(("server", "a", "b"))}
        self.events = []
        self.nodes = {}
        self.transports = {}
        self.executor = compute_thread()
        for name in self.addresses:
            self.start(name, 1)
        return self

    def start(self, name, generation):
        transport = Transport(
            self.addresses[name], self.addresses, lambda frames, name=name: self.receive(name, frames)
        )
        clock = Clock(1.0)
        clock.t0 = 0.0
        view = View({"a": 1, "b": 1} | ({name: generation} if name != "server" else {}), 2)
        always = frozenset() if name == "server" else frozenset({"server"})
        device = Device(name, 1e9, 1 << 30, Link(1e9, 1e9))
        node = EmulatedNode(
            device, generation, view, always=always, transport=transport, clock=clock, executor=self.executor,
            on_event=self.events.append,
        )  # fmt: skip
        self.nodes[name], self.transports[name] = node, transport
        return node

    def receive(self, name, frames):
        self.nodes[name].receive(wire.decode_header(frames[0].buffer), frames)

    async def __aexit__(self, *exc):
        for t in self.transports.values():
            t.close()
        self.executor.shutdown()


def run(test):
    async def main():
        async with Peers() as peers:
            await asyncio.wait_for(test(peers), 30)

    asyncio.run(main())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        torch.randn(1000, 300),
        torch.randn(300, 1000).t(),
        torch.tensor(3.5, dtype=torch.float64),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.arange(5, dtype=torch.int64)[::2],
        torch.tensor([1 + 2j]),
        torch.randn(3, requires_grad=True),
    ],
    ids=lambda t: f"{t.dtype}-{tuple(t.shape)}",
)
def test_tensors_arrive_as_they_were(tensor):
    async def test(p):
        await p.nodes["a"].send("b", "t", [tensor, tensor], note="x")
        m = await p.nodes["b"].recv("a", "t")
        for got in m.tensors:
            assert got.dtype == tensor.dtype
            assert got.shape == tensor.shape
            assert torch.equal(got, tensor.detach())
            assert not got.requires_grad
            got.add_(1) if got.dtype != torch.bool else got.logical_not_()  # it is the receiver's own memory
        assert m.meta == {"note": "x"}

    run(test)


def test_a_sent_tensor_may_be_changed_right_away():
    async def test(p):
        x = torch.ones(500_000)
        for _ in range(5):
            await p.nodes["a"].send("b", "t", [x])
            x.add_(1)
        came = [await p.nodes["b"].recv("a", "t") for _ in range(5)]
        assert [m.tensors[0][-1].item() for m in came] == [1, 2, 3, 4, 5]

    run(test)


def test_messages_of_a_pair_keep_their_order_and_bytes_are_counted_at_both_ends():
    async def test(p):
        async def feed(name):
            for n in range(200):
                await p.nodes[name].send("server", "n", [torch.zeros(n)], n=n)

        feeds = asyncio.gather(feed("a"), feed("b"))
        seen = {"a": [], "b": []}
        for _ in range(400):
            m = await p.nodes["server"].recv(ANY, "n")
            seen[m.source].append(m.meta["n"])
        await feeds
        assert seen == {"a": list(range(200)), "b": list(range(200))}
        for name in ("a", "b"):
            sent = p.transports[name].counters
            came = p.transports["server"].counters
            assert sent.sent_bytes["server"] == came.received_bytes[name] > 4 * sum(range(200))
            assert sent.sent_messages["server"] == came.received_messages[name] == 200

    run(test)


def test_a_full_queue_makes_send_wait_until_the_peer_is_given_up():
    async def test(p):
        p.addresses["b"] = ("127.91.0.99", 9)  # nobody there
        a = p.nodes["a"]
        sends = [asyncio.ensure_future(a.send("b", "t", n=n)) for n in range(QUEUE_MESSAGES + 3)]
        done, waiting = await asyncio.wait(sends, timeout=0.3)
        assert len(done) == QUEUE_MESSAGES
        assert len(waiting) == 3
        waiting.pop().cancel()
        a.see(MembershipEvent("left", "b", 1, 0.0))
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert sum(isinstance(r, PeerLost) for r in results) == 2
        with pytest.raises(PeerLost):
            await a.send("b", "t")

    run(test)


def test_a_slow_receiver_holds_the_sender_back_and_loses_nothing():
    async def test(p):
        count = 60

        async def feed():
            for n in range(count):
                await p.nodes["a"].send("b", "bulk", [torch.full((300_000,), float(n))])

        feeding = asyncio.ensure_future(feed())
        for n in range(count):
            m = await p.nodes["b"].recv("a", "bulk")
            assert m.tensors[0][0].item() == n
            await asyncio.sleep(0.002)
        await feeding

    run(test)


def test_messages_between_wrong_generations_are_dropped_and_counted():
    async def test(p):
        a, b = p.nodes["a"], p.nodes["b"]
        await a.send("b", "t", life=1)
        assert (await b.recv("a", "t")).meta["life"] == 1
        p.transports["b"].close()
        b2 = p.start("b", 2)  # a doesn't know yet, and its connection finds the new b by itself
        await a.send("b", "t", life="for the old b")
        await asyncio.sleep(0.5)
        for event in (MembershipEvent("left", "b", 1, 0.0), MembershipEvent("joined", "b", 2, 0.0)):
            a.see(event)
        b2.membership.version = a.membership.version
        await a.send("b", "t", life=2)
        m = await b2.recv("a", "t")
        assert m.meta["life"] == 2
        assert b2.mailbox.dropped["meant for an earlier generation"] <= 1
        for event in (MembershipEvent("left", "a", 1, 0.0), MembershipEvent("joined", "a", 2, 0.0)):
            b2.see(event)
        await a.send("b", "t", life="from the old a")
        await asyncio.sleep(0.2)
        assert b2.mailbox.dropped["from an earlier generation"] == 1

    run(test)


def test_a_receive_ends_when_its_source_leaves_but_not_before_what_is_there_was_taken():
    async def test(p):
        a, b = p.nodes["a"], p.nodes["b"]
        await a.send("b", "t")
        waiting = asyncio.ensure_future(b.recv("a", "other"))
        await asyncio.sleep(0.1)
        b.see(MembershipEvent("left", "a", 1, 0.0))
        with pytest.raises(PeerLost) as lost:
            await waiting
        assert lost.value.peer == "a"
        assert (await b.recv("a", "t")).source == "a"
        with pytest.raises(PeerLost):
            await b.recv("a", "t")
        waits = [e for e in p.events if e["event"] == "wait"]
        assert waits[0]["peer"] == "a"
        assert waits[0]["end"] - waits[0]["start"] >= 0.09

    run(test)


def test_events_of_a_message():
    async def test(p):
        await p.nodes["a"].send("b", "t", [torch.zeros(10)])
        await p.nodes["b"].recv("a", "t")
        (send,) = [e for e in p.events if e["event"] == "send"]
        (transfer,) = [e for e in p.events if e["event"] == "transfer"]
        assert (send["node"], send["peer"], send["tag"]) == ("a", "b", "t")
        assert (transfer["node"], transfer["peer"], transfer["tag"]) == ("b", "a", "t")
        assert send["bytes"] == transfer["bytes"] > 40
        assert send["start"] == transfer["start"] <= transfer["end"]

    run(test)


def test_bad_messages_are_refused_before_anything_is_sent():
    async def test(p):
        a = p.nodes["a"]
        with pytest.raises(TypeError, match="found list"):
            await a.send("b", "t", [[1.0]])
        with pytest.raises(TypeError, match="JSON-like"):
            await a.send("b", "t", thing=object())
        with pytest.raises(TypeError, match=r"torch\.float8_e4m3fn can't be sent"):
            await a.send("b", "t", [torch.zeros(1).to(torch.float8_e4m3fn)])
        await a.send("b", "t", fine=1)
        assert (await p.nodes["b"].recv("a", "t")).meta == {"fine": 1}

    run(test)


def test_control_messages_survive_any_cut():
    messages = [{"kind": "a", "n": 1}, {"kind": "b", "x": [1.5, None, "ä" * 300]}, {"kind": "c"}]
    data = b"".join(map(control.frame, messages))
    for size in (1, 3, 7, 1000):
        unframer = control.Unframer()
        got = [m for i in range(0, len(data), size) for m in unframer.feed(data[i : i + size])]
        assert got == messages


def test_control_takes_scalars_and_names_what_it_cannot_take():
    unframer = control.Unframer()
    assert unframer.feed(control.frame({"loss": torch.tensor(0.5)})) == [{"loss": 0.5}]
    with pytest.raises(TypeError, match="object is not JSON-like"):
        control.frame({"x": object()})
