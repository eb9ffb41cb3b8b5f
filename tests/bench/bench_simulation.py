"""The simulation's speed: processor time a task, a task = a message down, a computation, a message up.

    python -m tests.bench simulation            # or: python tests/bench/bench_simulation.py --devices 1024 --rounds 50
    python tests/bench/bench_simulation.py --cleave 1024 --layers 2     # one row of the second kind

Prints one JSON object a line. First the engine alone: scatter and gather over a star, at several numbers of devices, alike
and unlike links. `growth` is the time a task of the largest case over that of the smallest: near 1 when time is linear in
tasks. Then cleave with the layers of Llama-2-13B (batch 128, sequence 1024) on 1,024 devices, one step, every product sent
out: with one layer, with two, and from these what all 40 take (`extrapolated`). `--profile` says where the time goes.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from testbed.cluster import Cluster, Device, Link, LinkState, ModelSpec, TrainingSpec  # noqa: E402
from testbed.cluster.model import SERVER  # noqa: E402
from testbed.experiment.loading import load_experiment  # noqa: E402
from testbed.experiment.setup import run_setup  # noqa: E402
from testbed.runtime import ANY, Plan  # noqa: E402
from testbed.simulation.engine import PortChange, Simulation  # noqa: E402
from testbed.simulation.network import PortSettings  # noqa: E402
from testbed.simulation.run import port_changes  # noqa: E402

LAYERS = 40  # of Llama-2-13B
CLEAVE = """
name: cleave-13b
seed: 1
engine: simulation
topology:
  homes: 1024
  server: {uplink: 10 Gbit/s, downlink: 10 Gbit/s, rtt: 2 ms, speed: 1 TFLOP/s, memory: 20 TB}
links: {download: 100 Mbit/s, upload: 20 Mbit/s, rtt: 20 ms}
devices: {profiles: [laptop, desktop-old]}
model: {name: llama-2-13b, sequence: 1024}
training: {runner: cleave, local: never, wire: bf16, straggler: 1000000, batch: 128, micro_batches: 1, steps: 1}
time_limit: 1000 h
outputs: {report: false, timeline: false}
"""


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
    made = {
        n: Device(n, 1e10 if n != SERVER else 1e12, 8 << 30, Link(p.up_bps, p.down_bps, p.up_delay_s, p.down_delay_s))
        for n, p in ports.items()
    }
    cluster = Cluster(made.pop(SERVER), tuple(made.values()))
    data = {"rounds": rounds, "down_bytes": 2_000_000, "up_bytes": 200_000, "flops": 1e9}
    plan = Plan("scatter-gather", ModelSpec(), TrainingSpec(), cluster, data=data)
    series = {n: [PortChange(0.0, p, LinkState(p.down_bps, p.up_bps, 0.0))] for n, p in ports.items()}
    simulation = Simulation(plan, ScatterGather, series, details=0)
    began = time.process_time()
    outcome = simulation.run()
    seconds = time.process_time() - began
    assert outcome.status == "complete", outcome
    return {
        "devices": devices,
        "rounds": rounds,
        "links": "alike" if alike else "unlike",
        "tasks": devices * rounds,
        "simulated_s": round(simulation.loop.now, 3),
        "cpu_s": round(seconds, 3),
        "us_a_task": round(seconds / (devices * rounds) * 1e6, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def run_cleave(devices: int, layers: int) -> dict:
    """One step of cleave; time and memory of the simulation, and of the planning before it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cleave.yaml"
        path.write_text(CLEAVE)
        began = time.process_time()
        loaded = load_experiment(str(path), (f"topology.homes={devices}", f"model.layers={layers}"))
        setup = run_setup(loaded)
    planned = time.process_time() - began
    events = []
    simulation = Simulation(
        setup.plan, type(setup.runner), port_changes(setup.network), seed=1, details=0, on_event=events.append
    )
    began = time.process_time()
    outcome = simulation.run()
    seconds = time.process_time() - began
    assert outcome.status == "complete", outcome
    totals = {e["node"]: e for e in events if e["event"] == "totals"}
    tasks = totals[SERVER]["messages_down"]
    return {
        "devices": devices,
        "layers": layers,
        "tasks": tasks,
        "messages": tasks + totals[SERVER]["messages_up"],
        "simulated_s": round(simulation.loop.now, 3),
        "planning_cpu_s": round(planned, 2),
        "cpu_s": round(seconds, 2),
        "us_a_task": round(seconds / tasks * 1e6, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def cleave_rows(devices: int) -> None:
    """With one layer and with two, in processes of their own, and what follows for the whole model."""
    rows = []
    for layers in (1, 2):
        command = [sys.executable, __file__, "--cleave", str(devices), "--layers", str(layers)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(json.dumps(rows[-1]), flush=True)
    more = {key: rows[1][key] - rows[0][key] for key in ("tasks", "cpu_s", "planning_cpu_s", "peak_mib")}
    whole = {key: round(rows[0][key] + (LAYERS - 1) * more[key], 1) for key in more}
    print(
        json.dumps(
            {
                "devices": devices,
                "layers": LAYERS,
                "extrapolated": whole,
                "us_a_further_task": round(more["cpu_s"] / more["tasks"] * 1e6, 1),
            }
        ),
        flush=True,
    )


def profiled(function, *arguments) -> None:
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(function, *arguments)
    pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cleave", type=int, metavar="DEVICES")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.cleave:
        case = run_cleave, arguments.cleave, arguments.layers
        profiled(*case) if arguments.profile else print(json.dumps(case[0](*case[1:])))
        return
    if arguments.profile:
        profiled(run, arguments.devices or 1024, arguments.rounds, False)
        return
    rows = []
    for devices in [arguments.devices] if arguments.devices else (128, 1024, 8192):
        for alike in (True, False):
            rows.append(run(devices, arguments.rounds, alike))
            print(json.dumps(rows[-1]), flush=True)
    if len(rows) > 2:
        print(json.dumps({"growth": round(rows[-1]["us_a_task"] / rows[1]["us_a_task"], 2)}))
        cleave_rows(1024)


if __name__ == "__main__":
    main()
