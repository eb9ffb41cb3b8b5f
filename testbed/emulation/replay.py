"""Replay: the links' settings change in place as their traces say, and how late each change was is recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from testbed.cluster import Link, LinkState, SharedLink
from testbed.emulation.delay.base import PathDelay
from testbed.emulation.link_model import access_links


@dataclass(frozen=True)
class Batch:
    """Changes that are due at the same moment: at_s real seconds after the start, t_s emulated ones."""

    at_s: float
    t_s: float
    states: Mapping[str, LinkState]
    links: Mapping[str, Link]
    delays: Mapping[str, PathDelay]


@dataclass(frozen=True)
class ReplayPlan:
    """All changes after the start, in order. Pure data: what will be applied can be read without a network."""

    batches: tuple[Batch, ...]
    short_by_s: float = 0.0  # worst case of AccessLink.short_by_s

    @classmethod
    def build(
        cls,
        changes: Mapping[str, Sequence[tuple[float, LinkState]]],
        server: Link,
        shared: Iterable[SharedLink] = (),
        *,
        tdf: float = 1.0,
    ) -> ReplayPlan:
        """Merge the homes' series into batches.

        Args:
            changes: per home (emulated s, state), ascending; those at or before 0 are the network's initial state
                and are left out here.
            server: the server's access link, not dilated. tdf: time dilation factor.
        """
        shared = tuple(shared)
        due: dict[float, dict[str, LinkState]] = {}
        for home, series in changes.items():
            for t, state in series:
                if t > 0:
                    due.setdefault(t, {})[home] = state
        batches, short = [], 0.0
        for t in sorted(due):
            access = access_links(due[t], server, shared, tdf)
            short = max([short, *(a.short_by_s for a in access.values())])
            batches.append(Batch(t * tdf, t, due[t], {h: a.link for h, a in access.items()},
                                 {h: a.delay for h, a in access.items()}))
        return cls(tuple(batches), short)


class _Network(Protocol):
    def set_links(self, changes: Mapping[str, Link]) -> None: ...


class _Backend(Protocol):
    def set(self, changes: Mapping[str, PathDelay]) -> None: ...


class Replayer:
    """A thread that applies a plan's batches when they are due.

    Args:
        on_step: called after each home's change as (emulated time due, home, state, real seconds late), in the thread.
    """

    def __init__(self, plan: ReplayPlan, network: _Network, backend: _Backend, *,
                 on_step: Callable[[float, str, LinkState, float], None] = lambda *step: None):
        self._plan, self._network, self._backend, self._on_step = plan, network, backend, on_step
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)
        self._t0 = 0.0
        self.error: BaseException | None = None  # what ended the replay early

    def start(self, t0_monotonic: float) -> None:
        """Emulated time 0 is at that moment of CLOCK_MONOTONIC."""
        self._t0 = t0_monotonic
        self._thread.start()

    def stop(self) -> None:
        """No change is applied after this returns. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for batch in self._plan.batches:
                if self._stop.wait(max(0.0, self._t0 + batch.at_s - time.monotonic())):
                    return
                self._network.set_links(batch.links)
                self._backend.set(batch.delays)
                late_s = max(0.0, time.monotonic() - self._t0 - batch.at_s)
                for home, state in batch.states.items():
                    self._on_step(batch.t_s, home, state, late_s)
        except BaseException as error:
            self.error = error
            raise
