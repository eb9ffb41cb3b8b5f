"""Formats that other packages add, by docs/traces.md alone; folders as a series or a population."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.traces import Report, read_links

DOCS = Path(__file__).resolve().parents[2] / "docs" / "traces.md"


def test_the_page_s_format_is_read_from_a_package_of_its_own(tmp_path):
    text = DOCS.read_text()
    blocks = dict(re.findall(r"`([\w./-]+)`:\n\n((?: {4}.*\n|\n)+)", text[text.index("## Adding a format") :]))
    assert set(blocks) == {"acme_traces.py", "acme_traces-1.0.dist-info/entry_points.txt", "router.csv", "meter.jsonl"}
    for name, block in blocks.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(re.sub(r"(?m)^ {4}", "", block))
    (tmp_path / "acme_traces-1.0.dist-info" / "METADATA").write_text("Name: acme-traces\nVersion: 1.0\n")
    program = (
        "from testbed.traces import read_links, Report\n"
        "for file in ('router.csv', 'meter.jsonl'):\n"
        "    report = Report()\n"
        "    state = next(iter(read_links(file, report=report).values())).at(0)\n"
        "    print(report.format, state.down_bps, state.up_bps, state.rtt_s)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{tmp_path}:{DOCS.parents[1]}", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "acme-router 93500000.0 11200000.0 0.014",
        "acme-meter 48000000.0 9000000.0 0.021",
    ], done.stderr


def month(k: int, days=range(1, 29), name="home-2024-0{}.csv") -> tuple[str, str]:
    rows = "".join(f"2024-0{k}-{d:02} 12:00:00,{50 + k},10,20\n" for d in days)
    return name.format(k), "timestamp,download_mbps,upload_mbps,ping_ms\n" + rows


def test_a_log_a_month_is_one_series(tmp_path):
    for k in (1, 2, 3):
        name, text = month(k)
        (tmp_path / name).write_text(text)
    report = Report()
    traces = read_links(tmp_path, report=report)
    assert list(traces) == ["home"]
    assert sorted(set(traces["home"].down_bps)) == [51e6, 52e6, 53e6]
    assert traces["home"].times_s[28] == 31 * 86400
    assert any("one series" in note for note in report.notes)
    assert len(read_links(tmp_path, folder="population")) == 3


def test_files_of_the_same_time_are_a_population(tmp_path):
    for k in range(3):
        (tmp_path / f"h{k}.csv").write_text(month(1)[1])
    report = Report()
    assert list(read_links(tmp_path, report=report)) == ["h0", "h1", "h2"]
    assert any("a population of 3 homes" in note for note in report.notes)
    with pytest.raises(InputError, match="overlap in time"):
        read_links(tmp_path, folder="series")
    with pytest.raises(InputError, match="did you mean 'series'"):
        read_links(tmp_path, folder="serie")
