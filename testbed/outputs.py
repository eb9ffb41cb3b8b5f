"""Places that a user names for results, tried before anything starts: no work is lost to a wrong one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from testbed.errors import InputError, looking


def check_folder(path: str | Path) -> Path:
    """Whether files can be made in this folder, or the folder itself. Leaves nothing behind.

    Returns:
        The innermost part of the path that exists.

    Raises:
        InputError: they can't; says why.
    """
    path = Path(path)
    with looking(str(path)):
        there = next(p for p in (path, *path.absolute().parents) if _exists(p))
        if not there.is_dir():
            raise InputError(str(path), f"can't be written: {there} is no folder")
    _try(path, there)
    return there


def check_file(path: str | Path) -> None:
    """Whether this file can be written, or made in a folder that exists. Leaves nothing behind.

    Raises:
        InputError: it can't; says why.
    """
    path = Path(path)
    with looking(str(path)):
        if path.is_dir():
            raise InputError(str(path), "can't be written: is a folder; expected the name of a file")
        if path.exists():
            if not os.access(path, os.W_OK):
                raise InputError(str(path), "can't be written: Permission denied", hint="choose another place")
            return
        if not path.parent.is_dir():
            raise InputError(str(path), f"can't be written: no folder {path.parent}; expected one that exists")
    _try(path, path.parent)


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _try(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):  # has no name where the file system can do that
            pass
    except OSError as error:
        why = f"can't be written: {error.strerror} ({folder})"
        sudo = ", or sudo testbed …" if isinstance(error, PermissionError) and os.geteuid() else ""
        raise InputError(str(path), why, hint=f"choose another place{sudo}") from None
