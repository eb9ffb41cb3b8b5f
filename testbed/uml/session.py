"""Boots the second kernel, runs one command in it, returns its exit code."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import CapabilityError, InputError
from testbed.processes import machine_memory
from testbed.uml import console, guardian, kernel, memory

_GUEST = Path(__file__).with_name("guest.py")
# The guest has file systems of its own there.
_NOT_SHARED = ("/dev", "/proc", "/run", "/sys")


def run(argv: Sequence[str], memory_bytes: int | None = None) -> int:
    """Run a command as root of a second kernel, in this folder, with these streams; its exit code.

    The kernel is gone when this returns, raises, or dies. Whoever calls owns what the command writes.

    Args:
        memory_bytes: of the kernel; None: half of what is free, at most 4 GiB.

    Raises:
        CapabilityError: there is no such kernel here, or no room for its files; says what is lacking.
        InputError: a memory size that can't be, or a folder that the kernel doesn't see.
        KernelLost: the kernel panicked or was killed.
    """
    found = kernel.require()
    here = os.getcwd()
    if not shared(here):
        raise InputError(
            "--kernel uml",
            f"the folder {here} can't be seen from there, which has file systems of its "
            f"own at {', '.join(_NOT_SHARED)}",
            hint="run it in another folder",
        )
    size_bytes, place = memory.choose(memory_bytes, machine_memory()[1])
    console.flush()
    streams = console.Streams.found()
    folders: list[Path] = []
    guard = None
    try:
        for parent in (_temporary(), place):
            folders.append(Path(tempfile.mkdtemp(prefix=f"testbed-uml-{os.getpid()}-", dir=parent)))
        files, memory_folder = folders
        preload = kernel.build_shim(files) if found.shim else ""
        init = files / "init"
        init.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E -B {shlex.quote(str(_GUEST))} {files}\n")
        init.chmod(0o700)
        (files / "request.json").write_text(
            json.dumps(
                {
                    "argv": list(argv),
                    "folder": here,
                    "environment": _environment(),
                    "umask": _umask(),
                    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
                    "hostname": socket.gethostname(),
                    "modules": found.modules,
                    **streams.as_json(),
                }
            )
        )
        ours, theirs = socket.socketpair()
        log, logged = os.pipe()
        line = f"fd:{theirs.fileno()},fd:{theirs.fileno()}"
        guard = guardian.start(
            [
                found.binary,
                "rootfstype=hostfs",
                "rw",
                f"mem={size_bytes >> 20}M",
                f"init={init}",
                f"uml_dir={files}",
                "con=null",
                f"con0=null,fd:{logged}",
                "ssl=null",
                f"ssl0={line}",
                "quiet",
            ],
            {**os.environ, "LD_PRELOAD": preload, "TMPDIR": str(memory_folder)},
            folders,
            [theirs.fileno(), logged],
            logged,
            0 if streams.owned else None,
        )
        theirs.close()
        os.close(logged)
        with ours:
            try:
                return console.Console(streams, ours, log, guard.said).run()
            finally:
                guard.end()
                os.close(log)
    except OSError as error:
        if guard is not None:
            raise
        raise CapabilityError(
            f"--kernel uml can't be prepared: {error}", hint="TMPDIR names another folder for its files"
        ) from None
    finally:
        if guard is None:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)


def shared(path: str) -> bool:
    """Is it the same folder in the guest?"""
    real = os.path.realpath(path)
    return not any(real == top or real.startswith(top + "/") for top in _NOT_SHARED)


def _temporary() -> str:
    """A folder for a few small files, which the guest sees, with a name that a kernel's command line can carry."""
    asked = tempfile.gettempdir()
    plain = asked.isascii() and not any(c.isspace() or c in "\"',=" for c in asked)
    return asked if plain and shared(asked) and len(asked) < 60 else "/tmp"


def _environment() -> dict[str, str]:
    """The command's environment: this one, but for what names things that are elsewhere in the guest."""
    ours = {key: value for key, value in os.environ.items() if key not in ("XDG_RUNTIME_DIR", "TEMP", "TMP")}
    path = [entry for entry in ours.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":") if entry]
    path += [entry for entry in ("/usr/sbin", "/sbin") if entry not in path]  # an ordinary user is root there
    return {
        **ours,
        "PATH": ":".join(["/run/testbed-uml", *path]),
        "TMPDIR": "/run/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",  # a panic would leave half-written ones
    }


def _umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found
