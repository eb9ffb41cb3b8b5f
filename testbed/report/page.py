"""The HTML report: one file that needs nothing else, verdict first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from testbed.report import figures, figures_links, series, tables, text
from testbed.report.gantt import Gantt, gantt, typical_step
from testbed.report.run_data import RunData
from testbed.report.summary import rows as summary_rows
from testbed.report.text import escape

_MOST_COMMANDS = 1000


@dataclass(frozen=True)
class Section:
    """One part of the report. intro: a sentence on what it shows."""

    anchor: str
    title: str
    intro: str
    body: str


def html(data: RunData) -> str:
    """The whole report as one HTML document."""
    sections = list(_sections(data))
    style = resources.files("testbed.report").joinpath("style.css").read_text()
    contents = "".join(f'<li><a href="#{s.anchor}">{escape(s.title)}</a></li>' for s in sections)
    body = "".join(
        f'<section id="{s.anchor}"><h2>{escape(s.title)}</h2><p class="intro">{s.intro}</p>{s.body}</section>'
        for s in sections
    )
    s = data.summary
    about = [
        s.runner,
        f"{s.devices} devices",
        f"seed {s.seed}" if s.seed is not None else "",
        f"started {s.started.replace('T', ' ')}" if s.started else "",
        f"time dilation {s.tdf:g}" if s.tdf != 1 else "",
    ]
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(s.name)} – {escape(s.verdict)}</title><style>{style}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            f'<nav><p class="mark {_tone(data)}">{escape(s.verdict)}</p><ol>{contents}</ol></nav><main>',
            f"<header><h1>{escape(s.name)}</h1>",
            f'<p class="about">{" · ".join(escape(a) for a in about if a)}</p></header>',
            _status(data),
            _verdict(data),
            body,
            f"<footer>Run folder: <code>{escape(data.run.path)}</code>. "
            "Times are emulated seconds unless said otherwise. "
            "Every number here is derived from <code>events.parquet</code>.</footer></main></body></html>",
        ]
    )


def _tone(data: RunData) -> str:
    if data.verdict.valid:
        return "good"
    return "bad" if data.verdict.reasons else "warn"


def _status(data: RunData) -> str:
    status, error = data.summary.status, data.summary.error
    if status == "complete":
        return ""
    meaning = {
        "running": "The run is still going on; this is what it has recorded so far.",
        "interrupted": "The run ended before its time; this is what it had recorded.",
        "failed": "The run failed; this is what it had recorded.",
    }.get(status, "The run's manifest does not say how it ended; this is what it recorded.")
    return (
        f'<div class="banner warn"><strong>{escape(status.upper())}</strong> {escape(meaning)}'
        + (f"<pre>{escape(error)}</pre>" if error else "")
        + "</div>"
    )


def _wall(at: str | None) -> str:
    """' of emulated time, DATE TIME by the clock', or nothing where it is not known."""
    return f" of emulated time, {at.replace('T', ' ')} by the clock" if at else ""


def _verdict(data: RunData) -> str:
    v = data.verdict
    notes = "".join(f"<p>{escape(n)}</p>" for n in v.notes)
    link = '<a href="#fidelity">All checks</a>'
    if v.valid:
        checked = sum(c.ok is True for c in v.checks)
        unmeasured = sum(c.ok is None for c in v.checks)
        rest = f"; {unmeasured} could not be judged" if unmeasured else ""
        line = f"The emulation did what was set: {checked} checks passed{rest}. " if checked else ""
        return f'<div class="banner good" id="verdict"><h2>VALID</h2><p>{line}{link}</p>{notes}</div>'
    if not v.reasons:
        return f'<div class="banner warn" id="verdict"><h2>{escape(v.label)}</h2>{notes}<p>{link}</p></div>'
    since = v.invalid_since_s
    when = (
        f" The first violation was at {since:.1f} s{_wall(v.invalid_at)}; what came before it is unaffected."
        if since and since > 0
        else ""
    )
    reasons = "".join(f"<li>{escape(r.text)}</li>" for r in v.reasons)
    return (
        f'<div class="banner bad" id="verdict" role="alert"><h2>{escape(v.label)}</h2>'
        f"<p>The emulation did not do what was set, or nobody measured whether it did. "
        f"The results below are kept, but do not rely on them.{when}</p><ul>{reasons}</ul>{notes}"
        f"<p>{link}</p></div>"
    )


def _sections(data: RunData) -> Iterator[Section]:
    yield Section(
        "summary", "Summary", "The run in numbers; rates and times include everything that churn cost.", _summary(data)
    )
    warnings = [str(t) for t in dict.fromkeys(data.select("warning")["text"]) if t]
    if warnings:
        items = "".join(f"<li>{escape(w)}</li>" for w in warnings[:50])
        yield Section(
            "warnings", "Warnings", "What a reader should know before trusting the numbers.", f"<ul>{items}</ul>"
        )
    if len(data.steps) and data.summary.final_loss is not None:
        yield Section(
            "loss",
            "Loss",
            "Training loss of every step, as the server reported it when the step was complete.",
            plot(figures.loss(data)),
        )
    if len(data.steps):
        yield Section(
            "steps",
            "Step times",
            "How long each step took, at the moment at which it ended, with departures, "
            "returns and recoveries of devices.",
            plot(figures.step_times(data)),
        )
    if len(data.churn):
        yield Section(
            "churn",
            "Churn and recovery",
            "Who was away when. <em>Detected after</em>: from the departure to the failure detector's "
            "decision. <em>State in place after</em> and <em>back after</em>: from then to when each "
            "device had its state again, and to when training was back where it had been. <em>Cost</em>: all "
            "that the interrupted step took beyond the median step. <em>Taken in after</em>: from the "
            "detector's seeing the device again to its taking part.",
            tables.churn(data),
        )
    if len(data.intervals):
        yield Section(
            "timeline",
            "Timeline",
            "What each device did when: computing or waiting (upper strip), sending and "
            "receiving (lower strips), offline (shaded). Drag to zoom, double-click to go back.",
            _timeline(data),
        )
    if len(data.select("link")) or len(data.windows) or len(data.select("probe")):
        yield Section(
            "links",
            "Links",
            "The rate that was set for each link, and the traffic that passed its bottleneck: "
            "where the two meet, the link was the limit. Measured rates are without headers, so that they "
            "compare to set rates, which are TCP goodput.",
            _links(data),
        )
    if data.nodes:
        yield Section(
            "devices",
            "Devices and bytes",
            "Message bytes of each device; the table adds what crossed the wire, with "
            "headers, acknowledgements and repeats, and where each device's time went.",
            _devices(data),
        )
    if data.plan:
        yield Section(
            "plan", "Plan", "What the planner decided before the start, against what was measured.", tables.plan(data)
        )
    yield Section(
        "fidelity",
        "Fidelity",
        "Every check of the emulation itself: the measured number beside its threshold. "
        "One failed check makes a run INVALID.",
        _fidelity(data),
    )
    yield Section("settings", "Settings", "The experiment as given, with <code>--set</code> applied.", _settings(data))
    yield Section("environment", "Environment", "The machine and software that carried the run.", _environment(data))


def plot(figure: go.Figure) -> str:
    """A figure as a div that the page's one copy of plotly draws, as wide as the page."""
    config = {
        "displaylogo": False,
        "responsive": True,
        # "Share chart" would upload the figure's data: nothing of a report leaves the reader's computer
        "modeBarButtonsToRemove": ["sendChartToCloud", "lasso2d", "select2d"],
    }
    height = figure.layout.height
    inner = figure.to_html(full_html=False, include_plotlyjs=False, config=config, default_width="100%")
    return f'<div class="plot" style="height:{height}px">{inner}</div>'


