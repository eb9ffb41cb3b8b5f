"""`testbed verify --grid`: settings from slow to fast, near to far, clean to lossy, each a home of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from testbed.cluster import Link, LinkState, Topology
from testbed.errors import InputError
from testbed.experiment.machine import capable
from testbed.measurement.thresholds import Thresholds, in_user_mode_linux
from testbed.scenario.network import NetworkSettings, NetworkSetup
from testbed.verification.effort import QUICK, Effort
from testbed.verification.rows import Row, shown
from testbed.verification.verify import Verification, built, facts_of, mean_rate_row, measure

RATES_BPS = (1e6, 2e6, 5e6, 10e6, 20e6, 50e6, 100e6, 200e6, 500e6)
RTTS_S = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
LOSSES = (0.005, 0.01, 0.02, 0.05)
UML_MOST_BPS = 50e6
POINTS = 18
SERVER = Link(10e9, 10e9)  # wider than any point's link, without a delay of its own
_EXTRA = ("rate error, mean", "neighbour's RTT", "foreign frames", "delay step", "rate step")
_JUDGED_BPS = 200e6  # above, this machine may be the limit; told, not judged (docs/fidelity.md)
_BEYOND = f"beyond {_JUDGED_BPS / 1e6:.0f} Mbit/s, not judged"


@dataclass(frozen=True)
class Point:
    """One setting. loss: of the round trip."""

    rate_bps: float
    rtt_s: float
    loss: float

    @property
    def state(self) -> LinkState:
        return LinkState(self.rate_bps, self.rate_bps, self.rtt_s, 0.0, self.loss)


def rates_here() -> tuple[float, ...]:
    """The grid's rates [bit/s] on this kernel: user-mode-linux has one processor and carries less."""
    return tuple(rate for rate in RATES_BPS if rate <= UML_MOST_BPS) if in_user_mode_linux() else RATES_BPS


def points(count: int, rates_bps: Sequence[float] = RATES_BPS) -> list[Point]:
    """`count` different settings: every rate in turn, by turns without loss, which TCP and gaps need, and with.

    RTTs and losses go on from rate to rate and from turn to turn, so that few points meet many of them.

    Raises:
        InputError: more than there are.
    """
    most = len(rates_bps) * len(RTTS_S) * (1 + len(LOSSES))
    if not 1 <= count <= most:
        raise InputError("--points", f"{count}; expected 1 to {most}")
    return sorted(itertools.islice(_in_turns(rates_bps), count), key=lambda p: (p.rate_bps, p.rtt_s, p.loss))


def _in_turns(rates_bps: Sequence[float]) -> Iterator[Point]:
    for turn in range(len(RTTS_S) * len(LOSSES)):
        if turn < len(RTTS_S):
            for place, rate in enumerate(rates_bps):
                yield Point(rate, RTTS_S[(3 * place + turn) % len(RTTS_S)], 0.0)
        for place, rate in enumerate(rates_bps):  # their numbers have no common divisor: each pair comes once
            yield Point(rate, RTTS_S[(3 * place + turn + 2) % len(RTTS_S)], LOSSES[(place + turn) % len(LOSSES)])


def verify_grid(
    count: int,
    *,
    quick: bool,
    command: str,
    delay_backend: str = "auto",
    switch: str = "bridge",
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    rates_bps: Sequence[float] | None = None,
) -> Verification:
    """Build one network with a home for each point, and measure all. rates_bps: other ones than this kernel's."""
    chosen, limits = points(count, rates_bps or rates_here()), Thresholds.from_mapping(None)
    caps = capable()
    names = [f"g{i + 1}" for i in range(len(chosen))]
    links = {name: [(0.0, point.state)] for name, point in zip(names, chosen)}
    topology = Topology(tuple(names), SERVER, name="grid")
    settings = NetworkSettings(delay_backend=delay_backend, switch=switch)
    setup = NetworkSetup(topology, links, settings, seed=seed, label="grid")
    with built(setup, names, caps=caps, command=command, say=say) as (shaped, busy):
        rows = measure(shaped, names, busy, limits, QUICK if quick else Effort(), say)
        facts = facts_of(shaped, len(names))
    fast = {name for name, point in zip(names, chosen) if point.rate_bps > _JUDGED_BPS}
    rows = [_told(r) if r.home in fast else r for r in rows]
    return Verification(
        "grid",
        [*rows, mean_rate_row(rows, limits)],
        {**facts, "points": {name: vars(point) for name, point in zip(names, chosen)}},
    )


