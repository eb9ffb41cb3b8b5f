"""Runs all parts of the test suite, whatever fails, and ends with one line for all: what `make test` does.

The exit code is that of the worst part. The last line reads like pytest's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-q"]
# unit tests side by side, second kernels two at a time; what measures a network needs the machine for itself
SIDE_BY_SIDE = ["--dist", "worksteal", "-n"]
PARTS = {"unit": [*SIDE_BY_SIDE, "auto"], "kernel": [*SIDE_BY_SIDE, "2"], "emulation": []}


def main() -> int:
    worst, counts, faults = 0, Counter[str](), []
    with tempfile.TemporaryDirectory() as scratch:
        for part, options in PARTS.items():
            print(f"== tests/{part}", flush=True)
            results = Path(scratch, f"{part}.xml")
            command = [*PYTEST, f"--junitxml={results}", *options, f"tests/{part}"]
            threads = {"OMP_NUM_THREADS": "1"} if part == "unit" else {}  # as many processes as cores
            code = ended(command, {**os.environ, **threads})
            worst = max(worst, code)
            told = read(results)
            counts += told[0]
            faults += told[1]
            if code > 1 or not told[0]:  # not a test that failed: the part itself
                faults.append(f"tests/{part} ended with exit code {code}")
                counts["error"] += 1
                worst = max(worst, 1)
            if code == 128 + signal.SIGINT:
                break
    print("== all parts", *faults, sep="\n")
    words = [f"{counts[name]} {name}" for name in ("passed", "failed", "skipped")]
    print(", ".join(words + ([f"{counts['error']} error"] if counts["error"] else [])))
    return worst


def ended(command: list[str], environment: dict[str, str]) -> int:
    """Run to the end, and return the exit code; 128 + n after signal n. Ctrl-C reaches pytest too, which then ends."""
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            return 128 + signal.SIGINT
    return code if code >= 0 else 128 - code


def read(results: Path) -> tuple[Counter[str], list[str]]:
    """How many tests passed, failed and so on, and a line for each that failed; nothing where pytest wrote nothing."""
    counts: Counter[str] = Counter()
    faults = []
    if results.exists():
        for case in ElementTree.parse(results).iter("testcase"):
            outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            kind = {"failure": "failed"}.get(outcome.tag, outcome.tag) if outcome is not None else "passed"
            counts[kind] += 1
            if outcome is not None and kind != "skipped":
                said = (outcome.get("message") or "").splitlines() or [""]
                faults.append(f"{kind.upper()} {case.get('classname')}::{case.get('name')} - {said[0][:200]}")
    return counts, faults


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    sys.exit(main())
