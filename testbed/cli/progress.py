"""What `testbed run` shows while it goes on: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from testbed import units


class RunView:
    """The state that is shown, built from the run's events."""

    def __init__(self, steps: int, devices: list[str]):
        self.steps, self.devices = steps, devices
        self.step = 0
        self.loss: float | None = None
        self.step_time_s: float | None = None
        self.up: dict[str, bool] = dict.fromkeys(devices, False)
        self.links: dict[str, dict] = {}
        self.rates: dict[str, dict[str, float]] = {}
        self.recent: deque[str] = deque(maxlen=5)

    def event(self, e: dict) -> str | None:
        """Take an event in; returns a line worth printing, or None."""
        kind, node = e["event"], e["node"]
        if kind == "step":
            self.step, self.loss = e["step"] + 1, e.get("loss")
            self.step_time_s = e["end"] - e["start"]
            loss = "" if self.loss is None else f"loss {self.loss:.4f}  "
            return (
                f"[{e['t']:7.1f} s] step {self.step}/{self.steps}  {loss}"
                f"{self.step_time_s:.2f} s  devices {sum(self.up.values())}/{len(self.devices)}"
            )
        if kind == "member" and node == "server":
            self.up[e["peer"]] = e["kind"] == "joined"
            if e["kind"] == "left":
                return self._note(f"[{e['t']:7.1f} s] {e['peer']} lost (noticed after {e.get('detection', 0):.1f} s)")
            return self._note(f"[{e['t']:7.1f} s] {e['peer']} joined") if self.step else None
        if kind == "churn":
            word = "leaves" if e["action"] == "leave" else "returns"
            return self._note(f"[{e['t']:7.1f} s] {node} {word} ({e['mode']})")
        if kind == "recovery":
            return self._note(
                f"[{e['t']:7.1f} s] recovered from {e.get('peer')}: {e['kind']}, "
                f"{e['end'] - e['start']:.1f} s after detection"
            )
        if kind == "plan":
            return self._note(f"[{e['t']:7.1f} s] new plan: {e.get('note') or ', '.join(e.get('devices', []))}")
        if kind == "link":
            self.links[node] = e
        elif kind == "throughput" and e.get("seconds"):
            self.rates.setdefault(node, {})[e["direction"]] = 8 * e["bytes"] / e["seconds"]
        elif kind == "warning":
            return self._note(f"warning: {e['text']}")
        return None

    def _note(self, line: str) -> str:
        self.recent.append(line)
        return line

    def table(self) -> Table:
        """The devices, their links as set, and what crosses them now."""
        table = Table(box=None, padding=(0, 1))
        for title, justify in (
            ("device", "left"),
            ("", "left"),
            ("down set", "right"),
            ("now", "right"),
            ("up set", "right"),
            ("now", "right"),
            ("RTT", "right"),
        ):
            table.add_column(title, justify=justify, style=None if justify == "left" else "cyan")
        shown = self.devices if len(self.devices) <= 16 else self.devices[:15]
        for name in shown:
            link, rate = self.links.get(name, {}), self.rates.get(name, {})
            table.add_row(
                name,
                Text("up", "green") if self.up[name] else Text("away", "red"),
                units.rate(link["down_bps"]) if link else "",
                units.rate(rate.get("down", 0)),
                units.rate(link["up_bps"]) if link else "",
                units.rate(rate.get("up", 0)),
                units.duration(link["rtt_s"]) if link else "",
            )
        if len(shown) < len(self.devices):
            table.add_row(f"… {len(self.devices) - len(shown)} more")
        return table


class PlainProgress:
    """Lines on standard output: for logs, pipes and continuous integration."""

    def __init__(self, view: RunView, echo):
        self.view, self.echo = view, echo
        self._lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def stage(self, text: str) -> None:
        self.echo(text)

    def event(self, event: dict) -> None:
        with self._lock:
            line = self.view.event(event)
            if line is None:
                return
            self.echo(line)


class LiveProgress:
    """A panel that is redrawn in place."""

    def __init__(self, view: RunView, console: Console):
        self.view, self.console = view, console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("training", total=view.steps, numbers="")
        self._stage = ""
        self._lock = threading.Lock()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def _render(self) -> Group:
        with self._lock:
            view = self.view
            loss = "" if view.loss is None else f"loss {view.loss:.4f}  "
            numbers = "" if view.step_time_s is None else f"{loss}{view.step_time_s:.2f} s/step"
            self._bar.update(self._task, completed=view.step, numbers=numbers)
            lines = [Text(line, "dim") for line in view.recent]
            if not view.links:
                return Group(Text(self._stage, "dim"))
            return Group(self._bar, view.table(), *lines)

    def __enter__(self):
        self._live.__enter__()
        return self

    def __exit__(self, *exc):
        self._live.__exit__(*exc)

    def stage(self, text: str) -> None:
        self._stage = text
        self.console.print(text, style="dim")

    def event(self, event: dict) -> None:
        with self._lock:
            self.view.event(event)
