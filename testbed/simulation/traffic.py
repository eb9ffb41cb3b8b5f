"""What crossed each node's link, sampled as the emulation's queue counters are."""

from __future__ import annotations

from typing import Any

from testbed.cluster.tcp import MSS
from testbed.simulation.node import Engine
from testbed.simulation.tcp import FRAME_BYTES

INTERVAL_S = 1.0  # between samples, at first
MAX_EVENTS = 20_000  # about this many `throughput` events, then the interval doubles again and again


class Traffic:
    """Records `throughput` events: bytes as Ethernet frames with their headers."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._links = [
            (name, direction, getattr(port, direction))
            for name, port in engine.network.ports.items()
            for direction in ("up", "down")
        ]
        self._last = [0.0] * len(self._links)
        self._at_s = 0.0
        self._interval_s = INTERVAL_S
        self._budget = MAX_EVENTS

    def begin(self) -> None:
        self._engine.loop.at(self._interval_s, self._tick)

    def _tick(self, _: Any) -> None:
        self.sample()
        self._engine.check_alive()
        self._engine.loop.at(self._engine.loop.now + self._interval_s, self._tick)

    def sample(self) -> None:
        """What has passed since the last sample."""
        now = self._engine.loop.now
        seconds = now - self._at_s
        if seconds <= 0.05:
            return
        self._engine.network.fluid.count([link for _, _, link in self._links])
        for i, (name, direction, link) in enumerate(self._links):
            passed = link.carried - self._last[i]
            if passed <= 0 and self._budget < MAX_EVENTS / 2:
                continue
            self._last[i] = link.carried
            self._budget -= 1
            self._engine.record(
                "throughput",
                name,
                direction=direction,
                bytes=round(passed * FRAME_BYTES / MSS),
                seconds=seconds,
                drops=0,
                backlog=0,
            )
        self._at_s = now
        if self._budget <= 0:
            self._interval_s *= 2
            self._budget = MAX_EVENTS // 2