def _told(row: Row) -> Row:
    if row.ok is not False:
        return row
    return replace(row, ok=None, note=f"{_BEYOND}: off by {shown(row.error, row.error_unit)}; {row.note}")


def markdown(found: Verification) -> str:
    """The grid as a table for the docs, a line a point."""
    head = [
        "set rate, RTT, loss",
        "UDP rate down / up",
        "TCP rate down / up",
        "RTT p50",
        "RTT p99",
        "loss down, 95 %",
        "loss up, 95 %",
        "buffer down / up",
        "gap p50 / p99 down",
        "gap p50 / p99 up",
        "judged",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name, point in found.facts["points"].items():
        rows = {(r.direction, r.quantity): r for r in found.rows if r.home == name}
        own = [r for r in rows.values() if r.ok is not None]
        failed = [f"{r.quantity} {r.direction}" for r in own if not r.ok]
        beyond = [f"{r.quantity} {r.direction}" for r in rows.values() if r.note.startswith(_BEYOND)]
        lines.append(
            "| "
            + " | ".join(
                [
                    f"{point['rate_bps'] / 1e6:g} Mbit/s, {1e3 * point['rtt_s']:g} ms, {100 * point['loss']:g} %",
                    *(
                        _pair(rows, q, lambda r: f"{100 * (r.measured / r.set - 1):+.2f} %")
                        for q in ("UDP rate", "TCP rate")
                    ),
                    *(
                        _one(rows, ("both", q), lambda r: f"{1e3 * (r.measured - r.set):+.2f} ms")
                        for q in ("RTT p50", "RTT p99")
                    ),
                    *(
                        _one(
                            rows,
                            (d, "loss"),
                            lambda r: f"{100 * r.more['low']:.2f}–{100 * r.more['high']:.2f} % ({100 * r.set:.2f})",
                        )
                        for d in ("down", "up")
                    ),
                    _pair(rows, "buffer", lambda r: f"{1e3 * (r.measured - r.set):+.1f} ms"),
                    *(
                        _one(
                            rows,
                            (d, "packet gap p99"),
                            lambda r: f"{100 * r.more['p50']:.0f} / {100 * r.more['p99']:.0f} %",
                        )
                        for d in ("down", "up")
                    ),
                    ("PASS" if not failed else "FAIL: " + ", ".join(failed))
                    + (f"; beyond this machine: {', '.join(beyond)}" if beyond else ""),
                ]
            )
            + " |"
        )
    return "\n".join([*lines, "", *summary_lines(found)])


def _one(rows: dict, key: tuple[str, str], text: Callable[[Row], str]) -> str:
    row = rows.get(key)
    if row is None or row.measured is None or not math.isfinite(row.measured):
        return "-"
    return text(row)


def _pair(rows: dict, quantity: str, text: Callable[[Row], str]) -> str:
    return " / ".join(_one(rows, (direction, quantity), text) for direction in ("down", "up"))


def summary_lines(found: Verification) -> list[str]:
    """What the other rows say, and on what it was measured."""
    f = found.facts
    lines = [
        f"- {r.home} {r.quantity} ({r.direction}): {shown(r.measured, r.unit)}, limit "
        f"{shown(r.limit, r.error_unit)}, {r.verdict}; {r.note}"
        for r in found.rows
        if r.quantity in _EXTRA
    ]
    return [
        *lines,
        "",
        f"Linux {f['kernel']}, {f['delay_backend']}, switch {f['switch']}, {f['time'][:10]}; "
        f"{sum(r.ok is True for r in found.rows)} rows passed, {sum(r.ok is False for r in found.rows)} failed, "
        f"{sum(r.ok is None for r in found.rows)} not judged.",
    ]
