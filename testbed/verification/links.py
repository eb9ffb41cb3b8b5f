"""Measures the links of a started network, one quantity after another, against what was set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.emulation.shaped import ShapedNetwork
from testbed.measurement.light_traffic import echo_rtts
from testbed.measurement.probes import probe_links
from testbed.measurement.thresholds import Thresholds
from testbed.verification.rows import Row, judged, retry_each, unjudged
from testbed.verification.settings import Promise, promises
from testbed.verification.statistics import (
    Spread,
    binomial_interval,
    deviation_error,
    gap_deviations,
    window_deviations,
)
from testbed.verification.trains import Received, frame_gap_s, saturate_path, send_trains, timer_floor_s

TOGETHER = 8  # homes whose small packets are sent at the same time
WINDOW_S, WINDOW_FRAMES = 0.01, 20  # the longer of the two: short-term rates
_JITTER_SPACING = 6  # x sigma between packets, or they would wait for one another, as a line keeps its order
_Z99 = 2.326  # standard deviations from the mean to the 99th percentile of a Gaussian
PACKETS_MIN = 60  # of a rate measurement: one packet more or less is no error then


@dataclass(frozen=True)
class Effort:
    """How long to measure. echoes, packets: a home (and direction). seconds: of each saturated link, real.

    attempts: how often what fails is measured at most.
    """

    echoes: int = 150
    echo_interval_s: float = 0.02
    packets: int = 1500
    packet_interval_s: float = 0.005
    seconds: float = 1.0
    attempts: int = 3


QUICK = Effort(echoes=60, packets=500, seconds=0.5)
Say = Callable[[str], None]


class LinkVerification:
    """Measurements of a network whose links stay as they are; `rows` runs them all.

    Args:
        homes: which ones to measure.
        say: told what goes on.
    """

    def __init__(
        self, shaped: ShapedNetwork, homes: Sequence[str], limits: Thresholds, effort: Effort, say: Say = lambda _: None
    ):
        self.shaped, self.homes, self.limits, self.effort, self.say = shaped, list(homes), limits, effort, say
        self.tdf = shaped.tdf
        self.promised = {home: promises(shaped, home) for home in self.homes}
        self._idle_s: dict[tuple[str, str], float] = {}  # measured one-way delays, real
        self._floors: dict[float, Spread] = {}

    def rows(self) -> list[Row]:
        """All rows, by measurement."""
        return [*self.round_trips(), *self.one_way(), *self.saturated(), *self.tcp()]

    # Delay, jitter, loss

    def _groups(self) -> Iterator[list[str]]:
        """Homes of like jitter together, since it says how far apart their packets have to be."""
        ordered = sorted(self.homes, key=lambda h: self._sigma(h))
        for start in range(0, len(ordered), TOGETHER):
            yield ordered[start : start + TOGETHER]

    def _sigma(self, home: str) -> float:
        return math.hypot(*(p.sigma_s for p in self.promised[home].values()))

    def round_trips(self) -> list[Row]:
        rows = []
        for group in self._groups():
            self.say(f"round trips: {', '.join(group)}")
            rows += _flat(retry_each(group, lambda homes, _: self._round_trips(homes), self.effort.attempts))
        return rows

    def _round_trips(self, group: list[str]) -> dict[str, list[Row]]:
        hosts, effort = self.shaped.network.hosts, self.effort
        sigma = max(self._sigma(h) for h in group)
        longest = max(sum(p.delay_s for p in self.promised[h].values()) for h in group)
        rtts = echo_rtts(
            [(h, hosts[h].netns_path, hosts[SERVER].ip) for h in group],
            count=effort.echoes,
            interval_s=max(effort.echo_interval_s, _JITTER_SPACING * sigma),
            wait_s=longest + 8 * sigma + 0.05,
        )
        out = {}
        for home in group:
            ways = self.promised[home].values()
            set_s, sigma_s = sum(p.delay_s for p in ways), self._sigma(home)
            out[home] = self._delay_rows(home, "both", "RTT", np.array(rtts[home]), set_s, sigma_s)
        return out

    def _delay_rows(
        self, home: str, direction: str, name: str, delays_s: np.ndarray, set_s: float, sigma_s: float
    ) -> list[Row]:
        """p50 against rtt_error, p99 against rtt_p99_over; with jitter both scatter, by what is allowed on top."""
        limits, tdf, n = self.limits, self.tdf, max(1, len(delays_s))
        spread = Spread.of(delays_s)
        p50, p99, set_e, sigma_e = spread.p50 / tdf, spread.p99 / tdf, set_s / tdf, sigma_s / tdf
        scatter = 3 * 1.2533 * sigma_e / math.sqrt(n)  # of a Gaussian's sample median
        note = f"{len(delays_s)} packets"
        if not len(delays_s):
            p50 = p99 = math.inf
            note = "no packet came through"
        return [
            judged(
                home,
                direction,
                f"{name} p50",
                set_e,
                p50,
                "s",
                p50 - set_e,
                "s",
                limits.rtt_error_s + limits.rtt_error_fraction * set_e + scatter,
                note,
            ),
            judged(
                home,
                direction,
                f"{name} p99",
                set_e,
                p99,
                "s",
                max(0.0, p99 - set_e),
                "s",
                limits.rtt_p99_over_s + (_Z99 + 9 / math.sqrt(n)) * sigma_e,
                note,
            ),
        ]

    def one_way(self) -> list[Row]:
        rows = []
        for group in self._groups():
            self.say(f"one-way delay, jitter, loss: {', '.join(group)}")
            rows += _flat(
                retry_each(
                    [(home, direction) for home in group for direction in ("down", "up")],
                    # One interval of 95 % in twenty misses: more packets tell a wrong loss from bad luck.
                    lambda ways, attempt: self._one_way(ways, self.effort.packets * attempt),
                    self.effort.attempts,
                )
            )
        return rows

    def _one_way(self, ways: list[tuple[str, str]], packets: int) -> dict[tuple[str, str], list[Row]]:
        promised = {key: self.promised[key[0]][key[1]] for key in ways}
        sigma = max(p.sigma_s for p in promised.values())
        least = min(p.wire_bps for p in promised.values())
        interval = max(self.effort.packet_interval_s, _JITTER_SPACING * sigma, 10 * 8 * 110 / least)
        packets = max(200, min(packets, int(20 / interval)))  # 20 s at most, jitter as it may
        trains = send_trains(
            {f"{home} {direction}": p.path for (home, direction), p in promised.items()},
            count=packets,
            interval_s=interval,
            wait_s=max(p.delay_s + 8 * p.sigma_s for p in promised.values()) + 0.1,
        )
        return {key: self._one_way_rows(*key, trains[f"{key[0]} {key[1]}"], p) for key, p in promised.items()}

    def _one_way_rows(self, home: str, direction: str, got: Received, p: Promise) -> list[Row]:
        delays = got.delays_s()
        self._idle_s[home, direction] = float(np.median(delays)) if len(delays) else math.inf
        sent = len(got.sent_s)
        low, high = binomial_interval(got.lost, sent)
        inside = low <= p.loss <= high
        loss = Row(
            home,
            direction,
            "loss",
            p.loss,
            got.lost / sent,
            "",
            abs(got.lost / sent - p.loss),
            "",
            None,
            inside,
            f"{got.lost} of {sent}: 95 % interval {100 * low:.2f} to {100 * high:.2f} %",
            more={"low": low, "high": high},
        )
        return [
            *self._delay_rows(home, direction, "delay", delays, p.delay_s, p.sigma_s),
            self._jitter_row(home, direction, delays, p),
            loss,
        ]

    def _jitter_row(self, home: str, direction: str, delays: np.ndarray, p: Promise) -> Row:
        """The standard deviation of one-way delays, within the central 98 % scaled up: one late packet is no jitter."""
        tdf = self.tdf
        if len(delays) < 50:
            return unjudged(home, direction, "jitter", "too few packets came through")
        low, high = np.percentile(delays, (15.87, 84.13))  # one standard deviation each side, for a Gaussian
        sigma = float(high - low) / 2
        spread = {f"p{q}": float(np.percentile(delays, q)) / tdf for q in (1, 10, 50, 90, 99)}
        if p.sigma_s and p.delay_s < 3 * p.sigma_s:
            return unjudged(
                home, direction, "jitter", "cut at zero delay, no Gaussian", p.sigma_s / tdf, sigma / tdf, "s", **spread
            )
        limit = (
            self.limits.jitter_error_s
            + (self.limits.jitter_error_fraction * p.sigma_s + 3 * 1.6 * deviation_error(p.sigma_s, len(delays))) / tdf
        )
        return judged(
            home,
            direction,
            "jitter",
            p.sigma_s / tdf,
            sigma / tdf,
            "s",
            (sigma - p.sigma_s) / tdf,
            "s",
            limit,
            "standard deviation, one-way",
            **spread,
        )

    # Rate, buffer, spacing

    def saturated(self) -> list[Row]:
        def measure(ways: list[tuple[str, str]], _: int) -> dict[tuple[str, str], list[Row]]:
            out = {}
            for home, direction in ways:
                self.say(f"saturated: {home} {direction}")
                out[home, direction] = self._saturated(home, direction)
            return out

        ways = [(home, direction) for home in self.homes for direction in ("down", "up")]
        return _flat(retry_each(ways, measure, self.effort.attempts))

    def _saturated(self, home: str, direction: str) -> list[Row]:
        p, tdf, limits = self.promised[home][direction], self.tdf, self.limits
        gap_s = frame_gap_s(p.wire_bps)
        seconds = max(self.effort.seconds, PACKETS_MIN * gap_s)
        got = saturate_path(p.path, p.rate_bps, p.buffer_s, p.delay_s + 4 * p.sigma_s, seconds)
        # Behind a FIFO losses make holes; before it they don't, as its queue stays full all the same.
        holes = direction == "up" or self.shaped.backend_name == "netem"
        rate = got.goodput_bps / (1 - p.loss if holes else 1)
        error = rate / p.rate_bps - 1
        if got.sent_bps < p.rate_bps:
            note = f"this machine sent only {got.sent_bps / 1e6:.0f} Mbit/s"
        else:
            note = f"{len(got.arrived_s)} packets"
        rows = [
            judged(
                home,
                direction,
                "UDP rate",
                p.rate_bps * tdf,
                rate * tdf,
                "bit/s",
                error,
                "%",
                limits.rate_error_worst,
                note,
            )
        ]
        idle = self._idle_s.get((home, direction), p.delay_s)
        queued = float(np.median(got.delays_s)) - idle if len(got.delays_s) else math.nan
        if p.queue == "fifo":
            rows.append(
                judged(
                    home,
                    direction,
                    "buffer",
                    p.buffer_s / tdf,
                    queued / tdf,
                    "s",
                    (queued - p.buffer_s) / tdf,
                    "s",
                    (limits.buffer_error_fraction * p.buffer_s + limits.buffer_error_s + gap_s) / tdf,
                    "delay under load, beyond idle",
                )
            )
        else:
            rows.append(
                unjudged(
                    home, direction, "buffer", f"{p.queue} decides by delay, not by size", p.buffer_s / tdf, queued / tdf, "s"
                )
            )
        return rows + self._spacing(home, direction, got.arrived_s, p, gap_s)

    def _spacing(self, home: str, direction: str, arrived_s: np.ndarray, p: Promise, gap_s: float) -> list[Row]:
        if p.loss or p.sigma_s:
            why = "packets are lost or jittered by setting"
            return [unjudged(home, direction, "packet gap", why)]
        limits = self.limits
        each = Spread.of(gap_deviations(arrived_s, gap_s))
        window_s = max(WINDOW_S, WINDOW_FRAMES * gap_s)
        wide = Spread.of(window_deviations(arrived_s, gap_s, window_s))
        floor = self._floor(gap_s)
        more = {
            "p50": each.p50,
            "p90": each.p90,
            "p99": each.p99,
            "timer_p50": floor.p50,
            "timer_p90": floor.p90,
            "timer_p99": floor.p99,
        }
        text = f"p50 {100 * each.p50:.2g} %, p90 {100 * each.p90:.2g} %; timers alone: p99 {100 * floor.p99:.2g} %"
        gap = judged(
            home,
            direction,
            "packet gap p99",
            gap_s / self.tdf,
            (1 + each.p99) * gap_s / self.tdf,
            "s",
            each.p99,
            "%",
            limits.gap_deviation_p99,
            text,
            **more,
        )
        if not gap.ok and floor.p99 > limits.gap_deviation_p99:
            gap = unjudged(
                home,
                direction,
                "packet gap p99",
                f"{100 * each.p99:.3g} % off; {text}: no shaper can meet {100 * limits.gap_deviation_p99:.2g} % here",
                gap_s / self.tdf,
                (1 + each.p99) * gap_s / self.tdf,
                "s",
                **more,
            )
        return [
            gap,
            judged(
                home,
                direction,
                "rate, short-term p99",
                0.0,
                wide.p99,
                "%",
                wide.p99,
                "%",
                limits.window_deviation_p99,
                f"over {1e3 * window_s:.0f} ms; p50 {100 * wide.p50:.2g} %, p90 {100 * wide.p90:.2g} %",
                p50=wide.p50,
                p90=wide.p90,
                p99=wide.p99,
                window_s=window_s,
            ),
        ]

    def _floor(self, gap_s: float) -> Spread:
        """Gap deviation of a timer that this machine fires every `gap_s`, with nothing else to do."""
        key = round(max(gap_s, 50e-6), 5)
        if key not in self._floors:
            late = timer_floor_s(key, min(2000, max(200, int(0.4 / key))))
            self._floors[key] = Spread.of(np.abs(np.diff(late)) / key)
        return self._floors[key]

    # TCP

    def tcp(self) -> list[Row]:
        """One TCP flow each way. Where packets are lost at random it is slower than the link, by no fault."""
        rows = [
            unjudged(h, d, "TCP rate", "packets are lost by setting: TCP is slower than its link")
            for h in self.homes
            for d in ("down", "up")
            if self.promised[h][d].loss
        ]
        states: dict[str, LinkState] = {
            h: self.shaped.current(h) for h in self.homes if not any(p.loss for p in self.promised[h].values())
        }
        if not states:
            return rows
        self.say(f"TCP rates: {len(states)} homes")
        found = retry_each(states, lambda homes, _: self._tcp({h: states[h] for h in homes}), self.effort.attempts)
        return rows + _flat(found)

    def _tcp(self, states: dict[str, LinkState]) -> dict[str, list[Row]]:
        server, rows = self.shaped.topology.server_link, {home: [] for home in states}
        found = probe_links(
            self.shaped.network,
            states,
            seconds=self.effort.seconds,
            tdf=self.tdf,
            server=LinkState(server.downlink_bps, server.uplink_bps, server.uplink_delay_s + server.downlink_delay_s),
        )
        for r in found:
            if r.quantity != "rtt":
                direction = r.quantity.removeprefix("rate_")
                promised = self.promised[r.home][direction].rate_bps * self.tdf
                rows[r.home].append(
                    judged(
                        r.home,
                        direction,
                        "TCP rate",
                        promised,
                        r.measured,
                        "bit/s",
                        r.measured / promised - 1,
                        "%",
                        self.limits.rate_error_worst,
                        "one flow, steady",
                    )
                )
        return rows


def _flat(found: dict[Any, list[Row]]) -> list[Row]:
    return [row for rows in found.values() for row in rows]
