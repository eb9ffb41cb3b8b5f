"""The files in traces/ are what their documented commands make, byte for byte, and read without a repair."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.traces import Report, read_availability, read_links

TRACES = Path(__file__).resolve().parents[2] / "traces"
FILES = sorted(TRACES.glob("links/*.csv")) + sorted(TRACES.glob("availability/*.csv"))


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    # the script calls `testbed`; one process for all its commands saves their start-up
    program = folder / "testbed"
    program.write_text('#!/bin/sh\nshift\necho "$@" >> "$COMMANDS"\n')
    program.chmod(0o755)
    commands = folder / "commands"
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "COMMANDS": str(commands)}
    subprocess.run(["sh", str(TRACES / "regenerate.sh"), str(folder)], check=True, env=environment)
    from testbed.cli.traces import traces

    for line in commands.read_text().splitlines():
        traces.main(shlex.split(line), standalone_mode=False)
    return folder


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_shipped_file_is_made_by_its_command(regenerated, file):
    made = regenerated / file.relative_to(TRACES)
    assert made.read_bytes() == file.read_bytes()


def test_every_command_has_its_file(regenerated):
    made = {p.relative_to(regenerated) for p in regenerated.glob("*/*.csv")}
    assert made == {p.relative_to(TRACES) for p in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_shipped_file_reads_strictly(file):
    report = Report()
    read = read_links if file.parent.name == "links" else read_availability
    traces = read(file, strict=True, report=report)
    assert len({t.span_s for t in traces.values()}) == 1
    assert not report.warnings
    assert not report.assumed


def test_quickstart_fits_its_experiment():
    links = read_links(TRACES / "links/quickstart.csv")
    assert len(links) == 6
    assert all(t.up_bps.min() > 1e6 for t in links.values())
    assert all(len(t.changes(90, time_scale=60)) > 10 for t in links.values())
    devices = read_availability(TRACES / "availability/quickstart.csv")
    away = [t.changes(90, time_scale=60, end="hold") for t in devices.values()]
    left = [c for c in away if len(c) > 1]
    assert len(devices) == 6
    assert len(left) == 2
    for (_, on), (leave, gone), (back, again) in left:
        assert (on, gone, again) == (True, False, True)
        assert 25 <= leave <= 35
        assert 10 <= back - leave <= 20


def test_commands_run_as_a_program(tmp_path):
    out = tmp_path / "a.csv"
    subprocess.run(
        [sys.executable, "-m", "testbed.cli.traces", "generate", "links", "--preset", "dsl=2", "--out", str(out)],
        check=True,
    )
    assert list(read_links(out)) == ["dsl-01", "dsl-02"]
