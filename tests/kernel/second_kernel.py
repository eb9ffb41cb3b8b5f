"""Commands in the second kernel, as a user starts them, and what is left of it on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: any command; the command line of the testbed
ANY = [sys.executable, "-m", "testbed.uml"]
TESTBED = [sys.executable, "-m", "testbed"]
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def start(argv: list, **options) -> subprocess.Popen:
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": ROOT,
    } | options
    return subprocess.Popen([str(word) for word in argv], **options)


def run(argv: list, timeout_s: float = 500, **options) -> subprocess.CompletedProcess:
    """Run a command to its end; it and its kernel leave nothing."""
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    process = start(argv, **options)
    try:
        out, err = process.communicate(given, timeout=timeout_s)
    finally:
        process.kill()
        process.wait()
    assert_nothing_left(process.pid)
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def left(pid: int) -> list[str]:
    """What there is of the kernel that process `pid` booted: processes and folders, by the name that both have."""
    mark = f"testbed-uml-{pid}-"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(f"process {path.parent.name}")
        except OSError:
            continue
    for place in {"/tmp", "/var/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp")}:
        found += [str(path) for path in Path(place).glob(f"{mark}*")]
    return found


def assert_nothing_left(pid: int, within_s: float = 0.0) -> None:
    """At once when the command has ended by itself, `within_s` after it was killed."""
    deadline = time.monotonic() + within_s
    while (found := left(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not found


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder in which everybody may write, unlike pytest's, which it closes to others whenever it starts."""
    with tempfile.TemporaryDirectory(prefix="testbed-kernel-suite-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


def ordinary_user() -> list[str]:
    """What makes a command an ordinary user's; nothing where we are one, or where none could read this checkout.

    A user who may have a priority, where that can be granted: a busy machine makes the suite last for ever otherwise.
    """
    if os.geteuid() or not shutil.which("setpriv"):
        return []
    for prefix in (["prlimit", "--nice=40", *NOBODY], NOBODY):
        if not subprocess.run([*prefix, *TESTBED, "--version"], cwd="/", capture_output=True, check=False).returncode:
            return prefix
    return []
