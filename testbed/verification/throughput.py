"""Measures what saturated links carry: rate, buffer, packet spacing, TCP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from testbed.cluster import LinkState
from testbed.emulation.probing.probes import probe_links
from testbed.emulation.shaped import ShapedNetwork
from testbed.measurement.thresholds import Thresholds
from testbed.scenario.link_model import GOODPUT_BYTES
from testbed.verification.effort import Effort, Say
from testbed.verification.rows import Row, flat, judged, retry_each, unjudged
from testbed.verification.settings import Promise
from testbed.verification.statistics import Spread, gap_deviations, window_deviations
from testbed.verification.trains import Saturation, frame_gap_s, saturate_path, timer_floor_s

WINDOW_S, WINDOW_FRAMES = 0.01, 20  # the longer of the two: short-term rates
PACKETS_MIN = 60  # of a rate measurement: one packet more or less is no error then
HOLES_MAX = 1e-3  # a loss that leaves the 99th percentile of gaps as it is
_WAIT_SIGMAS = 3  # packets in a row wait for the slowest, as a line keeps its order


class Throughput:
    """`rows` measures homes one after another, each direction by itself.

    Args:
        promised: by home and direction.
        idle_s: one-way delays as measured on the idle links, by (home, direction); where one is missing, as set.
    """

    def __init__(
        self,
        shaped: ShapedNetwork,
        promised: Mapping[str, Mapping[str, Promise]],
        idle_s: Mapping[tuple[str, str], float],
        limits: Thresholds,
        effort: Effort,
        say: Say,
    ):
        self.shaped, self.promised, self._idle_s = shaped, promised, idle_s
        self.limits, self.effort, self.say = limits, effort, say
        self.homes, self.tdf = list(promised), shaped.tdf
        self._floors: dict[float, tuple[list[np.ndarray], list[np.ndarray]]] = {}

    def rows(self) -> list[Row]:
        return [*self.saturated(), *self.tcp()]

    def saturated(self) -> list[Row]:
        """UDP rate, buffer and packet spacing."""

        def measure(ways: list[tuple[str, str]], _: int) -> dict[tuple[str, str], list[Row]]:
            out = {}
            for home, direction in ways:
                self.say(f"saturated: {home} {direction}")
                out[home, direction] = self._saturated(home, direction)
            return out

        ways = [(home, direction) for home in self.homes for direction in ("down", "up")]
        return flat(retry_each(ways, measure, self.effort.attempts))

    def _saturated(self, home: str, direction: str) -> list[Row]:
        p = self.promised[home][direction]
        gap_s = frame_gap_s(p.wire_bps)
        seconds = max(self.effort.seconds, PACKETS_MIN * gap_s)
        got = saturate_path(p.path, p.rate_bps, p.buffer_s, p.delay_s + 4 * p.sigma_s, seconds)
        loaded_s = float(np.median(got.delays_s)) if len(got.delays_s) else math.nan
        queued_s = loaded_s - self._idle_s.get((home, direction), p.delay_s)
        return [
            self._rate_row(home, direction, got, p),
            self._buffer_row(home, direction, queued_s, gap_s, p),
            *self._spacing(home, direction, got.arrived_s, p, gap_s),
        ]

    def _rate_row(self, home: str, direction: str, got: Saturation, p: Promise) -> Row:
        # Behind the bottleneck losses make holes; before it they don't, as its queue stays full all the same.
        holes = direction == "up" or self.shaped.backend.declares.loss_after_bottleneck
        rate_bps = got.goodput_bps / (1 - p.loss if holes else 1)
        if got.sent_bps < p.rate_bps:
            note = f"this machine sent only {got.sent_bps * self.tdf / 1e6:.0f} Mbit/s"
            return unjudged(home, direction, "UDP rate", note, p.rate_bps * self.tdf, rate_bps * self.tdf, "bit/s")
        return judged(
            home,
            direction,
            "UDP rate",
            p.rate_bps * self.tdf,
            rate_bps * self.tdf,
            "bit/s",
            rate_bps / p.rate_bps - 1,
            "%",
            self.limits.rate_error_worst,
            f"{len(got.arrived_s)} packets",
        )

    def _buffer_row(self, home: str, direction: str, queued_s: float, gap_s: float, p: Promise) -> Row:
        tdf, limits = self.tdf, self.limits
        set_s, measured_s = p.buffer_s / tdf, queued_s / tdf
        if p.queue != "fifo":
            note = f"{p.queue} decides by delay, not by size"
            return unjudged(home, direction, "buffer", note, set_s, measured_s, "s")
        limit_s = limits.buffer_error_s + limits.buffer_error_fraction * set_s
        limit_s += (gap_s + _WAIT_SIGMAS * p.sigma_s) / tdf
        return judged(
            home,
            direction,
            "buffer",
            set_s,
            measured_s,
            "s",
            measured_s - set_s,
            "s",
            limit_s,
            "delay under load, beyond idle",
        )

    def _spacing(self, home: str, direction: str, arrived_s: np.ndarray, p: Promise, gap_s: float) -> list[Row]:
        if p.loss > HOLES_MAX or p.sigma_s:
            return [unjudged(home, direction, "packet gap", "packets are lost or jittered by setting")]
        window_s = max(WINDOW_S, WINDOW_FRAMES * gap_s)
        wide = Spread.of(window_deviations(arrived_s, gap_s, window_s))
        note = f"over {1e3 * window_s:.0f} ms; p50 {100 * wide.p50:.2g} %, p90 {100 * wide.p90:.2g} %"
        return [
            self._gap_row(home, direction, Spread.of(gap_deviations(arrived_s, gap_s)), gap_s),
            judged(
                home,
                direction,
                "rate, short-term p99",
                0.0,
                wide.p99,
                "%",
                wide.p99,
                "%",
                self.limits.window_deviation_p99,
                note,
                p50=wide.p50,
                p90=wide.p90,
                p99=wide.p99,
                window_s=window_s,
            ),
        ]

    def _gap_row(self, home: str, direction: str, found: Spread, gap_s: float) -> Row:
        # A packet waits for its bottleneck's timer and is then handled; an uplink's waits for its delay's, too.
        limit, waits = self.limits.gap_deviation_p99, 3 if direction == "up" else 2
        timers, clock = self._floors_of(gap_s)
        if found.p99 > limit >= waits * timers.p99:
            timers, clock = self._floors_of(gap_s, again=True)
        set_s, measured_s = gap_s / self.tdf, (1 + found.p99) * gap_s / self.tdf
        more = {
            "p50": found.p50,
            "p90": found.p90,
            "p99": found.p99,
            "timer_p50": timers.p50,
            "timer_p90": timers.p90,
            "timer_p99": timers.p99,
            "clock_p99": clock.p99,
        }
        text = (
            f"p50 {100 * found.p50:.3g} %, p90 {100 * found.p90:.3g} %; p99 of timers alone "
            f"{100 * timers.p99:.3g} %, of a loop that only reads the clock {100 * clock.p99:.3g} %"
        )
        if found.p99 > limit and waits * timers.p99 > limit:
            note = f"{100 * found.p99:.3g} % off, {text}: too close to the machine's timers for {100 * limit:.2g} %"
            return unjudged(home, direction, "packet gap p99", note, set_s, measured_s, "s", **more)
        return judged(home, direction, "packet gap p99", set_s, measured_s, "s", found.p99, "%", limit, text, **more)

    def _floors_of(self, gap_s: float, again: bool = False) -> tuple[Spread, Spread]:
        """Gap deviations of a timer that this machine fires every `gap_s`, and of a loop that looks for that time, with
        nothing else to do. again: add to what was measured, where much depends on it."""
        key = round(max(gap_s, 50e-6), 5)
        floors = self._floors.setdefault(key, ([], []))
        if again or not floors[0]:
            count = min(2000, max(200, int((1.0 if again else 0.4) / key)))
            for found, spin in zip(floors, (False, True), strict=True):
                found.append(np.abs(np.diff(timer_floor_s(key, count, spin))) / key)
        timers, clock = (Spread.of(np.concatenate(found)) for found in floors)
        return timers, clock

    def tcp(self) -> list[Row]:
        """One TCP flow each way, in its steady state."""
        slow = {h for h in self.homes if not all(_tcp_fills(p) for p in self.promised[h].values())}
        rows = [
            unjudged(h, d, "TCP rate", "with the losses set, TCP is slower than its link")
            for h in slow
            for d in ("down", "up")
        ]
        # Without their rare losses, since the probes send datagrams where packets are lost.
        states = {h: replace(self.shaped.current(h), loss=0.0) for h in self.homes if h not in slow}
        if not states:
            return rows
        self.say(f"TCP rates: {len(states)} homes")
        found = retry_each(states, lambda homes, _: self._tcp({h: states[h] for h in homes}), self.effort.attempts)
        return rows + flat(found)

    def _tcp(self, states: dict[str, LinkState]) -> dict[str, list[Row]]:
        link, rows = self.shaped.topology.server_link, {home: [] for home in states}
        server = LinkState(link.downlink_bps, link.uplink_bps, link.uplink_delay_s + link.downlink_delay_s)
        for r in probe_links(
            self.shaped.network, states, seconds=self.effort.seconds, tdf=self.tdf, server=server, tcp_tdf=math.inf
        ):
            if r.quantity != "rtt":
                direction = r.quantity.removeprefix("rate_")
                set_bps = self.promised[r.home][direction].rate_bps * self.tdf
                if math.isnan(r.measured):
                    rows[r.home].append(unjudged(r.home, direction, "TCP rate", r.text, set_bps, math.nan, "bit/s"))
                    continue
                rows[r.home].append(
                    judged(
                        r.home,
                        direction,
                        "TCP rate",
                        set_bps,
                        r.measured,
                        "bit/s",
                        r.measured / set_bps - 1,
                        "%",
                        self.limits.rate_error_worst,
                        "one flow, steady",
                    )
                )
        return rows


def _tcp_fills(p: Promise) -> bool:
    """Whether losses leave TCP a window that fills link and buffer, twice over for safety.

    M. Mathis et al.: The macroscopic behavior of the TCP congestion avoidance algorithm, CCR 27, 1997: the window
    is 1.22 / sqrt(loss) packets.
    """
    if not p.loss:
        return True
    packets = p.rate_bps * (2 * p.delay_s + p.buffer_s) / (8 * GOODPUT_BYTES)
    return 1.22 / math.sqrt(p.loss) > 2 * packets
