"""Runners that bench_workers measures with."""

import os
import time
from pathlib import Path

import torch

from testbed.runtime import ANY, PeerLost


class Base:
    correctness = "E0"

    async def coordinate(self, node, plan):
        await node.recv(ANY, "never")

    async def work(self, node, plan):
        await node.recv("server", "never")


def _memory():
    """Private and proportional memory [bytes] of this process."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024
    return {
        "uss": fields["Private_Clean"] + fields["Private_Dirty"], "pss": fields["Pss"], "rss": fields["Rss"],
    }  # fmt: skip


class Memory(Base):
    """Every device tells its memory at first, and after 3 steps with a small model (0.2 M parameters)."""

    async def coordinate(self, node, plan):
        for name in node.membership.alive:
            for when in ("idle", "trained"):
                m = await node.recv(name, when)
                node.record("memory", device=name, when=when, **m.meta)

    async def work(self, node, plan):
        await node.send("server", "idle", **_memory())

        def train():
            model = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(64, 2, 256) for _ in range(4)))
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                model(torch.randn(16, 2, 64)).square().mean().backward()
                optimizer.step()
            return model

        model = await node.compute(train, flops=0)
        await node.send("server", "trained", **_memory())
        del model
        await node.recv("server", "never")


class PingPong(Base):
    """Small messages to and fro, then small ones one way, then big ones one way, between server and home0."""

    async def coordinate(self, node, plan):
        await node.recv("home0", "ready")
        began = time.monotonic()
        for _ in range(1000):
            await node.send("home0", "ping")
            await node.recv("home0", "pong")
        node.record("rate", what="round trips", per_s=1000 / (time.monotonic() - began))
        for tag, count, elements in (("small", 5000, 16), ("big", 100, 1_000_000)):
            x = torch.zeros(elements)
            began = time.monotonic()
            for _ in range(count):
                await node.send("home0", tag, [x])
            await node.recv("home0", f"{tag} done")
            seconds = time.monotonic() - began
            node.record("rate", what=tag, per_s=count / seconds, bytes_s=count * elements * 4 / seconds)

    async def work(self, node, plan):
        await node.send("server", "ready")
        for _ in range(1000):
            await node.recv("server", "ping")
            await node.send("server", "pong")
        for tag, count in (("small", 5000), ("big", 100)):
            for _ in range(count):
                await node.recv("server", tag)
            await node.send("server", f"{tag} done")
        await node.recv("server", "never")


class Load(Base):
    """Both directions of every link full of bulk, every device computing: what disturbs heartbeats most.

    The server runs for plan.data['seconds'].
    """

    async def coordinate(self, node, plan):
        import asyncio

        async def feed(name):
            x = torch.zeros(50_000)
            while True:
                try:
                    await node.send(name, "down", [x])
                    await node.recv(name, "got")
                except PeerLost:
                    await node.sleep(0.2)

        async def drain():
            while True:
                await node.recv(ANY, "up")

        tasks = [asyncio.ensure_future(feed(d.name)) for d in plan.cluster.devices]
        tasks.append(asyncio.ensure_future(drain()))
        await node.sleep(plan.data["seconds"])
        for t in tasks:
            t.cancel()

    async def work(self, node, plan):
        import asyncio

        async def up():
            x = torch.zeros(50_000)
            while True:
                await node.send("server", "up", [x])

        async def down():
            while True:
                await node.recv("server", "down")
                await node.send("server", "got")

        async def compute():
            a = torch.randn(600, 600)
            while True:
                await node.compute(lambda: [a @ a for _ in range(plan.data["products"])], flops=0)
                await node.sleep(0.05)

        await asyncio.gather(up(), down(), compute())


class Pace(Base):
    """How exactly computations take the device's time: 200 of 5 ms each."""

    async def work(self, node, plan):
        if node.name == "home0":
            began = node.now()
            for _ in range(200):
                await node.compute(lambda: None, flops=0.005 * node.device.flops)
            await node.send("server", "done", each=(node.now() - began) / 200)
        await node.recv("server", "never")

    async def coordinate(self, node, plan):
        m = await node.recv("home0", "done")
        node.record("pace", pid=os.getpid(), **m.meta)
