"""Measures the links of a started network against what was set; delay, jitter and loss here, rates in throughput."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from testbed.cluster.model import SERVER
from testbed.emulation.probing.echoes import echo_rtts
from testbed.emulation.shaped import ShapedNetwork
from testbed.measurement.thresholds import Thresholds
from testbed.verification.effort import Effort, Say
from testbed.verification.rows import Row, flat, judged, retry_each, unjudged
from testbed.verification.settings import Promise, promises
from testbed.verification.statistics import Spread, binomial_interval, deviation_error
from testbed.verification.throughput import Throughput
from testbed.verification.trains import Received, send_trains

TOGETHER = 8  # homes whose small packets are sent at the same time
_JITTER_SPACING = 6  # x sigma between packets, or they would wait for one another, as a line keeps its order
_Z99 = 2.326  # standard deviations from the mean to the 99th percentile of a Gaussian


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

    def rows(self) -> list[Row]:
        """All rows, by measurement."""
        return [*self.round_trips(), *self.one_way(), *self.throughput().rows()]

    def throughput(self) -> Throughput:
        """What comes next: it needs to know the idle delays, which `one_way` measures."""
        return Throughput(self.shaped, self.promised, self._idle_s, self.limits, self.effort, self.say)

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
            rows += flat(retry_each(group, lambda homes, _: self._round_trips(homes), self.effort.attempts))
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
            rows += flat(
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
