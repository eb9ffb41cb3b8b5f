"""All that a report says about one run, read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.errors import InputError
from testbed.measurement.events import natural, select
from testbed.measurement.fidelity import Verdict, setting
from testbed.measurement.rates import rate_windows
from testbed.measurement.run_folder import RunFolder
from testbed.measurement.steps import attempts
from testbed.report.churn import churn_table
from testbed.report.flows import FlowReport, files, of_run
from testbed.report.intervals import device_intervals, shares
from testbed.report.run_summary import RunSummary, message_bytes, summarize, wire_bytes


@dataclass(frozen=True)
class RunData:
    """A run as the figures and tables need it; times in emulated seconds.

    nodes: the server first, then devices in natural order. bytes: index node, columns sent, received
    (messages), wire_up, wire_down (with headers). shares: index node, seconds in each state.
    """

    run: RunFolder
    events: pd.DataFrame
    plan: dict[str, Any]
    verdict: Verdict
    summary: RunSummary
    steps: pd.DataFrame
    churn: pd.DataFrame
    intervals: pd.DataFrame
    shares: pd.DataFrame
    windows: pd.DataFrame
    bytes: pd.DataFrame
    nodes: list[str]
    end_s: float
    _kinds: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    @property
    def manifest(self) -> dict[str, Any]:
        return self.run.manifest

    @property
    def time_scale(self) -> float:
        scale = setting(self.manifest, "time_scale", 1.0)
        return float(scale) if isinstance(scale, (int, float)) else 1.0

    def select(self, kind: str) -> pd.DataFrame:
        """The events of one kind, as from events.select(); not to be changed."""
        if kind not in self._kinds:
            self._kinds[kind] = select(self.events, kind)
        return self._kinds[kind]

    @cached_property
    def flows(self) -> FlowReport | None:
        """Of the run's captures; None without any that can be read."""
        try:
            return of_run(self.run) if files(self.run) else None
        except InputError:
            return None

    @property
    def devices(self) -> list[str]:
        return [n for n in self.nodes if n != "server"]


def load(run_dir: str | Path | RunFolder) -> RunData:
    """Read a run folder, complete or not.

    Raises:
        InputError: it is no run folder.
    """
    run = run_dir if isinstance(run_dir, RunFolder) else RunFolder.open(run_dir)
    events, plan = run.events(), run.plan()
    end_s = float(max(events["t"].max(), 0.0)) if len(events) else 0.0
    names = {n for n in events["node"].dropna().unique() if n != "testbed"}
    names |= {d.get("name") for d in (plan.get("cluster") or {}).get("devices", [])} - {None}
    nodes = sorted(names, key=lambda n: (n != "server", natural(n)))
    (sent, received), (wire_up, wire_down) = message_bytes(events), wire_bytes(events)
    counted = pd.DataFrame(
        {"sent": sent, "received": received, "wire_up": wire_up, "wire_down": wire_down}, dtype=float
    )
    return RunData(
        run=run,
        events=events,
        plan=plan,
        verdict=run.verdict(),
        summary=summarize(run, events),
        steps=attempts(events),
        churn=churn_table(events),
        intervals=device_intervals(events, end_s),
        shares=shares(events, end_s),
        windows=rate_windows(events),
        bytes=counted.reindex(nodes),
        nodes=nodes,
        end_s=end_s,
    )
