"""Runs in the second kernel: what its cgroup v2 does to a process that wants more than its limit. Prints JSON."""

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
(ROOT / "cgroup.subtree_control").write_text("+memory +cpu")


def limited(name: str, limits: dict[str, str], program: str, seconds: float) -> tuple[int, dict[str, dict[str, int]]]:
    """(return code, what the group counted) of a Python program in a group with limits, ended after some seconds."""
    group = ROOT / name
    group.mkdir()
    for file, value in limits.items():
        (group / file).write_text(value)
    process = subprocess.Popen(
        [sys.executable, "-c", program], preexec_fn=lambda: (group / "cgroup.procs").write_text("0")
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    code = process.wait()
    counted = {}
    for file in ("memory.events", "cpu.stat"):
        pairs = (line.split() for line in (group / file).read_text().splitlines())
        counted[file] = {key: int(value) for key, value in pairs}
    return code, counted


GROW = "x = []\nwhile True: x.append(bytearray(b'1' * (1 << 20)))"
SPIN = "while True: pass"
code, memory = limited("memory", {"memory.max": str(48 << 20)}, GROW, 60)
began = time.monotonic()
_, cpu = limited("cpu", {"cpu.max": "20000 100000"}, SPIN, 3)
print(
    json.dumps(
        {
            "code": code,
            "oom_kills": memory["memory.events"]["oom_kill"],
            "cpu_s": cpu["cpu.stat"]["usage_usec"] / 1e6,
            "throttled": cpu["cpu.stat"]["nr_throttled"],
            "wall_s": time.monotonic() - began,
        }
    )
)
