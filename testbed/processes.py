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


def allow_open_files(least: int, most: int) -> None:
    """Let this process, and what it starts, have `most` files open at once, or as many as it may.

    Raises:
        CapabilityError: those are fewer than `least`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < least:
        raise CapabilityError(
            f"at least {least} files have to be open at once; a process may have {hard}",
            hint=f"ulimit -n {most}, or fewer homes",
        )
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, most), hard))


def in_user_mode_linux() -> bool:
    """Is this process's kernel itself a process, user-mode-linux?"""
    try:
        return "User Mode Linux" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
