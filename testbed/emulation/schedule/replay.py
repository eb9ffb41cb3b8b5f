"""Replay of link traces: each change applied in place at its time, and how late it was."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from testbed.cluster import Link, LinkState
from testbed.scenario.link_model import PathDelay, access_links
from testbed.scenario.network import NetworkSetup
from testbed.threads import StoppableThread

OnStep = Callable[[float, str, LinkState, float], None]


class Network(Protocol):
    """What replay needs of testbed.emulation.network.emulated.EmulatedNetwork."""

    def set_links(self, changes: Mapping[str, Link]) -> None: ...


class Delays(Protocol):
    """What replay needs of a delay backend."""

    def set(self, changes: Mapping[str, PathDelay]) -> None: ...


@dataclass(frozen=True)
class ReplayBatch:
    """Changes that are due together.

    t_s: emulated seconds; due_s: real seconds after the experiment's start.
    """

    t_s: float
    due_s: float
    states: dict[str, LinkState]
    links: dict[str, Link]
    delays: dict[str, PathDelay]


@dataclass(frozen=True)
class ReplayPlan:
    """All changes after the start, in order. Pure data."""

    batches: tuple[ReplayBatch, ...] = ()

    @classmethod
    def of(cls, setup: NetworkSetup) -> ReplayPlan:
        """The replay of a network's links. What is due at 0 or before is taken as set already; a repeated setting is
        no change.

        Raises:
            ValueError: times that go back.
        """
        topology, tdf = setup.topology, setup.settings.tdf
        due: dict[float, dict[str, LinkState]] = defaultdict(dict)
        for home, series in setup.link_changes.items():
            before: LinkState | None = None
            last_t = float("-inf")
            for t_s, state in series:
                if t_s < last_t:
                    raise ValueError(f"{home}: {t_s} s comes after {last_t} s")
                last_t = t_s
                if t_s > 0 and state != before:
                    due[t_s][home] = state
                before = state
        batches = []
        for t_s in sorted(due):
            access = access_links(due[t_s], topology.server_link, topology.shared_links, tdf)
            batches.append(
                ReplayBatch(
                    t_s,
                    t_s * tdf,
                    due[t_s],
                    {home: a.link for home, a in access.items()},
                    {home: a.delay for home, a in access.items()},
                )
            )
        return cls(tuple(batches))


class Replayer:
    """Applies a plan from a thread of its own.

    Args:
        on_step: called in that thread once a change is in force, as (emulated time, home, settings, real
            seconds late).
        on_error: called in that thread with what went wrong, after which the replay goes on with the next
            change. Without it the replay ends at the first error, which `error` keeps.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        network: Network,
        backend: Delays,
        *,
        on_step: OnStep | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ):
        self.plan = plan
        self.lateness_s: list[float] = []  # of each applied batch, real seconds
        self.error: Exception | None = None
        self._network, self._backend = network, backend
        self._on_step, self._on_error = on_step, on_error
        self._thread = StoppableThread(self._run, "link replay")
        self._t0 = 0.0
        self._next_due: float | None = None  # on CLOCK_MONOTONIC

    def start(self, t0_monotonic: float) -> None:
        """Begin; emulated time 0 is at that moment of CLOCK_MONOTONIC."""
        if self.plan.batches:
            self._next_due = t0_monotonic + self.plan.batches[0].due_s
        self._t0 = t0_monotonic
        self._thread.start()

    @property
    def overdue_s(self) -> float:
        """For how long the next change has been due without being in force [real s]; 0 when none is."""
        due = self._next_due
        return 0.0 if due is None else max(0.0, time.monotonic() - due)

    @property
    def done(self) -> bool:
        """Whether every change has been applied (or the replay was stopped)."""
        return self._thread.done

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until every change has been applied; whether it has."""
        return self._thread.join(timeout_s)

    def stop(self) -> None:
        """End; no change is applied after this returns. Idempotent."""
        self._thread.stop()

    def _run(self) -> None:
        try:
            self._apply_all(self._t0)
        finally:
            self._next_due = None

    def _apply_all(self, t0: float) -> None:
        for batch in self.plan.batches:
            self._next_due = t0 + batch.due_s
            if self._thread.wait(max(0.0, t0 + batch.due_s - time.monotonic())):
                return
            try:
                self._network.set_links(batch.links)
                self._backend.set(batch.delays)
            except Exception as error:
                self.error = self.error or error
                if not self._on_error:
                    raise
                self._on_error(error)
                continue
            late_s = time.monotonic() - t0 - batch.due_s
            self.lateness_s.append(late_s)
            if self._on_step:
                for home, state in batch.states.items():
                    self._on_step(batch.t_s, home, state, late_s)
