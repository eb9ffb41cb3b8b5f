"""The workflows of docs/ci.md can be read, and the commands in them exist."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from testbed.cli import cli
from testbed.experiment.loading import find_experiment

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = [
    yaml.safe_load(block) for block in re.findall(r"(?s)```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text())
]
STEPS = [step for flow in WORKFLOWS for job in flow["jobs"].values() for step in job["steps"]]
LINES = sorted({line.strip() for step in STEPS for line in step.get("run", "").splitlines()})
KNOWN = {"apt-get", "modprobe"}  # of the machine


def checked(line: str) -> None:
    """Raises where a command is none of the project's, or an option or experiment is unknown."""
    words = shlex.split(line)
    if words[0] == "sudo":
        words = words[1:]
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[0] == ".venv/bin/testbed":
        if "--kernel" in words:  # stands anywhere: taken away before the command is read
            at = words.index("--kernel")
            assert words[at + 1] == "uml"
            del words[at : at + 2]
        command = cli.get_command(click.Context(cli), words[1])
        assert command is not None, line
        context = command.make_context(words[1], words[2:])
        if "experiment" in context.params:
            find_experiment(context.params["experiment"])
    else:
        assert words[0] in KNOWN, line


@pytest.mark.parametrize("line", LINES)
def test_command_exists(line):
    checked(line)


@pytest.mark.parametrize(
    "line", ["make nothing", ".venv/bin/testbed runn smoke", ".venv/bin/testbed run smoke --reqire-valid", "curl x"]
)
def test_the_check_sees_what_does_not_exist(line):
    with pytest.raises((AssertionError, click.UsageError, subprocess.CalledProcessError)):
        checked(line)


def test_three_ways_that_judge_the_verdict():
    assert len(WORKFLOWS) == 3
    for flow in WORKFLOWS:
        (job,) = flow["jobs"].values()
        assert job["runs-on"] == "ubuntu-24.04"
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        assert any("--require-valid" in step.get("run", "") for step in job["steps"])
