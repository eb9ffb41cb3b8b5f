"""Delay by the kernel's netem, where it has it. Pure command lists, and a backend that applies them.

Where the netems are: downlink on the egress of `port`, right before the host; uplink on an ifb that takes
what comes in by `bridge_port`, and so behind the uplink's bottleneck. A shared link gets one for each
direction, likewise behind its bottlenecks. None is on a sender's own egress, and none shares a queue with a
rate.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testbed.emulation.delay.base import Declaration, DelayStats, HostPort, Need, SharedPort
from testbed.emulation.delay.netem_counters import HANDLE, NetemCounters
from testbed.emulation.kernel import batch, trying
from testbed.emulation.kernel.namespaces import run_in
from testbed.emulation.kernel.trying import UML_HINT, Found
from testbed.errors import TestbedError
from testbed.scenario.link_model import PathDelay

# Beyond any rate x delay that passes a bottleneck, so that netem never drops what no setting says; it is no
# allocation.
LIMIT_PACKETS = 1_000_000
# With a rate, netem sends no packet before the last one that it queued, and so keeps the order whatever the
# jitter (netem_enqueue in the kernel's sch_netem.c). This rate adds 0.1 us a packet.
_KEEP_ORDER = "rate 100gbit"
_ALL = "protocol all prio 1 u32 match u32 0 0"
_HANDLE = f"{HANDLE:x}:"
_COMMANDS_MAX = 20_000


def options(
    delay_s: float, jitter_s: float = 0.0, loss: float = 0.0, *, reorder: bool = False, seed: int | None = None
) -> str:
    """netem's options. What is zero is left out, and so reset by a `change`: tc sends all of it each time.

    reorder: let jitter reorder packets (all of them: netem has no probability for it).
    """
    words = [f"netem limit {LIMIT_PACKETS}"]
    if delay_s or jitter_s:
        words.append(f"delay {delay_s * 1e6:.0f}us")
    if jitter_s:
        words.append(f"{jitter_s * 1e6:.0f}us distribution normal")
    if loss:
        words.append(f"loss random {100 * loss:.6f}%")
    words.append("rate 0bit" if reorder else _KEEP_ORDER)
    if seed is not None:
        words.append(f"seed {seed}")
    return " ".join(words)


def _seed(seed: int | None, dev: str, change: int) -> int | None:
    """A generator of its own for each netem; setting it again starts it again, so changes get new ones."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.sha256(f"{seed}/{dev}/{change}".encode()).digest()[:7], "big")


def _up(d: PathDelay, dev: str, seed: int | None, change: int) -> str:
    return options(d.up_delay_s, d.up_jitter_s, d.up_loss, reorder=d.reorder > 0, seed=_seed(seed, dev, change))


def _down(d: PathDelay, dev: str, seed: int | None, change: int) -> str:
    return options(d.down_delay_s, d.down_jitter_s, d.down_loss, reorder=d.reorder > 0, seed=_seed(seed, dev, change))


def _shared_ifb(interface: str) -> str:
    return f"i{interface}"


def _redirect(dev: str, ifb: str, netem: str) -> list[str]:
    """What comes in by `dev` passes a netem on `ifb`."""
    return [
        f"qdisc add dev {ifb} root handle {_HANDLE} {netem}",
        f"qdisc add dev {dev} clsact",
        f"filter add dev {dev} ingress {_ALL} action mirred egress redirect dev {ifb}",
    ]


def start_commands(
    hosts: Mapping[str, HostPort], delays: Mapping[str, PathDelay], shared: Mapping[str, SharedPort], seed: int | None
) -> tuple[list[str], list[str]]:
    """(ip commands, tc commands) that put all netems in place. Run them in the bridges' namespace."""
    ifbs, tc = [], []
    for name, host in hosts.items():
        d = delays.get(name, PathDelay())
        ifbs.append(host.ifb)
        tc.append(f"qdisc add dev {host.port} root handle {_HANDLE} {_down(d, host.port, seed, 0)}")
        tc += _redirect(host.bridge_port, host.ifb, _up(d, host.ifb, seed, 0))
    for link in shared.values():
        for far_end in (link.down_interface, link.up_interface):  # where up comes in, where down does
            ifbs.append(_shared_ifb(far_end))
            tc += _redirect(far_end, _shared_ifb(far_end), options(link.delay_s))
    return [f"link add {ifb} up numtxqueues 1 numrxqueues 1 type ifb" for ifb in ifbs], tc


def change_commands(
    hosts: Mapping[str, HostPort], changes: Mapping[str, PathDelay], seed: int | None, change: int
) -> list[str]:
    """tc commands that change hosts' delays in place. `change`: how many changes there were before."""
    return [
        f"qdisc change dev {dev} root handle {_HANDLE} {netem}"
        for name, d in changes.items()
        for dev, netem in (
            (hosts[name].port, _down(d, hosts[name].port, seed, change)),
            (hosts[name].ifb, _up(d, hosts[name].ifb, seed, change)),
        )
    ]


def stop_commands(hosts: Mapping[str, HostPort], shared: Mapping[str, SharedPort]) -> tuple[list[str], list[str]]:
    """(tc commands, ip commands) that remove them again."""
    ends = [(h.bridge_port, h.ifb) for h in hosts.values()]
    ends += [(dev, _shared_ifb(dev)) for s in shared.values() for dev in (s.up_interface, s.down_interface)]
    tc = [f"qdisc del dev {h.port} root handle {_HANDLE}" for h in hosts.values()]
    return tc + [f"qdisc del dev {dev} clsact" for dev, _ in ends], [f"link del {ifb}" for _, ifb in ends]


