"""What a delay backend gets, does and reports.

A packet's one-way delay from A to B is A's up delay + B's down delay, plus the delay of each shared link that
it crosses (both neighbourhoods' when A and B are behind different ones). Loss and jitter compose likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from testbed.emulation.kernel.trying import Found
from testbed.processes import in_user_mode_linux
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


def described(delays: Mapping[str, PathDelay]) -> Iterator[str]:
    """What a backend is told of each host, as comments."""
    for name, d in delays.items():
        yield (
            f"# {name}: one-way delay up {d.up_delay_s * 1e3:.3f} ms, down {d.down_delay_s * 1e3:.3f} ms, "
            f"deviation {d.up_jitter_s * 1e3:.3f} ms, loss {d.up_loss:.2e} each way"
        )


@dataclass(frozen=True)
class Need:
    """What a backend asks of the machine.

    key: among all needs of all backends; one that several have is tried once. name: for people (testbed doctor).
    attempt: tries it, as root, in a network namespace that nobody else sees, with the veth pair `pa`, `pb` up.
    remedy: the command that gets it. use: what it is for, where the backend works without it, too.
    """

    key: str
    name: str
    attempt: Callable[[], Found]
    remedy: str = ""
    use: str = ""


@dataclass(frozen=True)
class Declaration:
    """What the testbed has to know of a backend.

    needs: of the machine; the backend works where all of them are met that have no `use` of their own.
    switches: behind which it works. order: `auto` takes the lowest that works; order_in_uml: the same in
    user-mode-linux, where it is another. own_queues: kinds of queueing disciplines that it puts on hosts' interfaces,
    which are no interference. loss_after_bottleneck: packets are lost behind the receiver's bottleneck, not before it.
    dry_run: lines for `testbed run --dry-run`, from what each home's delays are at the start.
    """

    needs: tuple[Need, ...] = ()
    switches: tuple[str, ...] = ("bridge",)
    order: int = 100
    order_in_uml: int | None = None
    own_queues: tuple[str, ...] = ()
    loss_after_bottleneck: bool = False
    dry_run: Callable[[Mapping[str, PathDelay]], Iterable[str]] = described

    def place(self) -> int:
        """The order that counts on this kernel."""
        return self.order if self.order_in_uml is None or not in_user_mode_linux() else self.order_in_uml

    def lacking(self, found: Mapping[str, Found]) -> list[Found]:
        """What of the needs is not met; `found`: by key."""
        never = Found(False, "not tried")
        tried = [found.get(need.key, never) for need in self.needs if not need.use]
        return [one for one in tried if not one.available]


@runtime_checkable
class DelayBackend(Protocol):
    """Delays, jitter and loss for all hosts of one run.

    May have `pid`, a process to be ended after a crash, and `alive`, whether it still works.
    """

    declares: ClassVar[Declaration]
    name: str
    seeded: bool  # does random loss repeat from the seed?

    def __init__(self, log: Path | None = None) -> None:
        """log: a file for what it has to say, or nothing."""

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
