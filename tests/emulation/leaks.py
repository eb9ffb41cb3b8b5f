"""What a test left on the machine. Other runs may go on at the same time: only what is surely ours counts."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from testbed.emulation import cleanup, state

MARK = "TESTBED_TEST_SESSION"  # in the environment of this process and of all that it starts
_NETNS = re.compile(r"tb-([0-9a-f]{6})-")
_SYSCTLS = (
    "net/ipv4/tcp_allowed_congestion_control",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/ipv4/ip_default_ttl",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/netdev_max_backlog",
    "kernel/pty/max",
)


def _listing(directory: str) -> set[str]:
    try:
        return set(os.listdir(directory))
    except FileNotFoundError:
        return set()


def _cgroups() -> set[str]:
    """Directories of ours: directly below a hierarchy's root, and one level deeper."""
    root = Path("/sys/fs/cgroup")
    found = set()
    for pattern in ("testbed*", "*/testbed*", "testbed*/*", "*/testbed*/*"):
        found.update(str(path) for path in root.glob(pattern) if path.is_dir())
    return found


def _iptables() -> str:
    try:
        text = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))  # comments hold the time


@dataclass
class Snapshot:
    """The machine at one moment, as far as runs could have changed it."""

    runs: set[str] = field(default_factory=lambda: {p.stem for p in state.STATE_DIR.glob("*.json")})
    netns: set[str] = field(default_factory=lambda: _listing("/run/netns"))
    links: set[str] = field(default_factory=lambda: _listing("/sys/class/net"))
    cgroups: set[str] = field(default_factory=_cgroups)
    iptables: str = field(default_factory=_iptables)
    sysctls: dict[str, str] = field(
        default_factory=lambda: {name: (Path("/proc/sys") / name).read_text().strip() for name in _SYSCTLS}
    )


def _owned_elsewhere(run_id: str) -> bool:
    """Does a living process that this session didn't start own the run?"""
    for run in cleanup.runs():
        if run.run_id == run_id and cleanup.is_running(run.owner):
            return not _is_ours(int(run.owner.partition(":")[0]))
    return False


def _is_ours(pid: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK}={os.environ[MARK]}".encode() in environment.split(b"\0")


def processes() -> dict[int, str]:
    """Running processes, but for this one, that this session started, with their command lines."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _is_ours(int(entry)):
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry)] = line.decode(errors="replace")[:120]
            except OSError:
                continue
    return found


def leaks(before: Snapshot, allowed: set[int], patience_s: float = 3.0) -> list[str]:
    """What is there now, wasn't before, and isn't another session's; waits a moment for it to go."""
    deadline = time.monotonic() + patience_s
    while True:
        found = _leaks(before, Snapshot(), allowed)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _leaks(before: Snapshot, now: Snapshot, allowed: set[int]) -> list[str]:
    new_netns = {name: match[1] for name in now.netns - before.netns if (match := _NETNS.match(name))}
    new_runs = (now.runs - before.runs) | set(new_netns.values())
    ours = {run_id for run_id in new_runs if not _owned_elsewhere(run_id)}
    found = [f"state file of run {run_id}" for run_id in (now.runs - before.runs) & ours]
    found += [f"namespace {name}" for name, run_id in new_netns.items() if run_id in ours]
    found += [f"cgroup {path}" for path in now.cgroups - before.cgroups if any(i in path for i in ours)]
    found += [f"link {name} in the root namespace" for name in now.links - before.links]
    found += [f"link {name} is missing in the root namespace" for name in before.links - now.links]
    if now.iptables != before.iptables:
        found.append("iptables rules of the root namespace differ")
    found += [
        f"sysctl {name}: {before.sysctls[name]!r} is now {value!r}"
        for name, value in now.sysctls.items()
        if value != before.sysctls[name]
    ]
    found += [f"process {pid}: {line}" for pid, line in processes().items() if pid not in allowed]
    return sorted(found)
