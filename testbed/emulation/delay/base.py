"""What a delay backend gets, does and reports.

A packet's one-way delay from A to B is A's up delay + B's down delay, plus the delay of each shared link that
it crosses (both neighbourhoods' when A and B are behind different ones). Loss and jitter compose likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from testbed.scenario.link_model import PathDelay


class HostPort(Protocol):
    """Where one host (a home's device, or the server) meets the network; what backends need to know of it.

    In the host's namespace: `interface`. In the run's own namespace: `port` (the far end of that veth) and
    `bridge_port` (the bridge's side of the access link). Uplink packets enter by `port` and reach
    `bridge_port`.
    """

    name: str
    mac: str  # of `interface`
    netns: str  # path of the host's network namespace, e.g. /run/netns/tb-1-h3 or /proc/PID/ns/net
    interface: str  # hN-eth0
    net_netns: str  # path of the run's own network namespace
    port: str  # pN
    bridge_port: str  # yN
    ifb: str  # iN, takes bridge_port's ingress for the uplink netem; made by the backend that needs it


class SharedPort(Protocol):
    """A shared link (neighbourhood aggregation).

    `up_interface` sends towards the core, `down_interface` to the homes.
    """

    name: str
    members: tuple[str, ...]
    delay_s: float  # one-way, real seconds
    net_netns: str
    up_interface: str
    down_interface: str


@dataclass(frozen=True)
class DelayStats:
    """Counters since start, but for the lag figures, which cover the time since the previous call.

    lag: release - due time of each packet [s]. queued: packets waiting now. overflowed: packets that the
    kernel dropped because a queue or socket was full: a fault of the emulation, never a setting.
    age_s: how old these figures are; more than a second or two means that the backend is stuck or dead.
    cpu_s: processor time that the backend used since start; 0 where the kernel does the work.
    pauses: how often its process was stopped and continued (SIGSTOP, SIGCONT); None where there is none.
    """

    packets: int = 0
    released: int = 0
    lost_by_setting: int = 0
    queued: int = 0
    overflowed: int = 0
    lag_p50_s: float = 0.0
    lag_p99_s: float = 0.0
    lag_max_s: float = 0.0
    age_s: float = 0.0
    cpu_s: float = 0.0
    pauses: int | None = None


@runtime_checkable
class DelayBackend(Protocol):
    """Delays, jitter and loss for all hosts of one run."""

    name: str
    seeded: bool  # does random loss repeat from the seed?

    def start(
        self,
        hosts: Mapping[str, HostPort],
        delays: Mapping[str, PathDelay],
        shared: Mapping[str, SharedPort],
        seed: int,
    ) -> None:
        """Put the delay lines in place. Hosts missing from `delays` get no delay of their own.

        Raises:
            testbed.errors.CapabilityError: this kernel or machine can't do it.
        """

    def set(self, changes: Mapping[str, PathDelay]) -> None:
        """Change hosts' delays in place, for packets that arrive from now on. Raises KeyError."""

    def stats(self) -> DelayStats:
        """Counters and lags; never waits for a stuck backend (see DelayStats.age_s)."""

    def stop(self) -> None:
        """Remove exactly what start() made.

        Idempotent; ends within seconds whatever state the backend is in.
        """

    def commands(self) -> list[str]:
        """What was applied, one line each, for the manifest and --dry-run."""
