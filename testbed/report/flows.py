"""The flows of a run's captures, or of any capture file: as a table, a Parquet file, a figure; what each step moved."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from testbed import units
from testbed.capture.flows import Flows, read_flows
from testbed.errors import InputError
from testbed.figures import browser, colours, paper
from testbed.figures.style import dress, label
from testbed.measurement.events import select
from testbed.measurement.fidelity import setting
from testbed.measurement.run_folder import RunFolder, write_file

FOLDER, PARQUET = "captures", "flows.parquet"
_PLOTS = (".html", ".png", ".svg", ".pdf")
HEAD = ("flow", "start", "end", "bytes", "goodput", "RTT p50", "RTT p95", "sent again", "reordered", "largest gap")
_DRAWN = 6  # flows of a figure: those with most bytes


@dataclass(frozen=True)
class FlowReport:
    """flows: by the capture's name. steps: of a run, with columns step, start_s, end_s. moved: step, kind, messages,
    bytes. Times of a run are emulated seconds since its start; of a file, seconds since its first packet."""

    title: str
    flows: dict[str, Flows]
    steps: pd.DataFrame
    moved: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        """All flows below one another, with the capture's name first."""
        parts = [f.table.assign(capture=name) for name, f in self.flows.items()]
        whole = pd.concat(parts, ignore_index=True)
        return whole[["capture", *(c for c in whole if c != "capture")]]


def read(path: Path) -> FlowReport:
    """Of a run folder or a capture file. Raises InputError: neither, nothing captured, or a damaged file."""
    if path.is_file():
        return FlowReport(path.name, {path.stem: read_flows(path)}, pd.DataFrame(), pd.DataFrame())
    return of_run(RunFolder.open(path))


def files(run: RunFolder) -> list[Path]:
    """The captures of a run, complete or as the capturer left them."""
    complete = sorted((run.path / FOLDER).glob("*.pcapng"))
    names = {p.stem for p in complete}
    return complete + sorted(p for p in (run.path / FOLDER).glob("*.pcap") if p.stem not in names)


def of_run(run: RunFolder) -> FlowReport:
    """Raises InputError."""
    found = files(run)
    if not found:
        raise InputError(
            str(run.path), "holds no captures", hint="make one with: testbed run EXPERIMENT --capture h1,server"
        )
    zero_at, tdf = setting(run.manifest, "zero_at"), float(setting(run.manifest, "tdf") or 1.0)
    zero_ns = int(datetime.fromisoformat(zero_at).timestamp() * 1e9) if zero_at else None
    roles = _roles(run)
    flows = {}
    for path in found:
        read_one = read_flows(path, roles=roles, zero_ns=zero_ns, tdf=tdf)
        if tdf != 1:
            read_one = replace(read_one, remarks=[*read_one.remarks, f"emulated seconds (time dilation {tdf:g})"])
        flows[path.stem] = read_one
    events = run.events()
    steps = select(events, "step")
    steps = pd.DataFrame({"step": steps["step"], "start_s": steps["start"], "end_s": steps["end"]})
    return FlowReport(run.path.name, flows, steps, moved(events, steps))


def _roles(run: RunFolder) -> dict[str, str]:
    devices = (run.plan().get("cluster") or {}).get("devices", [])
    return {"server": "server", **{d["name"]: "worker" for d in devices if isinstance(d, dict) and "name" in d}}


