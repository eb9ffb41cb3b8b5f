"""Processes and memory as /proc tells of them: a pid alone may be reused, a pid with its start time is not."""

from __future__ import annotations

import resource
from pathlib import Path

from testbed.errors import CapabilityError

STATE, PARENT, START_TIME = 0, 1, 19  # places in `stat_fields`


def stat_fields(pid: int | str) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name (proc(5)), or None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def start_time(pid: int | str) -> str | None:
    """When a process started, in clock ticks since boot, or None when there is no such process."""
    fields = stat_fields(pid)
    return fields[START_TIME] if fields else None


def machine_memory() -> tuple[int, int]:
    """(all, available) bytes of this machine's memory."""
    sizes = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, rest = line.partition(":")
        sizes[key] = int(rest.split()[0]) * 1024
    return sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemTotal"])


def allow_open_files(count: int) -> None:
    """Let this process, and what it starts, have so many files open at once. Raises CapabilityError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(count, hard)))
    except (ValueError, OSError):  # beyond the hard limit only root's processes come, and not all of those
        raise CapabilityError(f"{count} files have to be open at once; a process may have {hard}",
                              hint=f"ulimit -n {count}, or fewer homes") from None


def in_user_mode_linux() -> bool:
    """Is this process's kernel itself a process, user-mode-linux?"""
    try:
        return "User Mode Linux" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