def _summary(data: RunData) -> str:
    cards = "".join(
        f'<div class="card"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="remark">{escape(remark)}</div></div>'
        for name, value, remark in summary_rows(data.summary)
    )
    return f'<div class="cards">{cards}</div>'


def _timeline(data: RunData) -> str:
    whole = gantt(data)
    out = [plot(figures.timeline(whole)), _timeline_note(whole)]
    step = typical_step(data)
    if step is not None:
        close = gantt(data, float(step["start_s"]), float(step["end_s"]))
        out.append(
            f"<h3>One step close up</h3><p class='intro'>Step {step['step']:.0f}, which took "
            f"{text.seconds(float(step['step_time_s']))}, nearest to the median of the undisturbed steps.</p>"
        )
        out += [plot(figures.timeline(close, labelled=True)), _timeline_note(close)]
    return "".join(out)


def _timeline_note(chart: Gantt) -> str:
    notes = []
    if chart.left_out:
        notes.append(f"{chart.left_out} further devices are not drawn.")
    if chart.merged_s:
        notes.append(f"Intervals less than {text.seconds(chart.merged_s)} apart are drawn as one.")
    if notes:
        notes.append("<code>timeline.json</code> has everything: open it in ui.perfetto.dev.")
    return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _links(data: RunData) -> str:
    shown = series.shown_links(data)
    left_out = len(set(data.select("link")["node"].dropna()) - set(shown))
    note = (
        f'<p class="note">The {len(shown)} links that moved most bytes; {left_out} more are in the table.</p>'
        if left_out
        else ""
    )
    scale = data.time_scale
    clock = f'<p class="note">One emulated second is {scale:g} seconds of the trace.</p>' if scale != 1 else ""
    figure = plot(figures_links.links(data, shown)) if shown else ""
    settings = "<h3>Settings</h3>" + tables.links(data) if len(data.select("link")) else ""
    probes = "<h3>Measured before training</h3>" + tables.probes(data) if len(data.select("probe")) else ""
    other = "<h3>Cross traffic</h3>" + tables.cross_traffic(data) if len(data.select("cross_traffic")) else ""
    return figure + note + clock + settings + other + probes


