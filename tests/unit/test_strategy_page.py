"""docs/strategy.md: what it shows are the files of examples/strategy, and they work in a package outside the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "strategy"
PAGE = (ROOT / "docs" / "strategy.md").read_text()
SHOWN = dict(re.findall(r"(?s)`([\w.]+\.\w+)`:\n\n```\w+\n(.*?)```", PAGE))
SCRIPTS = re.findall(r"(?s)```sh\n(.*?)```", PAGE)


def test_the_page_shows_the_files_as_they_are():
    assert SHOWN.keys() == {p.name for p in EXAMPLE.iterdir() if p.is_file()}
    for name, text in SHOWN.items():
        assert text == (EXAMPLE / name).read_text(), name


def run(script: str, folder: Path) -> str:
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": f"site:{ROOT}"}
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with the installed package; and what simulating it printed."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "strategy").mkdir()
    for name, text in SHOWN.items():
        (folder / "strategy" / name).write_text(text)
    return folder, run(SCRIPTS[0], folder)


def test_it_is_found_and_survives_a_departure(package):
    _, shown = package
    assert "h2 leaves (kill)" in shown
    assert "recovered from h2" in shown
    assert "step 30/30" in shown


def test_its_own_test_passes_outside_the_project(package):
    folder, _ = package
    assert "2 passed" in run(SCRIPTS[2], folder)


@pytest.mark.emulation
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mnexec"), reason="needs root and Mininet")
def test_it_survives_a_departure_on_real_links(package):
    folder, _ = package
    shown = run(SCRIPTS[1], folder)
    assert "h2 leaves (kill)" in shown
    assert "recovered from h2" in shown
    assert "step 30/30" in shown
