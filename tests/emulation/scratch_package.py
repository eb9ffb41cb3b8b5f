"""A package outside the project, from the code blocks of a docs page: installed as pip would, found by its entry points."""

from __future__ import annotations

import os
import re
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, heading: str, language: str) -> list[str]:
    """The code blocks in that language below a heading of a docs page."""
    text = (ROOT / "docs" / page).read_text()
    section = re.split(r"(?m)^## ", text.partition(f"\n## {heading}\n")[2])[0]
    return re.findall(rf"(?s)```{language}\n(.*?)```", section)


def install(folder: Path, module: str, code: str, pyproject: str) -> dict[str, str]:
    """Put a module with the metadata that its pyproject.toml asks for into a folder. Returns an environment with it."""
    asked = tomllib.loads(pyproject)
    assert asked["tool"]["setuptools"]["py-modules"] == [module]
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-{asked['project']['version']}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {asked['project']['name']}\nVersion: {asked['project']['version']}\n"
    )
    groups = asked["project"]["entry-points"].items()
    info.joinpath("entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups)
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
