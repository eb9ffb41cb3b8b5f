"""The simulation's speed: scatter and gather over a star, a task = a message down, a computation, a message up.

    python -m tests.bench simulation            # or: python tests/bench/bench_simulation.py --devices 1024 --rounds 50

Prints one JSON object a line: processor time a task, at several numbers of devices and of rounds, alike and unlike links.
`growth` is the time a task of the largest case over that of the smallest: near 1 when time is linear in tasks.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time

import torch

from testbed.cluster import Cluster, Device, Link, LinkState, ModelSpec, TrainingSpec
from testbed.cluster.model import SERVER
from testbed.runtime import ANY, Plan
from testbed.simulation.engine import PortChange, Simulation
from testbed.simulation.network import PortSettings


class ScatterGather:
    """What Cleave asks of an engine: each round, a block of inputs to every device and a block of results back."""

    correctness = "E0"

    async def coordinate(self, node, plan):
        names = list(node.membership.alive)
        down = torch.empty(plan.data["down_bytes"] // 4)
        for r in range(plan.data["rounds"]):
            tag = f"result {r}"
            for name in names:
                await node.send(name, "task", [down], round=r)
            for _ in names:
                await node.recv(ANY, tag)

    async def work(self, node, plan):
        up, flops = torch.empty(plan.data["up_bytes"] // 4), plan.data["flops"]
        while True:
            message = await node.recv(SERVER, "task")
            result = await node.compute(self._result, up, flops=flops, label="product")
            await node.send(SERVER, f"result {message.meta['round']}", [result])

    @staticmethod
    def _result(up):
        return up.detach()


def links(devices: int, alike: bool, server_bps: float) -> dict[str, PortSettings]:
    rng = random.Random(1)
    ports = {SERVER: PortSettings(server_bps, server_bps, 0.001, 0.001)}
    for i in range(devices):
        down = 100e6 if alike else rng.uniform(20e6, 500e6)
        ports[f"h{i}"] = PortSettings(down / 5, down, 0.005 if alike else rng.uniform(0.002, 0.03), 0.005)
    return ports


def run(devices: int, rounds: int, alike: bool, server_bps: float = 10e9) -> dict:
    ports = links(devices, alike, server_bps)
    made = {n: Device(n, 1e10 if n != SERVER else 1e12, 8 << 30, Link(p.up_bps, p.down_bps, p.up_delay_s, p.down_delay_s))
            for n, p in ports.items()}
    cluster = Cluster(made.pop(SERVER), tuple(made.values()))
    data = {"rounds": rounds, "down_bytes": 2_000_000, "up_bytes": 200_000, "flops": 1e9}
    plan = Plan("scatter-gather", ModelSpec(), TrainingSpec(), cluster, data=data)
    series = {n: [PortChange(0.0, p, LinkState(p.down_bps, p.up_bps, 0.0))] for n, p in ports.items()}
    simulation = Simulation(plan, ScatterGather, series, details=0)
    began = time.process_time()
    outcome = simulation.run()
    seconds = time.process_time() - began
    assert outcome.status == "complete", outcome
    return {"devices": devices, "rounds": rounds, "links": "alike" if alike else "unlike", "tasks": devices * rounds,
            "simulated_s": round(simulation.loop.now, 3), "cpu_s": round(seconds, 3),
            "us_a_task": round(seconds / (devices * rounds) * 1e6, 1),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.profile:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.runcall(run, arguments.devices or 1024, arguments.rounds, False)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    rows = []
    for devices in [arguments.devices] if arguments.devices else (128, 1024, 8192):
        for alike in (True, False):
            rows.append(run(devices, arguments.rounds, alike))
            print(json.dumps(rows[-1]), flush=True)
    if len(rows) > 2:
        print(json.dumps({"growth": round(rows[-1]["us_a_task"] / rows[1]["us_a_task"], 2)}))


if __name__ == "__main__":
    main()
