"""All benchmarks, one after the other: `make bench`, or `python -m tests.bench network delay`. JSON, one a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHES = {p.stem.removeprefix("bench_"): p for p in sorted(HERE.glob("bench_*.py"))}


def main() -> int:
    chosen = sys.argv[1:] or list(BENCHES)
    for name in chosen:
        if name not in BENCHES:
            print(f"no benchmark {name!r}; there are: {', '.join(BENCHES)}", file=sys.stderr)
            return 2
    worst = 0
    for name in chosen:
        print(f"# {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, str(BENCHES[name])], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
