"""Every command in a ```console block of README.md and docs/ runs, in one folder, in the order of the pages.

Commands that take minutes run with fewer steps or points (SHORTER). `make` targets are only checked to exist: CI runs them.
A block that only shows output is marked ```text.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STEPS = "--set training.steps=2"

# (pattern, what is put in its place)
SHORTER = [
    (r"^(testbed run (?!.*--dry-run).*)$", rf"\1 {STEPS}"),
    (r"--repeat 5", "--repeat 2"),
    (r"^(testbed verify --grid)(?! --points)(.*)$", r"\1 --points 1 --quick\2"),
    (r"--points \d+", "--points 1"),
    (r"^(testbed verify quickstart)( --json)", r"\1 --quick --sample 1\2"),
    (r"^(testbed recovery recovery.*)$", r"\1 --set engine=simulation"),
]


def commands(page):
    """(line number, command) of each `$ ` line in a console block; a line that ends in a backslash goes on."""
    inside, found, open_line = False, [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = line.strip() == "```console"
        elif inside and open_line is not None:
            found[-1] = (found[-1][0], found[-1][1] + " " + line.strip().removesuffix("\\").strip())
            open_line = number if line.endswith("\\") else None
        elif inside and line.startswith("$ "):
            found.append((number, line[2:].removesuffix("\\").strip()))
            open_line = number if line.endswith("\\") else None
    return found


# each command once, where it stands first
ALL = {command: (page, number) for page in reversed(PAGES) for number, command in reversed(commands(page))}
ALL = [(page, number, command) for command, (page, number) in reversed(ALL.items())]


def shorter(command):
    command = re.sub(r"^sudo ", "", command)
    command = re.sub(r"(?<![\w/])\.venv/bin/testbed", "testbed", command)
    for pattern, instead in SHORTER:
        command = re.sub(pattern, instead, command)
    return command


def test_commands_are_found():
    assert len(ALL) >= 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a reader stands: the project's folder, with the files that the pages speak of."""
    path = tmp_path_factory.mktemp("reader")
    for name in ("experiments", "examples", "traces", "topologies", "scripts", "tests", "Makefile"):
        (path / name).symlink_to(ROOT / name)
    (path / ".venv").symlink_to(sys.prefix)
    guide = (ROOT / "docs" / "guide.md").read_text()
    (path / "mine.yaml").write_text(guide.split("```yaml\n")[1].split("```")[0])
    shutil.copy(ROOT / "tests" / "unit" / "traces" / "links" / "speedtest-cli.csv", path / "speedtest.csv")
    return path


@pytest.mark.root
@pytest.mark.emulation
@pytest.mark.parametrize(("page", "number", "command"), ALL, ids=[f"{p.stem}:{n}" for p, n, _ in ALL])
def test_command_of_the_docs_runs(page, number, command, folder):
    if match := re.match(r"make (\w+)", command):
        subprocess.run(["make", "-n", match[1]], cwd=ROOT, check=True, capture_output=True)
        return
    short = shorter(command)
    words = shlex.split(short, comments=True)
    if "--kernel" in words and shutil.which("linux.uml") is None:
        pytest.skip("user-mode-linux is not installed (apt-get install user-mode-linux)")
    for tool in ("jq", "iperf3"):
        if re.search(rf"\b{tool}\b", short) and shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (apt-get install {tool})")
    env = {**os.environ, "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", short], cwd=folder, env=env, input="exit\n", capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{page.name} line {number}: {short}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
