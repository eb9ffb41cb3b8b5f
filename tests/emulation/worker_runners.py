"""Runners that the worker tests run in real processes."""

import asyncio
import os
from pathlib import Path

import torch

from testbed.runtime import ANY, PeerLost


class Base:
    correctness = "E0"

    async def coordinate(self, node, plan):
        pass

    async def work(self, node, plan):
        pass


class Echo(Base):
    """The server sends each device a tensor; it comes back doubled, with facts about the process."""

    async def coordinate(self, node, plan):
        x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        big = torch.arange(300_000, dtype=torch.int64)
        for name in node.membership.alive:
            await node.send(name, "x", [x, big, torch.empty(0)], k=[1, None])
        x.zero_()
        big.zero_()
        for name in sorted(node.membership.alive):
            m = await node.recv(name, "y")
            assert m.tensors[0].dtype == torch.bfloat16
            assert m.tensors[0].tolist() == [[0, 2, 4], [6, 8, 10]]
            assert torch.equal(m.tensors[1], torch.arange(300_000) * 2)
            node.record("facts", device=name, **m.meta)

    async def work(self, node, plan):
        m = await node.recv("server", "x")
        y = await node.compute(lambda ts: [t * 2 for t in ts], m.tensors, flops=0.1 * node.device.flops)
        lines = Path("/proc/self/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        facts = {
            "uid": os.getresuid(), "groups": status["Groups"].strip(), "privileges": status["CapEff"],
            "no_new_privs": status["NoNewPrivs"], "netns": os.readlink("/proc/self/ns/net"),
            "threads": torch.get_num_threads(), "group": os.getpgrp() == os.getpid(),
            "memory_cgroup": Path("/proc/self/cgroup").read_text(),
        }  # fmt: skip
        print(f"hello from {node.name}", flush=True)
        await node.send("server", "y", y, **facts)


class Hungry(Base):
    """home1 takes more memory than it may."""

    async def coordinate(self, node, plan):
        await node.recv(ANY, "never")

    async def work(self, node, plan):
        if node.name == "home1":
            hoard = []
            while True:
                await node.compute(lambda: hoard.append(torch.ones(1 << 20)), flops=0)


class Broken(Base):
    async def coordinate(self, node, plan):
        await node.recv(ANY, "never")

    async def work(self, node, plan):
        if node.name == "home0":
            raise ZeroDivisionError("a bug in the runner")


class Exits(Base):
    async def coordinate(self, node, plan):
        await node.recv(ANY, "never")

    async def work(self, node, plan):
        if node.name == "home0":
            os._exit(3)


class Idle(Base):
    """Runs until the engine ends it."""

    async def coordinate(self, node, plan):
        await node.recv(ANY, "never")

    async def work(self, node, plan):
        await node.recv("server", "never")


class Rounds(Base):
    """The server pings every device until it has heard of each `rounds` times; reports losses and lives."""

    async def coordinate(self, node, plan):
        wanted = plan.data["rounds"]
        await asyncio.gather(*(self._serve(node, d.name, wanted) for d in plan.cluster.devices))

    async def _serve(self, node, name, wanted):
        served = 0
        while served < wanted:
            try:
                await node.send(name, "ping", [torch.ones(1000)], served=served)
                m = await node.recv(name, "pong")
                served += 1
                node.record("round", device=name, n=served, lives=m.meta["lives"], generation=m.generation)
            except PeerLost:
                node.record("lost", device=name)
                while name not in node.membership.alive:
                    await node.sleep(0.05)

    async def work(self, node, plan):
        lives = 0
        while True:
            m = await node.recv("server", "ping")
            lives += 1
            await node.sleep(plan.data.get("pause", 0.1))
            await node.send("server", "pong", m.tensors, lives=lives)


class Stream(Base):
    """Every device sends a bulk of tensors to the server; for throughput, and for heartbeats under load."""

    async def coordinate(self, node, plan):
        for name in node.membership.alive:
            await node.send(name, "go")
        left = len(node.membership.alive) * plan.data["messages"]
        for _ in range(left):
            await node.recv(ANY, "bulk")

    async def work(self, node, plan):
        await node.recv("server", "go")
        x = torch.ones(plan.data["elements"])
        for _ in range(plan.data["messages"]):
            await node.send("server", "bulk", [x])
        await node.recv("server", "never")
