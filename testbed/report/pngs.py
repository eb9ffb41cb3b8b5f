"""The figures of a run, made once: for its page, and as PNG files for papers and slides."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from testbed.figures import paper
from testbed.measurement.recorder import write_error
from testbed.report import figures, figures_links, flows, series
from testbed.report.gantt import gantt, typical_step
from testbed.report.run_data import RunData

_FILES = ("loss", "step_times", "timeline", "step", "links", "bytes", "flows")  # the machine's is for the page alone
_WIDTH = {"loss": 700, "bytes": 800}


def run_figures(data: RunData) -> dict[str, go.Figure]:
    """What the run has data for, by name."""
    made = {}
    if len(data.steps):
        if data.summary.final_loss is not None:
            made["loss"] = figures.loss(data)
        made["step_times"] = figures.step_times(data)
    if len(data.intervals):
        made["timeline"] = figures.timeline(gantt(data))
        step = typical_step(data)
        if step is not None:
            close = gantt(data, float(step["start_s"]), float(step["end_s"]))
            made["step"] = figures.timeline(close, labelled=True)
    shown = series.shown_links(data)
    if shown:
        made["links"] = figures_links.links(data, shown)
    if data.devices and data.bytes[["sent", "received"]].notna().any(axis=None):
        made["bytes"] = figures_links.device_bytes(data)
    if data.flows is not None and len(data.flows.table):
        made["flows"] = flows.figure(data.flows)
    if len(data.select("host")):
        made["machine"] = figures_links.machine(data)
    return made


def write_pngs(data: RunData, folder: Path, made: dict[str, go.Figure] | None = None) -> list[Path]:
    """NAME.png of each figure; those of an earlier report go. Raises TestbedError: a file can't be written."""
    made = run_figures(data) if made is None else made
    stamp = "" if data.verdict.label == "VALID" else data.verdict.label
    written = []
    for name in _FILES:
        path = folder / f"{name}.png"
        if name not in made:
            path.unlink(missing_ok=True)
            continue
        try:
            written.append(paper.save(made[name], path, width=_WIDTH.get(name, 1000), stamp=stamp))
        except OSError as error:
            raise write_error(path, error) from None
    return written