class NetemBackend:
    """See `testbed.emulation.delay.base.DelayBackend`. Lags are not known: the kernel tells no one."""

    name = "netem"
    declares = Declaration(
        needs=(
            Need("ifb", "ifb", lambda: trying.commands("ip link add fb type ifb"), f"modprobe ifb numifbs=0{UML_HINT}"),
            Need(
                "netem",
                "netem",
                lambda: trying.commands("tc qdisc add dev pb root handle 1: netem delay 10ms 1ms loss 1% limit 1000"),
                f"modprobe sch_netem (Ubuntu: apt install linux-modules-extra-$(uname -r)){UML_HINT}",
            ),
            Need(
                "netem_seed",
                "netem seed",
                lambda: _try_seed(),
                "Linux 6.7 and iproute2 6.6 or newer; or network.delay_backend: nfqueue, always seeded",
                "random loss that repeats, with netem",
            ),
        ),
        switches=("bridge", "ovs"),
        order=10,
        own_queues=("netem", "clsact"),
        loss_after_bottleneck=True,
    )

    def __init__(self, log: Path | None = None):
        self.seeded = False
        self._hosts: dict[str, HostPort] = {}
        self._shared: dict[str, SharedPort] = {}
        self._netns = ""
        self._seed: int | None = None
        self._changes = 0
        self._commands: list[str] = []
        self._tc: batch.Batch | None = None
        self._counters: NetemCounters | None = None
        self._last = DelayStats()

    @property
    def pid(self) -> int | None:
        """Of the `tc -batch` that stays open for changes."""
        return self._tc.start() if self._tc else None

    def start(
        self,
        hosts: Mapping[str, HostPort],
        delays: Mapping[str, PathDelay],
        shared: Mapping[str, SharedPort],
        seed: int,
    ) -> None:
        if self._hosts:
            raise RuntimeError("already started")
        if not hosts:
            raise ValueError("no hosts")
        first = next(iter(hosts.values()))
        self._netns = first.net_netns
        if run_in(self._netns, ["ip", "link", "show", "dev", first.ifb]).returncode == 0:
            raise TestbedError(f"{first.ifb} is there already: another delay line runs in {self._netns}")
        self._hosts, self._shared = dict(hosts), dict(shared)
        self._seed = seed if tc_knows_seed() else None
        ip, tc = start_commands(hosts, delays, shared, self._seed)
        try:
            batch.run("ip", ip, self._netns)
            batch.run("tc", tc, self._netns)
            self._counters = NetemCounters(self._netns, self._devices())
            self._tc = batch.Batch("tc", self._netns)
            self._tc.start()
        except BaseException:
            self.stop()
            raise
        # A kernel older than 6.7 takes a seed without a word and without effect, but does not show it either.
        shown = run_in(self._netns, ["tc", "qdisc", "show", "dev", first.port]).stdout
        self.seeded = self._seed is not None and " seed " in shown
        self._note("ip", ip)
        self._note("tc", tc)

    def _devices(self) -> list[str]:
        ends = [dev for s in self._shared.values() for dev in (s.up_interface, s.down_interface)]
        shared = [_shared_ifb(dev) for dev in ends]
        return [dev for h in self._hosts.values() for dev in (h.port, h.ifb)] + shared

    def set(self, changes: Mapping[str, PathDelay]) -> None:
        for name in changes:
            self._hosts[name]
        if not self._tc:
            raise RuntimeError("not started")
        self._changes += 1
        lines = change_commands(self._hosts, changes, self._seed, self._changes)
        self._tc.run(lines)
        self._note("tc", lines)

    def stats(self) -> DelayStats:
        counters = self._counters
        if counters:
            with contextlib.suppress(OSError):
                self._last = counters.read()
        return self._last

    def stop(self) -> None:
        if not self._hosts:
            return
        self.stats()
        if self._tc:
            self._tc.close()
        if self._counters:
            self._counters.close()
        for program, lines in zip(("tc", "ip"), stop_commands(self._hosts, self._shared)):
            remover = batch.Batch(program, self._netns)  # goes on after what start() did not get to make
            with contextlib.suppress(TestbedError):
                remover.run(lines)
            remover.close()
        self._hosts, self._tc, self._counters = {}, None, None

    def commands(self) -> list[str]:
        text = "loss repeats from the seed" if self.seeded else "this kernel or iproute2 can't seed it"
        return [*self._commands, f"# netem: {text}"]

    def _note(self, program: str, lines: list[str]) -> None:
        room = _COMMANDS_MAX - len(self._commands)
        name = Path(self._netns).name
        self._commands += [f"{program} -n {name} {line}" for line in lines[: max(0, room)]]


def tc_knows_seed() -> bool:
    """iproute2 6.6 and newer have netem's `seed`."""
    said = subprocess.run(["tc", "-V"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"iproute2-(?:ss)?(\d+)\.(\d+)", said)
    return bool(found) and (int(found[1]), int(found[2])) >= (6, 6)


def _try_seed() -> Found:
    """Kernels before 6.7 take a seed without a word, and don't keep it."""
    found = trying.commands("tc qdisc replace dev pb root handle 2: netem delay 10ms loss 1% seed 7")
    if not found.available:
        return found
    kept = "seed 7" in trying.output("tc", "qdisc", "show", "dev", "pb")
    return Found(kept, "kept by the kernel" if kept else "the kernel ignores it")
