"""When the failure detector notices a loss, and when a device notices that its lease is over.

The emulation sends real heartbeats; here they are not sent, for thousands of devices would do nothing else. But the
decision is the same code: what the detector would have seen of the link, as regular arrivals with the link's delay,
jitter and loss, goes into `runtime.failure_detector`, and its deadline decides.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from testbed.runtime.failure_detector import Arrivals, DetectorSettings, LossWindow, RoundTrip

JUDGE_S = 0.05  # how often the server looks for deadlines that passed (emulation/heartbeats.py)


@dataclass(frozen=True)
class HeartbeatPath:
    """Of a device to the server: delays one-way [s], deviation of one delay [s], loss a direction."""

    up_s: float
    down_s: float
    sigma_s: float = 0.0
    up_loss: float = 0.0
    down_loss: float = 0.0

    @property
    def rtt_s(self) -> float:
        return self.up_s + self.down_s


@dataclass(frozen=True)
class Noticed:
    """heard_s: last sign of life at the server; lost_s: when it gives the device up if silence goes on.
    expired_s: when the device finds its own lease over."""

    heard_s: float
    lost_s: float
    expired_s: float


def noticed(
    path: HeartbeatPath, joined_s: float, cut_s: float, settings: DetectorSettings, rng: random.Random
) -> Noticed:
    """What follows from a link that is cut at `cut_s`, of a device whose heartbeats began at `joined_s`."""
    interval = settings.interval_s
    heard = math.floor((cut_s - path.up_s - joined_s) / interval)
    echoed = math.floor((cut_s - path.rtt_s - joined_s) / interval)
    deadline = deadline_s(path, max(0, heard + 1), settings, rng)
    heard_s = max(joined_s, joined_s + heard * interval + path.up_s) if heard >= 0 else joined_s + path.up_s
    lost_s = math.ceil((heard_s + deadline) / JUDGE_S + 1e-9) * JUDGE_S
    lease_s = joined_s + max(0, echoed) * interval + deadline
    expired_s = joined_s + math.ceil((lease_s - joined_s) / interval + 1e-9) * interval
    return Noticed(heard_s, max(lost_s, cut_s), max(expired_s, cut_s))


def deadline_s(path: HeartbeatPath, heartbeats: int, settings: DetectorSettings, rng: random.Random) -> float:
    """The detector's deadline after so many heartbeats over that path."""
    arrivals, trips = Arrivals(settings), RoundTrip(settings)
    lossy, shaky = path.up_loss > 0 or path.down_loss > 0, path.sigma_s > 0
    # on an even link nothing changes any more once the window of recent losses is full and RTTVAR has died away
    seen = min(heartbeats, settings.window if lossy or shaky else 2 * LossWindow.FEW)
    for n in range(max(0, seen)):
        if lossy and rng.random() < path.up_loss:
            continue
        late = max(0.0, rng.gauss(0.0, path.sigma_s)) if shaky else 0.0
        arrivals.heartbeat(n, n * settings.interval_s + path.up_s + late, bound_s=trips.bound_s, loss=trips.loss)
        if not (lossy and rng.random() < path.down_loss):
            trips.echoed(n, path.rtt_s + late)
    return arrivals.deadline_s


def next_heartbeat_s(joined_s: float, now_s: float, interval_s: float) -> float:
    """The first time from now on at which the device sends one."""
    return joined_s + max(0, math.ceil((now_s - joined_s) / interval_s - 1e-9)) * interval_s
