"""Network namespaces: enter them, run programs in them, find who is in them, delete them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from testbed.emulation.kernel.names import NETNS_DIR, netns_path

CLONE_NEWNET = 0x40000000
MNT_DETACH = 2
MS_BIND, MS_REC, MS_SHARED = 0x1000, 0x4000, 0x100000
_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def enter_namespace(netns: str) -> None:
    """Move the calling thread into a network namespace, by name or path. In a forked child: the whole child.

    Threads started afterwards follow, others stay. Raises OSError.
    """
    fd = os.open(netns_path(netns), os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(fd, CLONE_NEWNET), f"setns {netns}")
    finally:
        os.close(fd)


@contextlib.contextmanager
def inside(netns: str) -> Iterator[None]:
    """The calling thread is in that namespace while the context lasts; sockets opened there stay in it."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_namespace(netns)
        try:
            yield
        finally:
            _check(_libc.setns(here, CLONE_NEWNET), "setns back")
    finally:
        os.close(here)


def in_thread(function: Callable[[], T]) -> T:
    """Call `function` in a thread of its own, so that namespaces it enters stay its own; gives its result."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append((True, function()))
        except BaseException as error:  # handed over to the caller, whatever it is
            outcome.append((False, error))

    thread = threading.Thread(target=call, name="netns")
    thread.start()
    thread.join()
    ok, value = outcome[0]
    if not ok:
        raise value
    return value


def argv_in(netns: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in a namespace, e.g. for subprocess."""
    return ["nsenter", f"--net={netns_path(netns)}", "--", *argv]


def run_in(netns: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess:
    """subprocess.run in a namespace; text output is captured unless told otherwise."""
    options = {"capture_output": True, "text": True, **options}
    return subprocess.run(argv_in(netns, argv), check=options.pop("check", False), **options)


def processes_in(namespaces: Iterable[str]) -> set[int]:
    """Pids of all processes that live in any of the named namespaces, and still run (zombies don't)."""
    inodes = set()
    for netns in namespaces:
        with contextlib.suppress(OSError):
            inodes.add(os.stat(netns_path(netns)).st_ino)
    if not inodes:
        return set()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # ended meanwhile, or a zombie
                if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                    found.add(int(entry))
    return found


def _share_directory() -> None:
    """Make /run/netns what `ip netns` makes of it: mounts in it reach, and leave, every mount namespace."""
    NETNS_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = os.fsencode(NETNS_DIR)
    if _libc.mount(b"", directory, b"none", MS_SHARED | MS_REC, None):
        _check(_libc.mount(directory, directory, b"none", MS_BIND | MS_REC, None), f"mount {NETNS_DIR}")
        _check(_libc.mount(b"", directory, b"none", MS_SHARED | MS_REC, None), f"share {NETNS_DIR}")


def create(namespaces: Iterable[str]) -> None:
    """`ip netns add` for many names, by this process itself: when it is killed, none can appear afterwards.

    Raises:
        OSError: the kernel refuses, or a name is taken.
    """

    def make() -> None:
        _share_directory()
        for netns in namespaces:
            path = netns_path(netns)
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
            _check(_libc.unshare(CLONE_NEWNET), "unshare")
            here = b"/proc/thread-self/ns/net"
            _check(_libc.mount(here, os.fsencode(path), b"none", MS_BIND, None), f"mount {path}")

    in_thread(make)


def unmount(path: str) -> None:
    """Detach a mount; no error when nothing is mounted there."""
    _libc.umount2(os.fsencode(path), MNT_DETACH)


def delete(netns: str) -> bool:
    """Remove a named namespace; the kernel then removes every interface in it. False when there is none."""
    path = netns_path(netns)
    if not os.path.lexists(path):
        return False
    unmount(path)  # not mounted after a crash halfway: then only the file is left
    Path(path).unlink(missing_ok=True)
    return True
