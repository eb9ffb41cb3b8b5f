"""How fast and in how much memory a file of ten million rows is read.

    python tests/bench/bench_traces.py [ROWS]

Each case runs in a process of its own, so that its peak memory is its own. Prints a line of JSON for each.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LIMIT_BYTES = 500e6
HOMES = 1000


def write_own(path: Path, rows: int, interleaved: bool) -> None:
    """Our own format with all its columns; home after home, or all homes at each time."""
    random = np.random.default_rng(1)
    per_home = max(1, rows // HOMES)
    with path.open("w") as out:
        out.write("time_s,home,download_bps,upload_bps,rtt_s,jitter_s,loss\n")
        outer, inner = (per_home, HOMES) if interleaved else (HOMES, per_home)
        for a in range(outer):
            values = random.random((inner, 5)).round(5).tolist()
            lines = []
            for b, (down, up, rtt, jitter, loss) in enumerate(values):
                step, home = (a, b) if interleaved else (b, a)
                lines.append(
                    f"{step * 60},home-{home},{down * 1e8 + 1e5:.0f},{up * 1e7 + 1e5:.0f},"
                    f"{rtt / 10 + 0.001:.5f},"
                    f"{jitter / 100:.5f},{loss / 100:.6f}\n"
                )
            out.write("".join(lines))


def write_fcc(path: Path, rows: int) -> None:
    """FCC downloads: six rows a test, one test an hour."""
    random = np.random.default_rng(1)
    with path.open("w") as out:
        out.write(
            "unit_id,dtime,target,address,fetch_time,bytes_total,bytes_sec,bytes_sec_interval,warmup_time,"
            "warmup_bytes,sequence,threads,successes,failures,location_id\n"
        )
        tests = max(1, rows // 6 // HOMES)
        for unit in range(HOMES):
            rates = (random.random(tests * 6) * 1e7 + 1e5).astype(int).tolist()
            out.write(
                "".join(
                    f"{unit + 100},2023-03-{k // 6 // 24 % 28 + 1:02d} "
                    f"{k // 6 % 24:02d}:{k // 6 // 672 % 60:02d}:00,sp1.example.net,192.0.2.1,5000000,"
                    f"{rate * 5},{rate},{rate},500000,1000,{k % 6},8,1,0,1\n"
                    for k, rate in enumerate(rates)
                )
            )


def write_speedtest_cli(path: Path, rows: int) -> None:
    """One home's log with a failed test in every thousand."""
    random = np.random.default_rng(1)
    with path.open("w") as out:
        out.write("Server ID,Sponsor,Server Name,Timestamp,Distance,Ping,Download,Upload\n")
        start = np.datetime64("1995-01-01T00:00:00")
        block = 100_000
        for first in range(0, rows, block):
            n = min(block, rows - first)
            stamps = (start + np.arange(first, first + n) * np.timedelta64(60, "s")).astype(str).tolist()
            values = random.random((n, 3)).tolist()
            out.write(
                "".join(
                    "Cannot retrieve speedtest configuration\n"
                    if i % 1000 == 999
                    else f"4068,Bytemark,York,{stamp}.020515,68.5,{a * 50 + 5:.3f},{b * 1e8 + 1e5},{c * 1e7 + 1e5}\n"
                    for i, (stamp, (a, b, c)) in enumerate(zip(stamps, values))
                )
            )


CASES = {
    "own, home after home": lambda p, n: write_own(p, n, interleaved=False),
    "own, all homes at each time": lambda p, n: write_own(p, n, interleaved=True),
    "fcc-httpgetmt": write_fcc,
    "speedtest-cli-csv": write_speedtest_cli,
}


def measure(path: str, verb: str) -> None:
    """Read (or inspect) in this process and print what it took; 'pandas': the same file by pandas, to compare."""
    if verb == "pandas":
        import pandas

        started = time.perf_counter()
        rows = len(pandas.read_csv(path, comment="#"))
        elapsed = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"verb": verb, "rows": rows, "seconds": round(elapsed, 1), "peak_mb": round(peak / 1e6)}))
        return
    from testbed.traces import Report, read_links

    started, report = time.perf_counter(), Report()
    traces = read_links(path, report=report)
    if verb == "inspect":
        from testbed.traces.summary import summarise

        summarise(traces, report)
    elapsed = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "verb": verb,
                "format": report.format,
                "rows": report.rows,
                "homes": len(traces),
                "samples": sum(map(len, traces.values())),
                "seconds": round(elapsed, 1),
                "peak_mb": round(peak / 1e6),
                "within_limit": peak <= LIMIT_BYTES,
            }
        )
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        for name, write in CASES.items():
            path = Path(folder) / "file.csv"
            write(path, rows)
            for verb in ("pandas", "read", "inspect"):
                result = subprocess.run(
                    [sys.executable, __file__, "--measure", str(path), verb], check=True, capture_output=True, text=True
                )
                print(
                    json.dumps({"case": name, "file_mb": round(path.stat().st_size / 1e6)} | json.loads(result.stdout)),
                    flush=True,
                )
            path.unlink()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], sys.argv[3])
    else:
        main()
