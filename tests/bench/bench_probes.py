"""Are probes right about links, on a machine that has other things to do? Two series, beside one busy core.

    sudo python tests/bench/bench_probes.py                # 20 quickstarts of three steps, 20 slow networks
    sudo python tests/bench/bench_probes.py --rounds 3 --only links

`runs`: quickstart, from start to end, but for `--steps` steps; each must be VALID. `links`: quickstart's network and
one of 300 Mbit/s at 200 ms, probed as they are (none may be off by more than the verdict allows), then again with every
link 6 % slower than the probes are told (each must be found out). One JSON object a line.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.cluster import Link, LinkState, Topology
from testbed.emulation import cleanup
from testbed.emulation.machine.capabilities import probe
from testbed.emulation.probing.probes import probe_links
from testbed.emulation.shaped import ShapedNetwork
from testbed.emulation.state import RunState
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import network_setup
from testbed.measurement.thresholds import Thresholds
from testbed.scenario.network import NetworkSetup

SLOWER = 0.94


def spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Another program that takes all it can get of one core."""
    other = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    other.start()
    try:
        yield
    finally:
        other.kill()
        other.join()


def long_link() -> NetworkSetup:
    server = Link(1e9, 1e9, 0.001, 0.001)
    return NetworkSetup(
        Topology(("far",), server),
        {"far": [(0.0, LinkState(300e6, 300e6, 0.2))]},
        server_state=LinkState(1e9, 1e9, 0.002),
    )


def slower(setup: NetworkSetup) -> NetworkSetup:
    def less(state: LinkState) -> LinkState:
        return dataclasses.replace(state, down_bps=SLOWER * state.down_bps, up_bps=SLOWER * state.up_bps)

    changes = {home: [(0.0, less(series[0][1]))] for home, series in setup.link_changes.items()}
    return dataclasses.replace(setup, link_changes=changes)


def probed(told: NetworkSetup, real: NetworkSetup) -> tuple[list[float], list[str], float]:
    """Rate errors against what was told, what was not judged and why, and how long it took."""
    state = RunState.create(None, command="bench_probes")
    try:
        with ShapedNetwork(state, real, caps=probe()) as shaped:
            began = time.monotonic()
            results = probe_links(shaped.network, told.at_start(), server=told.server_state)
            took_s = time.monotonic() - began
    finally:
        cleanup.teardown(state)
    rates = [r for r in results if r.quantity != "rtt"]
    return [r.measured / r.set - 1 for r in rates if not r.text], [r.text for r in rates if r.text], took_s


def links(rounds: int) -> bool:
    limit = Thresholds().rate_error_worst
    quickstart = network_setup(load_experiment("quickstart", ()), [])
    good = True
    for name, told in (("quickstart", quickstart), ("300 Mbit/s, 200 ms", long_link())):
        for label, real in (("as told", told), ("6 % slower", slower(told))):
            right, worst, seconds, open_questions = 0, 0.0, [], []
            for _ in range(rounds):
                errors, unjudged, took_s = probed(told, real)
                off = [abs(e) > limit for e in errors]
                right += all(off) and bool(off) and not unjudged if real is not told else not any(off)
                worst = max(worst, *(abs(e - (SLOWER - 1 if real is not told else 0)) for e in errors), 0.0)
                seconds.append(round(took_s, 1))
                open_questions += unjudged
            good &= right == rounds
            print(
                json.dumps(
                    {"links": name, "are": label, "right": right, "of": rounds, "worst_error": round(worst, 4),
                     "seconds": [min(seconds), max(seconds)], "not_judged": open_questions}
                ),
                flush=True,
            )  # fmt: skip
    return good


def runs(rounds: int, steps: int) -> bool:
    valid = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as out:
            argv = [sys.executable, "-m", "testbed", "run", "quickstart", "--out", out]
            argv += ["--set", f"training.steps={steps}", "--set", "outputs.report=false"]
            subprocess.run(argv, cwd=Path(__file__).parents[2], check=False, stdout=subprocess.DEVNULL)
            (found,) = Path(out).glob("*/fidelity.json")
            verdict = json.loads(found.read_text())
        valid += verdict["valid"]
        row = {
            "verdict": verdict["verdict"],
            "reasons": [r["text"] for r in verdict["reasons"]],
            "notes": verdict["notes"],
        }
        print(json.dumps({"run": "quickstart", "steps": steps, **row}), flush=True)
    print(json.dumps({"runs": rounds, "valid": valid}))
    return valid == rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3, help="of each quickstart")
    parser.add_argument("--only", choices=("runs", "links"))
    options = parser.parse_args()
    good = True
    with busy_core():
        if options.only != "runs":
            good &= links(options.rounds)
        if options.only != "links":
            good &= runs(options.rounds, options.steps)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