def moved(events: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """What each step moved by kind of message: of the `send` events that began within it.

    A kind is a message's tag without its numbers: `grad` of `grad/3/1`.
    """
    sends = select(events, "send")
    rows = []
    for step in steps.itertuples():
        inside = sends[(sends["start"] >= step.start_s) & (sends["start"] < step.end_s)]
        kinds = inside["tag"].map(kind_of)
        for kind, part in inside.groupby(kinds):
            rows.append((int(step.step), kind, len(part), float(part["bytes"].sum())))
    return pd.DataFrame(rows, columns=["step", "kind", "messages", "bytes"])


def kind_of(tag: object) -> str:
    return re.sub(r"[^A-Za-z]*\d+|[^A-Za-z]+$", "", str(tag)).strip("/:.-_ ") or "other"


def text(report: FlowReport, most: int = 40) -> str:
    """The table for people, flows with most bytes first; then what each step moved."""
    lines = []
    for name, flows in report.flows.items():
        lines.append(f"{name}: {flows.packets} packets in {len(flows.table)} flows")
        lines += [f"  {remark}" for remark in flows.remarks]
        if flows.other_packets:
            lines.append(f"  {flows.other_packets} packets that are neither TCP nor UDP, or cut before their ports")
        rows = [HEAD]
        ordered = flows.table.sort_values("bytes", ascending=False)
        rows += [row(r) for r in ordered.head(most).itertuples()]
        widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
        lines += [
            "  " + r[0].ljust(widths[0]) + "".join(f"  {c:>{w}}" for c, w in zip(r[1:], widths[1:])) for r in rows
        ]
        if len(ordered) > most:
            lines.append(f"  … {len(ordered) - most} more in the Parquet file")
    if len(report.moved):
        lines.append("what a step moved, by kind of message (mean of all steps; all hosts):")
        total = report.moved.groupby("kind")[["messages", "bytes"]].sum() / max(1, len(report.steps))
        for kind, mean in total.sort_values("bytes", ascending=False).iterrows():
            lines.append(f"  {kind:24} {mean['messages']:8.1f} messages  {units.size(mean['bytes']):>10}")
    return "\n".join(lines)


def row(r) -> tuple[str, ...]:
    """A flow (of the table) as texts, below HEAD."""

    def seconds(value: float) -> str:
        return "-" if pd.isna(value) else units.duration(value)

    return (
        f"{r.source}:{r.source_port} > {r.destination}:{r.destination_port} {r.protocol}",
        f"{r.start_s:.3f} s",
        f"{r.end_s:.3f} s",
        units.size(r.bytes),
        "-" if pd.isna(r.goodput_bps) else units.rate(r.goodput_bps),
        seconds(r.rtt_p50_s),
        seconds(r.rtt_p95_s),
        str(r.retransmissions),
        str(r.reordered),
        seconds(r.largest_gap_s),
    )


def write(report: FlowReport, parquet: Path | None, plot: Path | None) -> None:
    """Write the table and the figure, each where a path is given. Raises InputError, TestbedError."""
    if plot is not None and plot.suffix.lower() not in _PLOTS:
        raise InputError(str(plot), f"ends with {plot.suffix!r}; expected one of {', '.join(_PLOTS)}")
    if parquet is not None:
        write_file(parquet, report.table.to_parquet(index=False))
    if plot is not None and plot.suffix.lower() == ".html":
        write_file(plot, browser.page(figure(report), f"flows of {report.title}"))
    elif plot is not None:
        paper.save(figure(report), plot)


def figure(report: FlowReport) -> go.Figure:
    """Goodput and RTT over time of the flows with most bytes, below them the steps as bands."""
    made = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    ranked = report.table.assign(place=[i for f in report.flows.values() for i in range(len(f.table))])
    for shown, r in enumerate(ranked.nlargest(_DRAWN, "bytes").itertuples()):
        series = report.flows[r.capture].series
        own = series[series["flow"] == r.place]
        name = label(f"{r.source}:{r.source_port} > {r.destination}:{r.destination_port} (at {r.capture})")
        colour = _PALETTE[shown % len(_PALETTE)]
        line = {"color": colour, "width": 1.5}
        made.add_scatter(x=own["t_s"], y=own["goodput_bps"] / 1e6, name=name, mode="lines", line=line, row=1, col=1)
        known = own.dropna(subset=["rtt_s"])
        made.add_scatter(
            x=known["t_s"], y=known["rtt_s"] * 1e3, name=name, mode="lines", line=line, showlegend=False, row=2, col=1
        )
    dress(made, 520, alt="Goodput and round-trip time of the largest flows over time, with the steps of training.")
    made.update_yaxes(title_text="goodput [Mbit/s]", row=1, col=1)
    made.update_yaxes(title_text="RTT [ms]", row=2, col=1)
    made.update_xaxes(title_text="time [s]", row=2, col=1)
    for panel, values in ((1, [f.series["goodput_bps"] / 1e6 for f in report.flows.values()]),
                          (2, [f.series["rtt_s"] * 1e3 for f in report.flows.values()])):  # fmt: skip
        _bands(made, report.steps.iloc[::2].head(500), panel, pd.concat(values).max())
    return made


def _bands(made: go.Figure, steps: pd.DataFrame, panel: int, top: float) -> None:
    """Every second step as a grey area of that height."""
    if not len(steps) or not top > 0:
        return
    start, end = steps["start_s"].to_numpy(dtype=float), steps["end_s"].to_numpy(dtype=float)
    made.add_scatter(
        x=np.c_[start, start, end, end, start, np.full(len(steps), np.nan)].ravel(),
        y=np.tile([0.0, top, top, 0.0, 0.0, np.nan], len(steps)),
        mode="lines", fill="toself", fillcolor="rgba(128,128,128,0.18)", line={"width": 0},
        name="every second step", showlegend=panel == 1, hoverinfo="skip", row=panel, col=1,
    )  # fmt: skip


_PALETTE = (colours.MEASURED, "#e07b39", "#2a9d6f", "#9b5de5", "#c9a227", "#d1495b")
