"""Does time dilation change results? Emulated step times of one experiment at several factors, in one run.

    sudo python tests/bench/bench_dilation.py                       # smoke at 1, 2 and 4
    sudo python tests/bench/bench_dilation.py quickstart 1 4 --set training.steps=10

Prints JSON, one line a factor, then the worst ratio to the first factor (target: within 5 %).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
TARGET = 0.05
SKIPPED = 2  # first steps: one-time costs


def step_times(experiment: str, tdf: float, sets: list[str]) -> dict:
    """Run it; median emulated step time, its quartiles, and the verdict."""
    options = [word for item in sets for word in ("--set", item)]
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "testbed", "run", experiment, "--tdf", str(tdf), "--out", out, *options]
        subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (folder,) = Path(out).iterdir()
        times = pd.read_csv(folder / "steps.csv")["step_time_s"][SKIPPED:]
        manifest = json.loads((folder / "manifest.json").read_text())
    return {
        "tdf": tdf,
        "steps": len(times),
        "median_s": times.median(),
        "quartiles_s": times.quantile([0.25, 0.75]).tolist(),
        "verdict": manifest["verdict"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", nargs="?", default="smoke")
    parser.add_argument("factors", nargs="*", type=float, default=[1, 2, 4])
    parser.add_argument("--set", action="append", default=[], dest="sets")
    asked = parser.parse_args()
    sets = asked.sets or ["training.steps=20", "outputs.report=false"]
    rows = []
    for tdf in asked.factors:
        rows.append(step_times(asked.experiment, tdf, sets))
        print(json.dumps(rows[-1]), flush=True)
    errors = [row["median_s"] / rows[0]["median_s"] - 1 for row in rows]
    worst = max(errors, key=abs)
    print(
        json.dumps(
            {
                "bench": "dilation",
                "experiment": asked.experiment,
                "errors": errors,
                "worst": worst,
                "target": TARGET,
                "ok": abs(worst) <= TARGET,
            }
        )
    )


if __name__ == "__main__":
    main()
