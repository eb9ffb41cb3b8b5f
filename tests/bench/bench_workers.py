"""Workers: how fast they come up, their memory, messages, pacing, and how well losses are told from load.

    sudo python tests/bench/bench_workers.py [CASE...]

Cases: up, messages, pacing, detection, load. Prints a line of JSON for each. The targets: 64 workers up in
10 s, 20 MB of private memory each.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from testbed.cluster import (  # noqa: E402
    Cluster,
    Device,
    Link,
    LinkState,
    ModelSpec,
    Topology,
    TrainingSpec,
)  # fmt: skip
from testbed.emulation import cleanup  # noqa: E402
from testbed.emulation.machine.capabilities import probe  # noqa: E402
from testbed.emulation.process.workers import WorkerPool  # noqa: E402
from testbed.emulation.schedule.churn import ChurnController  # noqa: E402
from testbed.emulation.shaped import ShapedNetwork  # noqa: E402
from testbed.emulation.state import RunState  # noqa: E402
from testbed.runtime import Plan  # noqa: E402
from testbed.scenario.network import NetworkSetup  # noqa: E402


@contextmanager
def started(runner: str, homes: int, *, state: LinkState, **data) -> Iterator[tuple]:
    """(network, pool, events, start-up times) with `homes` workers up on links of that state."""
    names = [f"home{i}" for i in range(homes)]
    server = Link(1e9, 1e9)
    cluster = Cluster(
        Device("server", 1e10, 1 << 30, server),
        tuple(Device(n, 1e9, 1 << 28, Link(state.up_bps, state.down_bps)) for n in names),
    )
    plan = Plan("bench", ModelSpec(), TrainingSpec(), cluster, data=data)
    events: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        run = RunState.create(Path(folder), command="bench_workers")
        try:
            series = {n: [(0.0, state)] for n in names}
            shaped = ShapedNetwork(run, NetworkSetup(Topology(tuple(names), server), series), caps=probe())
            pool = WorkerPool(
                state=run, run_dir=Path(folder), runner=f"runners_of_bench:{runner}", plan=plan, addresses={},
                on_event=events.append,
            )  # fmt: skip
            with shaped, pool:
                pool._addresses = dict(shaped.network.hosts)
                began = time.monotonic()
                pool.start()
                pool._wait_up()
                imported = time.monotonic()
                pool.launch(["server", *names])
                times = {"import_s": imported - began, "launch_s": time.monotonic() - imported}
                yield shaped.network, pool, events, times
        finally:
            cleanup.teardown(run)


def show(case: str, **numbers) -> None:
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in numbers.items()}
    print(json.dumps({"case": case, **rounded}), flush=True)


def up(homes: int = 64) -> None:
    with started("Memory", homes, state=LinkState(1e8, 2e7, 0.02)) as (_, pool, events, times):
        pool.begin(time.monotonic())
        assert pool.wait(120).ok
    for when in ("idle", "trained"):
        rows = [e for e in events if e["event"] == "memory" and e["when"] == when]
        show(
            f"memory {when}", workers=len(rows),
            **{f"{kind}_{f.__name__}_mb": f([r[kind] / 1e6 for r in rows])
               for kind in ("uss", "pss") for f in (statistics.mean, max)},
        )  # fmt: skip
    show("up", workers=homes, **times, total_s=sum(times.values()), per_s=homes / times["launch_s"])


def messages() -> None:
    with started("PingPong", 1, state=LinkState(1e9, 1e9, 0.0)) as (_, pool, events, _):
        pool.begin(time.monotonic())
        assert pool.wait(120).ok
    for e in events:
        if e["event"] == "rate":
            show(f"messages: {e['what']}", per_s=e["per_s"], mbyte_s=e.get("bytes_s", 0) / 1e6)


def pacing() -> None:
    with started("Pace", 1, state=LinkState(1e8, 2e7, 0.02)) as (_, pool, events, _):
        pool.begin(time.monotonic())
        assert pool.wait(60).ok
    (e,) = [e for e in events if e["event"] == "pace"]
    show("pacing: 5 ms asked", ms=e["each"] * 1e3, error_percent=(e["each"] / 0.005 - 1) * 100)
    lengths = [(e["end"] - e["start"]) * 1e3 for e in events if e["event"] == "compute"]
    show("pacing: computations alone", median_ms=statistics.median(lengths), max_ms=max(lengths))


def detection(homes: int = 10, seconds: float = 12.0) -> None:
    """Quiet links of 20 ms; every device is cut off at some moment of the heartbeat's cycle."""
    with started("Base", homes, state=LinkState(1e8, 2e7, 0.02)) as (network, pool, events, _):
        t0 = time.monotonic()
        pool.begin(t0)
        schedule = [(seconds / 2 + 0.13 * i, f"home{i}", "leave") for i in range(homes)]
        churn = ChurnController(schedule, mode="kill", network=network, pool=pool, on_event=events.append)
        churn.start(t0)
        pool.wait(seconds)
        churn.stop()
    _show_detection("detection, quiet links", events)


def _show_detection(case: str, events: list[dict]) -> None:
    cut = {e["node"]: e["t"] for e in events if e["event"] == "churn" and e["action"] == "leave"}
    seen = [e for e in events if e["event"] == "member" and e["node"] == "server"]
    left = {e["peer"]: e for e in seen if e["kind"] == "left"}
    delays = [left[n]["t"] - t for n, t in cut.items() if n in left]
    show(
        case, cut=len(cut), noticed=len(delays), mean_s=statistics.mean(delays), min_s=min(delays),
        max_s=max(delays), false_alarms=len(set(left) - set(cut)),
    )  # fmt: skip


def load(homes: int = 4, seconds: float = 60.0) -> None:
    """1 Mbit/s up, 5 down, 40 ms, both full all the time; the devices compute more than two cores can."""
    state = LinkState(5e6, 1e6, 0.04)
    with started("Load", homes, state=state, seconds=seconds, products=20) as (network, pool, events, _):
        t0 = time.monotonic()
        pool.begin(t0)
        schedule = [(seconds - 12, "home0", "leave"), (seconds - 6, "home1", "leave")]
        churn = ChurnController(schedule, mode="kill", network=network, pool=pool, on_event=events.append)
        churn.start(t0)
        outcome = pool.wait(seconds + 60)
        churn.stop()
        assert outcome.ok, outcome
    _show_detection("detection under load", events)
    busy = [e["busy"] for e in events if e["event"] == "compute"]
    ups = sum(e["bytes"] for e in events if e["event"] == "transfer" and e["tag"] == "up")
    show("load", computations=len(busy), busy_max_s=max(busy), up_mbit_s_each=ups * 8 / 1e6 / seconds / homes)


CASES = {f.__name__: f for f in (up, messages, pacing, detection, load)}

if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        CASES[case]()
