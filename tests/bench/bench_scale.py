"""Scale: 256 homes with shaping, replay and PyTorch workers train; 1,000 homes start, a sample is verified, they stop.

    sudo python tests/bench/bench_scale.py [train] [network]

Prints one JSON object a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOMES, SAMPLE = 1000, 8


def show(**fields) -> None:
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in fields.items()}), flush=True)


def train() -> None:
    """experiments/scale-256.yaml at the time dilation that is proposed for this machine."""
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "testbed", "run", "scale-256", "--out", out, "--set", "outputs.report=false"]
        subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (folder,) = Path(out).iterdir()
        manifest = json.loads((folder / "manifest.json").read_text())
        verdict = json.loads((folder / "fidelity.json").read_text())
        steps = len((folder / "steps.csv").read_text().splitlines()) - 1
    show(
        bench="scale, train",
        homes=256,
        steps=steps,
        tdf=manifest["tdf"],
        verdict=verdict["verdict"],
        reasons=[r["text"] for r in verdict["reasons"]],
        durations=manifest["durations"],
        ok=verdict["valid"] and steps >= 1,
    )


def network() -> None:
    """A thousand homes: start with delay lines, probe a sample of links in both directions, change all, stop."""
    from testbed.cluster import Link, LinkState, Topology
    from testbed.emulation import cleanup
    from testbed.emulation.machine.capabilities import probe
    from testbed.emulation.probing.probes import probe_links
    from testbed.emulation.shaped import ShapedNetwork
    from testbed.emulation.state import RunState
    from testbed.scenario.network import NetworkSetup

    names = tuple(f"h{i}" for i in range(1, HOMES + 1))
    server = Link(1e9, 1e9, 0.001, 0.001)
    state = LinkState(50e6, 10e6, 0.03)
    run = RunState.create(None, command="bench_scale")
    caps = probe()
    try:
        began = time.monotonic()
        with ShapedNetwork(
            run, NetworkSetup(Topology(names, server), {n: [(0.0, state)] for n in names}), caps=caps
        ) as shaped:
            started = time.monotonic()
            sample = {names[i * HOMES // SAMPLE]: state for i in range(SAMPLE)}
            results = probe_links(shaped.network, sample, server=LinkState(1e9, 1e9, 0.002))
            verified = time.monotonic()
            errors = {
                q: max(abs(r.measured / r.set - 1) for r in results if r.quantity == q)
                for q in ("rate_down", "rate_up", "rtt")
            }
        stopped = time.monotonic()
    finally:
        cleanup.teardown(run)
    show(
        bench="scale, network",
        homes=HOMES,
        start_s=started - began,
        verify_s=verified - started,
        stop_s=stopped - verified,
        sample=SAMPLE,
        worst_errors=errors,
        ok=max(errors["rate_down"], errors["rate_up"]) <= 0.05
        and errors["rtt"] * state.rtt_s <= 0.001 + 0.02 * state.rtt_s,
    )


CASES = {"train": train, "network": network}

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for name in sys.argv[1:] or CASES:
        CASES[name]()
