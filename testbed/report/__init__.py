"""Reports of run folders: figures, tables, an HTML page, a Perfetto timeline, summaries."""

from __future__ import annotations

from pathlib import Path

from testbed.outputs import check_folder
from testbed.report.summary import RunSummary, render_summary, summarize, summarize_repeats

__all__ = ["RunSummary", "build_report", "render_summary", "summarize", "summarize_repeats"]


def build_report(run_dir: str | Path) -> Path:
    """Write report.html (one file, opens offline) and the main figures as PNG into the run folder.

    Works on partial runs. Files that a crash left unwritten (steps.csv, fidelity.json, …) are derived first.

    Returns:
        The path of report.html.

    Raises:
        InputError: no run folder, or one that can't be written to.
        TestbedError: a file can't be written.
    """
    from testbed.measurement.run_folder import FIDELITY, REPORT, RunFolder, write_file
    from testbed.report.page import html  # plotly and matplotlib take a second to import
    from testbed.report.pngs import run_figures, write_pngs
    from testbed.report.run_data import load

    run = RunFolder.open(run_dir)
    check_folder(run.path)
    if run.status != "running" and not (run.path / FIDELITY).exists():
        run.derive()
    data = load(run)
    made = run_figures(data)
    write_pngs(data, run.path, made)
    path = run.path / REPORT
    write_file(path, html(data, made))
    return path
