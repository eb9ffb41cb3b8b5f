"""Cleave's server: how many blocks and bytes a second one process hands out and takes back over the loopback.

    sudo python tests/bench/bench_cleave.py [throughput]    # JSON, a line a size of block
    python tests/bench/bench_cleave.py wire [STEPS]         # the table of docs/cleave.md: precision on the wire and loss

throughput: devices answer at once without multiplying, so that the server is the limit. `copy_fraction`: bytes both ways
over what this machine copies in memory with one core. `gemm_fraction`: FLOPs of the blocks handed out over what it multiplies with
one core in float32; above 1, one server keeps more processors busy than it has.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit"), str(Path(__file__).parent)]

import torch  # noqa: E402

from runners.cleave.capture import Operand, Product  # noqa: E402
from runners.cleave.device import DeviceWorker  # noqa: E402
from runners.cleave.job import Job, View  # noqa: E402
from runners.cleave.options import CleaveOptions  # noqa: E402
from runners.cleave.products import CRITICAL, Products  # noqa: E402
from runners.planning.gemm import Gemm  # noqa: E402
from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec  # noqa: E402
from testbed.emulation import cleanup  # noqa: E402
from testbed.emulation.process.workers import HostAddress, WorkerPool  # noqa: E402
from testbed.emulation.state import RunState  # noqa: E402
from testbed.runtime import Plan  # noqa: E402

SECONDS = 3.0
DEVICES = 4
JOBS = 4  # products under way at a time
SIZES = ((128, 128, 128), (512, 256, 512), (1024, 1024, 1024), (2048, 2048, 2048))  # m, k, n of a product
OPTIONS = CleaveOptions(local="never", chunks=1, cache=False, prefetch=False)


class Blank(DeviceWorker):
    """Answers with a block of zeros."""

    def _price(self, meta, message):
        return 0.0

    def _multiply(self, meta, tensors):
        left, right = self._operand(meta["a"], tensors[:1]), self._operand(meta["b"], tensors[-1:])
        return [torch.zeros(left.shape[0], right.shape[1])]


class Dispatch:
    """Hands out products of each size for some seconds."""

    correctness = "E0"

    async def coordinate(self, node, plan):
        for m, k, n in plan.data["sizes"]:
            await self._measure(node, plan, m, k, n)

    async def work(self, node, plan):
        await Blank(node, OPTIONS).run()

    async def _measure(self, node, plan, m, k, n):
        products = Products(node, plan.cluster, OPTIONS)
        products.start()
        a, b = torch.rand(m, k), torch.rand(k, n)
        product = Product(0, Gemm("bench", m, k, n), Operand(0, False), Operand(1, False), False, None, False, True)
        done: asyncio.Queue[Job] = asyncio.Queue()
        products.begin_step(0, [])

        def submit() -> None:
            products.submit(
                Job("bench", product, View((0, 0), a, False, 1), View((0, 1), b, False, 1), None, CRITICAL, done)
            )

        for _ in range(JOBS):
            submit()
        for _ in range(JOBS):  # connections are up, plans are made
            await done.get()
            submit()
        products.begin_step(1, [])
        start, cpu, count = node.now(), time.process_time(), 0
        while node.now() - start < SECONDS:
            job = await done.get()
            submit()
            await node.compute(job.assemble, flops=0.0)
            count += 1
        seconds, cpu = node.now() - start, time.process_time() - cpu
        down, up = sum(products.traffic.down_bytes.values()), sum(products.traffic.up_bytes.values())
        node.record("dispatch", m=m, k=k, n=n, seconds=seconds, products=count, blocks=products.traffic.messages / 2,
                    bytes=down + up, cpu=cpu)  # fmt: skip
        await products.stop()
        await node.sleep(0.5)


def throughput() -> None:
    copy_bytes, gemm_flops = limits()
    print(json.dumps({"limit": "memory copy, one core", "bytes_per_s": round(copy_bytes)}), flush=True)
    print(json.dumps({"limit": "float32 products, one core", "flops": round(gemm_flops)}), flush=True)
    for e in measured():
        blocks = e["blocks"] / e["seconds"]
        flops = 2.0 * e["m"] * e["k"] * e["n"] * e["products"] / e["seconds"]
        print(json.dumps({
            "product": [e["m"], e["k"], e["n"]], "blocks_per_s": round(blocks), "bytes_per_s": round(e["bytes"] / e["seconds"]),
            "copy_fraction": round(e["bytes"] / e["seconds"] / copy_bytes, 3), "gemm_fraction": round(flops / gemm_flops, 3),
            "server_busy": round(e["cpu"] / e["seconds"], 2),
        }), flush=True)  # fmt: skip


def limits() -> tuple[float, float]:
    """What one core of this machine copies [bytes/s] and multiplies [FLOP/s]: the best of several."""
    torch.set_num_threads(1)
    x, y = torch.rand(1 << 24), torch.empty(1 << 24)
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)

    def best(fn) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            fn()
            times.append(time.perf_counter() - start)
        return min(times)

    return x.nbytes / best(lambda: y.copy_(x)), 2.0 * 1024**3 / best(lambda: a @ b)


def measured() -> list[dict]:
    names = [f"home{i}" for i in range(DEVICES)]
    fast = Link(1e12, 1e12)
    cluster = Cluster(Device("server", 1e15, 1 << 34, fast), tuple(Device(n, 1e15, 1 << 33, fast) for n in names))
    plan = Plan("bench", ModelSpec(), TrainingSpec(), cluster, data={"sizes": SIZES})
    last = {"server": 250, **{n: i + 1 for i, n in enumerate(names)}}
    addresses = {n: HostAddress(n, f"127.84.{os.getpid() % 250}.{i}") for n, i in last.items()}
    events: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        state = RunState.create(Path(folder), command="bench_cleave")
        pool = None
        try:
            pool = WorkerPool(state=state, run_dir=Path(folder), runner="bench_cleave:Dispatch", plan=plan,
                              addresses=addresses, on_event=events.append)  # fmt: skip
            pool.start()
            pool.launch(["server", *names])
            pool.begin(time.monotonic() + 0.1)
            outcome = pool.wait(30 + 4 * SECONDS * len(SIZES))
            if not outcome.ok:
                raise SystemExit(f"the run failed: {outcome}")
        finally:
            if pool is not None:
                pool.close()
            cleanup.teardown(state)
    return [e for e in events if e["event"] == "dispatch"]


def wire(steps: int) -> None:
    """Train the same job with each precision on the wire; a Markdown table."""
    from runner_checks import cluster, losses, oracle, run

    from runners.cleave import CleaveRunner
    from testbed.runtime.local import LocalEngine

    model = ModelSpec(layers=2, d_model=64, heads=4, d_ff=256, sequence=32)

    def job(**options) -> TrainingSpec:
        return TrainingSpec(
            batch=8, micro_batches=1, steps=steps, seed=0, options={"local": "never", "chunks": 1, **options}
        )

    exact = oracle(model, job())
    tail = slice(-10, None)
    mean = sum(exact[tail]) / 10
    print(f"| on the wire | bytes | largest difference of a step's loss | loss at the end | against {mean:.4f} |")
    print("| --- | --- | --- | --- | --- |")
    full = None
    cases = [("fp32", {}), ("bf16", {"wire": "bf16"}), ("fp16", {"wire": "fp16"}), ("int8, error feedback", {"wire": "int8"}),
             ("int8 without", {"wire": "int8", "error_feedback": False})]  # fmt: skip
    for name, options in cases:
        training = job(**options)
        events = run(LocalEngine(CleaveRunner().plan(cluster(2), model, training), CleaveRunner))
        got = losses(events, steps)
        traffic = [e for e in events if e["event"] == "traffic"]
        nbytes = sum(e["server_out"] + e["server_in"] for e in traffic)
        full = full or nbytes
        worst = max(abs(a - b) for a, b in zip(got, exact))
        end = sum(got[tail]) / 10
        print(f"| {name} | {nbytes / full:.0%} | {worst:.2g} | {end:.4f} | {end - mean:+.4f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["wire"]:
        wire(int(sys.argv[2]) if len(sys.argv) > 2 else 100)
    else:
        throughput()
