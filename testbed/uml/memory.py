"""How much memory the second kernel gets, and where: it is a file, best on a tmpfs, of which only used pages count."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.errors import CapabilityError, InputError
from testbed.units import size

LEAST = 512 << 20
MOST_BY_DEFAULT = 4 << 30
_PLACES = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))


def room(place: Path) -> int:
    """Bytes of a kernel's memory that can lie in this folder; 0 where it can't be written or executed."""
    try:
        found = os.statvfs(place)
    except OSError:
        return 0
    if found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) or not os.access(place, os.W_OK | os.X_OK):
        return 0
    return found.f_bavail * found.f_frsize


def choose(asked: int | None, available: int, places: tuple[Path, ...] = _PLACES) -> tuple[int, Path]:
    """(bytes, folder): what was asked for, or half of the memory available, at most 4 GiB.

    Args:
        asked: bytes, or None. available: bytes of this machine's memory that nobody uses.

    Raises:
        InputError: asked for less than a kernel needs, or more than there is. CapabilityError: there is too little.
    """
    rooms = {place: room(place) for place in places}
    largest = min(available, max(rooms.values(), default=0))
    if asked is not None and asked < LEAST:
        raise InputError("--kernel-memory", f"{size(asked)}; expected {size(LEAST)} or more")
    if largest < LEAST:
        raise CapabilityError(
            f"--kernel uml: {size(largest)} of memory are free, and it needs {size(LEAST)}",
            hint=", ".join(f"{place}: {size(n)}" for place, n in rooms.items()),
        )
    if asked is not None and asked > largest:
        raise InputError("--kernel-memory", f"{size(asked)}; expected at most {size(largest)}, which is what is free")
    wanted = asked if asked is not None else min(MOST_BY_DEFAULT, max(LEAST, available // 2), largest)
    return wanted, next(place for place, n in rooms.items() if n >= wanted)
