"""When a change of a link takes effect on the wire: what `testbed verify` means by trace-step lateness.

The replay is the one of a run. That it applied a change in time is not taken from its own word: packets show it.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from testbed.cluster import LinkState
from testbed.emulation.schedule.replay import Replayer, ReplayPlan
from testbed.emulation.shaped import ShapedNetwork
from testbed.measurement.thresholds import Thresholds
from testbed.scenario.link_model import access_links
from testbed.verification.rows import Row, judged, retry_each
from testbed.verification.settings import promises
from testbed.verification.statistics import step_up
from testbed.verification.trains import frame_gap_s, saturate_path, send_trains

_LEAD_S = 0.5  # before the change
_LONGER_S = 0.03  # by how much the RTT grows
_SLOWER = 2.0  # by what factor the rate falls
_INTERVAL_S = 0.001


def step_rows(shaped: ShapedNetwork, home: str, limits: Thresholds, attempts: int) -> list[Row]:
    """A longer RTT, and half the rate, each as a step in a trace; then everything as it was."""
    kinds = {"delay step": _delay_step, "rate step": _rate_step}

    def measure(names: list[str], _: int) -> dict[str, list[Row]]:
        return {name: [kinds[name](shaped, home, limits)] for name in names}

    return [row for rows in retry_each(kinds, measure, attempts).values() for row in rows]


def _replayed(shaped: ShapedNetwork, home: str, changed: LinkState, at: float) -> Replayer:
    """A replay of one change, due at that moment of CLOCK_MONOTONIC."""
    now = shaped.current(home)
    t0 = time.monotonic()
    change = {home: [(0.0, now), ((at - t0) / shaped.tdf, changed)]}
    plan = ReplayPlan.of(replace(shaped.setup, link_changes=change))
    replayer = Replayer(plan, shaped.network, shaped.backend, on_error=shaped.failed_step)
    replayer.start(t0)
    return replayer


def _back(shaped: ShapedNetwork, home: str) -> None:
    topology = shaped.topology
    access = access_links({home: shaped.current(home)}, topology.server_link, topology.shared_links, shaped.tdf)[home]
    shaped.network.set_links({home: access.link})
    shaped.backend.set({home: access.delay})


def _delay_step(shaped: ShapedNetwork, home: str, limits: Thresholds) -> Row:
    promise = promises(shaped, home)["up"]
    longer_s = max(_LONGER_S * shaped.tdf, 8 * promise.sigma_s)
    state = shaped.current(home)
    changed = replace(state, rtt_s=state.rtt_s + 2 * longer_s / shaped.tdf)
    due = time.monotonic() + _LEAD_S
    replayer = _replayed(shaped, home, changed, due)
    count = int(2 * _LEAD_S / _INTERVAL_S)
    got = send_trains(
        {home: promise.path},
        count=count,
        interval_s=_INTERVAL_S,
        wait_s=promise.delay_s + longer_s + 8 * promise.sigma_s + 0.1,
    )[home]
    replayer.stop()
    _back(shaped, home)
    here = ~np.isnan(got.arrived_s) & got.clear
    delays = (got.arrived_s - got.sent_s)[here]
    at = step_up(
        got.sent_s[here],
        np.clip(delays, 0, promise.delay_s + 2 * longer_s),
        promise.delay_s,
        promise.delay_s + longer_s,
    )
    return _row(home, "up", "delay step", at, due, limits, replayer)


def _rate_step(shaped: ShapedNetwork, home: str, limits: Thresholds) -> Row:
    promise = promises(shaped, home)["down"]
    state = shaped.current(home)
    changed = replace(state, down_bps=promise.rate_bps * shaped.tdf / _SLOWER)
    gap_s = frame_gap_s(promise.wire_bps)
    lead_s = max(_LEAD_S, promise.delay_s + promise.buffer_s + 30 * gap_s + 0.2)
    due = time.monotonic() + lead_s
    replayer = _replayed(shaped, home, changed, due)
    seconds = 2 * (lead_s - promise.buffer_s - promise.delay_s)
    arrived = saturate_path(
        promise.path, promise.rate_bps, promise.buffer_s, promise.delay_s + 4 * promise.sigma_s, seconds
    ).arrived_s
    replayer.stop()
    _back(shaped, home)
    gaps = np.clip(np.diff(arrived), 0, 4 * _SLOWER * gap_s)
    at = step_up(arrived[1:], gaps, gap_s, _SLOWER * gap_s)
    return _row(home, "down", "rate step", at, due, limits, replayer)


def _row(
    home: str, direction: str, name: str, at: float | None, due: float, limits: Thresholds, replayer: Replayer
) -> Row:
    """Lateness on the wire in real seconds: the machine's, not the emulated world's."""
    late_s = float("inf") if at is None else at - time.time() + time.monotonic() - due
    told = (
        f"the replay says {1e3 * replayer.lateness_s[0]:.2f} ms"
        if replayer.lateness_s
        else "the replay did not apply it"
    )
    note = told if at is not None else f"no step was seen; {told}"
    return judged(
        home, direction, name, 0.0, late_s, "s", late_s, "s", limits.replay_late_s, f"late on the wire; {note}"
    )
