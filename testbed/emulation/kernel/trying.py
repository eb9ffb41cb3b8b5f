"""Trying what a machine can do: by a command, and what the system said."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

UML_HINT = "; or in a kernel of its own: testbed --kernel uml …, or vagrant up"  # at the end of a kernel's remedy


@dataclass(frozen=True)
class Found:
    """One thing that was tried. how: the command that worked, or what the system said instead."""

    available: bool
    how: str
    remedy: str = ""


def command(*argv: str) -> Found:
    """Run a command; available means that it succeeded."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Found(False, str(error))
    said = next((line for line in done.stderr.splitlines() if line.strip()), f"exit code {done.returncode}")
    return Found(done.returncode == 0, " ".join(argv) if done.returncode == 0 else said.strip())


def commands(*lines: str) -> Found:
    """Run commands in order until one fails."""
    found = Found(True, "")
    for line in lines:
        found = command(*line.split())
        if not found.available:
            break
    return found


def output(*argv: str) -> str:
    """What a command prints, or '' when it can't run."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def congestion_controls() -> tuple[str, ...]:
    """TCP's that are loaded; empty where the kernel doesn't tell."""
    listed = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return tuple(listed.read_text().split()) if listed.exists() else ()
