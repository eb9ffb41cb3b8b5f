"""Which files an experiment reads, and what is in them: so that a later run can tell whether they changed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from testbed.experiment.loading import LoadedExperiment

_PLACES = (("topology", "file"), ("links", "trace"), ("availability", "trace"))


def inputs(loaded: LoadedExperiment) -> dict[str, dict[str, str]]:
    """By key of the experiment ('links.trace'): path and SHA-256 of each file or folder that it reads."""
    found = {}
    for keys in _PLACES:
        text: Any = loaded.experiment
        for key in keys:
            text = getattr(text, key, None)
        if text is not None:
            path = loaded.file(str(text), *keys, folders=True)
            found[".".join(keys)] = {"path": str(path), "sha256": _digest(path)}
    return found


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        if file != path:
            digest.update(f"{file.relative_to(path)}\0".encode())
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
