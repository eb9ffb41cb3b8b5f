"""A run as an engine is told of it, where the engine tells what happens, and how a run ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from testbed.cluster import Cluster
from testbed.runtime import Plan, Runner
from testbed.scenario.captures import CaptureSettings
from testbed.scenario.network import NetworkSetup


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that a run follows from. Times are emulated seconds.

    churn: (time, device, 'leave' | 'return'), in order; churn_mode: how one leaves: kill, suspend or disconnect.
    time_limit_s: after which the run is ended. probe_s: length of a rate measurement before training, None for none.
    captures: packets to capture, in an emulation.
    tensors: 'meta' or 'real', and details: how many messages and computations get events, for a simulation.
    """

    network: NetworkSetup
    cluster: Cluster
    runner: Runner
    plan: Plan
    churn: list[tuple[float, str, str]] = field(default_factory=list)
    churn_mode: str = "kill"
    absent_at_start: frozenset[str] = frozenset()
    time_limit_s: float = float("inf")
    probe_s: float | None = None
    captures: CaptureSettings | None = None
    tensors: str = "meta"
    details: int | None = None
    warnings: list[str] = field(default_factory=list)


class Progress(Protocol):
    """Where a run shows how it is getting on; a context manager."""

    def __enter__(self) -> Progress: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def stage(self, text: str) -> None: ...
    def event(self, event: dict[str, Any]) -> None: ...


class Silent:
    """Progress that nobody watches."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def stage(self, text: str) -> None:
        """Nothing."""

    def event(self, event: dict[str, Any]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Sink:
    """What an engine gives away while it runs.

    record: keeps an event. progress: shows events and stages. note: entries of the manifest. folder: the run's own,
    with `logs` in it.
    """

    record: Callable[[dict[str, Any]], None]
    progress: Progress
    note: Callable[..., None]
    folder: Path

    def event(self, event: dict[str, Any]) -> None:
        """Keep and show it."""
        self.record(event)
        self.progress.event(event)

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


@dataclass(frozen=True)
class RunResult:
    """How a run ended. status: complete, interrupted (a signal, the time limit) or failed. by_signal: which one."""

    status: str
    error: str | None = None
    by_signal: str | None = None


class Engine(Protocol):
    """Runs a scenario. Raises Interrupted when a signal came, TestbedError when the run failed."""

    def run(self, setup: Scenario, sink: Sink) -> RunResult: ...