def _devices(data: RunData) -> str:
    has_bytes = data.devices and data.bytes[["sent", "received"]].notna().any(axis=None)
    s = data.summary
    line = (
        f"<p>The server sent {text.size(s.server_egress_bytes)}, and received {text.size(s.server_ingress_bytes)}.</p>"
        if has_bytes
        else ""
    )
    return line + (plot(figures_links.device_bytes(data)) if has_bytes else "") + tables.devices(data)


def _fidelity(data: RunData) -> str:
    out = tables.fidelity(data) if data.verdict.checks else ""
    if len(data.select("host")):
        out += (
            "<h3>The machine during the run</h3><p class='intro'>How busy it was, and how late packets left "
            "the delay line and threads were woken, in real milliseconds.</p>" + plot(figures_links.machine(data))
        )
    return out or "<p>Nothing was checked.</p>"


def _settings(data: RunData) -> str:
    given = data.run.experiment_text()
    resolved = data.manifest.get("experiment")
    out = f"<pre>{escape(given)}</pre>" if given else "<p>The run folder has no experiment.yaml.</p>"
    if resolved:
        out += f"<details><summary>With all defaults</summary>{tables.facts(resolved)}</details>"
    return out


def _environment(data: RunData) -> str:
    known = {"name", "status", "experiment", "commands", "process", "error", "churn", "warnings", "link_source"}
    m: dict[str, Any] = {k: v for k, v in data.manifest.items() if k not in known}
    commands = data.manifest.get("commands")
    out = tables.facts(m) if m else "<p>The run folder has no manifest.</p>"
    if isinstance(commands, list) and commands:
        listed = "\n".join(str(c) for c in commands[:_MOST_COMMANDS])
        more = f"\n… {len(commands) - _MOST_COMMANDS} more in manifest.json" if len(commands) > _MOST_COMMANDS else ""
        title = f"{len(commands)} commands were applied"
        out += f"<details><summary>{title}</summary><pre>{escape(listed + more)}</pre></details>"
    elif isinstance(commands, (int, float)):
        out += f"<p>{commands} commands were applied.</p>"
    return out
