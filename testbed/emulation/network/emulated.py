"""The emulated network of one run: built in batches, shaped link by link, changed in place, removed whole.

Where things are (docs/network.md has the picture): every host is a named network namespace; one more, the
run's own, holds the bridges and each access link's switch side. Nothing is made in the root namespace.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from testbed.cluster import Link, SharedLink, Topology
from testbed.cluster.model import SERVER
from testbed.emulation import cleanup
from testbed.emulation.kernel import batch, namespaces, netlink, processors
from testbed.emulation.network import hosts, plan, shaping
from testbed.emulation.network.counters import QueueCounters, QueueReader
from testbed.emulation.network.expectations import Expectations
from testbed.emulation.network.hosts import DelayPort, HostPort, SharedPort
from testbed.emulation.network.openvswitch import OpenVSwitch
from testbed.emulation.network.plan import plan_commands
from testbed.emulation.state import RunState, process_value
from testbed.errors import TestbedError, unknown
from testbed.processes import allow_open_files
from testbed.scenario.network import NetworkSettings

if TYPE_CHECKING:
    from mininet.net import Mininet

__all__ = ["DelayPort", "EmulatedNetwork", "HostPort", "QueueCounters", "SharedPort", "plan_commands"]

LINK_UP_TIMEOUT_S = 10.0
FILES, FILES_A_HOST = 64, 5  # open at once, at most: a host's shell, which all have, and its worker's connections
COMMANDS_MAX = 20_000  # beyond, changes are counted; the run's events hold every one of them


class EmulatedNetwork:
    """A Mininet network on its own namespaces. A context manager: entering starts it, leaving stops it.

    Attributes:
        hosts: by name, the homes and 'server'.
        outside: the host where cross traffic comes from, if the settings name one; it is not among `hosts`.
        net: the `mininet.net.Mininet` object, from `start` on; hosts' shells start with their first command.
        net_namespace: name of the namespace with the bridges.
        commands: what was applied so far, as text; see also `changes_not_listed`.
    """

    net: Mininet

    def __init__(
        self, state: RunState, topology: Topology, links: Mapping[str, Link], settings: NetworkSettings | None = None
    ):
        """Plan it; nothing is made yet. `links` has a link for each home (time dilation applied).

        Raises:
            InputError: see `testbed.emulation.network.plan.make_plan`.
        """
        self.state, self.topology, self.settings = state, topology, settings or NetworkSettings()
        self.plan = plan.make_plan(state.run_id, topology, links, self.settings)
        self.hosts: dict[str, HostPort] = {n: h for n, h in self.plan.hosts.items() if n != self.settings.outside}
        self.outside: HostPort | None = self.plan.hosts.get(self.settings.outside)
        self.shared: dict[str, SharedPort] = self.plan.shared
        self.net_namespace = self.plan.net_netns
        self.commands: list[str] = []
        self.changes_not_listed = 0
        self.down: set[str] = set()  # hosts whose link is cut
        # Shape by interface, and whether a host's link is cut by ('cut', host); see link_monitor
        self.expected = Expectations()
        self._shapes = dict(self.plan.shapes)
        self.expected.set(self._shapes)
        self._tc = batch.Batch("tc", self.net_namespace)
        self._ip = batch.Batch("ip", self.net_namespace)
        self._route: netlink.Route | None = None  # of the run's own namespace
        self._indexes: dict[str, int] = {}  # of interfaces with a bottleneck
        self._lock = threading.Lock()
        self._started = False
        self._processes: list[str] = []
        self._openvswitch: OpenVSwitch | None = None

    def __enter__(self) -> EmulatedNetwork:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> None:
        """Make namespaces, links, bridges and shaping, and the Mininet object on them.

        Raises:
            InputError: the kernel has no such congestion control.
            CapabilityError: the kernel or a program lacks something.
            TestbedError, OSError: a command failed. What was made until then is recorded: call `stop`.
        """
        p, netns = self.plan, self.net_namespace
        allow_open_files(FILES // 2 + len(p.hosts), FILES + FILES_A_HOST * len(p.hosts))
        hosts.require_congestion_control(self.settings.congestion_control, load=True)
        self.state.record_many("netns", p.namespaces)
        self._started = True
        namespaces.create(p.namespaces)
        processors.steer_receiving(p.namespaces)
        hosts.disable_ipv6_in(netns)
        batch.run("ip", p.ip_lines, netns)
        if self.settings.switch == "ovs":
            self._openvswitch = OpenVSwitch(self.state, netns)
            self._openvswitch.start(p.bridges)
        batch.run("bridge", p.bridge_lines, netns)
        with ThreadPoolExecutor(1) as background:
            shaping_done = background.submit(batch.run, "tc", p.tc_lines, netns)
            hosts.set_up(self.plan.hosts.values(), self.settings)
            shaping_done.result()
        self.commands += p.commands()
        self._processes = [process_value(process.start()) for process in (self._tc, self._ip)]
        self.state.record_many("process", self._processes)
        namespaces.in_thread(self._open_route)
        from testbed.emulation.network import mininet_nodes

        self.net = mininet_nodes.build(self)

    def _open_route(self) -> None:
        with namespaces.inside(self.net_namespace):
            self._route = netlink.Route()
            self._indexes = {name: socket.if_nametoindex(name) for name in self.plan.shapes}

    def stop(self) -> None:
        """Remove all that `start` made. Idempotent; whatever still runs in the hosts is killed."""
        if not self._started:
            return
        if hasattr(self, "net"):
            self.net.stop()
        self._tc.close()
        self._ip.close()
        for process in self._processes:
            self.state.forget("process", process)
        if self._route:
            self._route.close()
            self._route = None
        if self._openvswitch:
            self._openvswitch.stop()
        report = cleanup.remove_namespaces(self.state, self.plan.namespaces)
        if not report.ok:
            raise TestbedError("; ".join(report.problems), hint=f"testbed clean {self.state.run_id}")
        self._started = False

    # Changes

    def set_links(self, changes: Mapping[str, Link]) -> None:
        """Change rates and buffers of homes (or 'server') in place, all in one go. Delays are another's part.

        Raises:
            InputError: an unknown name, or a rate that isn't positive; nothing is changed then.
            TestbedError: the kernel refused a change; the others hold.
        """
        shapes: dict[str, shaping.Shape] = {}
        for name, link in changes.items():
            host = self.host(name)
            shapes[host.inner], shapes[host.bridge_port] = plan.link_shapes(name, link, self.settings)
        self._change(shapes)

    def set_shared_links(self, changes: Mapping[str, SharedLink]) -> None:
        """The same for shared links, by name."""
        shapes: dict[str, shaping.Shape] = {}
        for name, link in changes.items():
            if name not in self.shared:
                raise unknown("shared link", "shared link", name, self.shared)
            port = self.shared[name]
            shapes[port.up_interface], shapes[port.down_interface] = plan.link_shapes(name, link, self.settings)
        self._change(shapes)

    def _change(self, shapes: dict[str, shaping.Shape]) -> None:
        with self._lock:
            lines = [
                line for dev, new in shapes.items() for line in shaping.change_bottleneck(dev, self._shapes[dev], new)
            ]
            if lines:
                self.expected.set(shapes)
                self._tc.run(lines)
                self._note(f"tc -n {self.net_namespace} ", lines)
            self._shapes.update(shapes)

    def link_down(self, name: str) -> None:
        """Cut a host's access link, both ways at once; what waits in its queues is lost. May be repeated.

        One interface between the two bottlenecks goes down. The host keeps address, route, ARP entries and
        carrier, as behind a home router whose line fails; not even a FIN or RST of a dying process gets
        out.
        """
        host = self.host(name)
        with self._lock:
            self.expected.set({("cut", name): True})
            self._set_link(host, "down")
            self.down.add(name)

    def link_up(self, name: str) -> None:
        """Mend a host's access link: rates and buffers as last set, queues empty. Returns once it carries.

        Raises:
            TestbedError: the kernel didn't bring the link up.
        """
        host = self.host(name)
        with self._lock:
            self.expected.set({("cut", name): False})
            self._set_link(host, "up")
            # The bridge learns of the carrier from a kernel thread that waits for its turn at the routing
            # lock: after the command's end, by up to a second while other networks come and go.
            deadline = time.monotonic() + LINK_UP_TIMEOUT_S
            while not self._route.forwards(self._indexes[host.bridge_port]):
                if time.monotonic() > deadline:
                    raise TestbedError(f"the link of {name!r} isn't up after {LINK_UP_TIMEOUT_S:.0f} s")
                time.sleep(0.001)
            self.down.discard(name)

    def _set_link(self, host: HostPort, state: str) -> None:
        lines = [f"link set {host.inner} {state}"]
        self._ip.run(lines)
        self._note(f"ip -n {self.net_namespace} ", lines)

    # Looking

    def host(self, name: str) -> HostPort:
        """Raises InputError with the nearest name."""
        if name not in self.hosts:
            raise unknown("host", "host", name, self.hosts)
        return self.hosts[name]

    def delay_ports(self) -> dict[str, DelayPort]:
        """The hosts as delay backends take them."""
        return {name: hosts.delay_port(host) for name, host in self.plan.hosts.items()}

    def shared_ports(self) -> dict[str, SharedPort]:
        """The shared links as delay backends take them."""
        return dict(self.shared)

    def counters(self) -> dict[str, dict[str, QueueCounters]]:
        """Counters since start, by host (and shared link), then 'up' and 'down'. One dump for all."""
        with self._lock:
            by_interface = QueueReader(self._route, self._indexes).read()
        found = {
            name: {"up": by_interface[h.inner], "down": by_interface[h.bridge_port]} for name, h in self.hosts.items()
        }
        for name, port in self.shared.items():
            found[name] = {"up": by_interface[port.up_interface], "down": by_interface[port.down_interface]}
        return found

    def bottlenecks(self, home: str, direction: str) -> list[str]:
        """Interfaces whose queues a home's packets wait in: its own, then those that it shares."""
        own, server, shared = self.host(home), self.host(SERVER), self.shared.get(self.host(home).shared_link or "")
        if direction == "up":
            return [own.inner, *([shared.up_interface] if shared else []), server.bridge_port]
        return [own.bridge_port, *([shared.down_interface] if shared else []), server.inner]

    def queue(self, interface: str) -> QueueCounters:
        """Counters of one bottleneck."""
        with self._lock:
            return QueueReader(self._route, {}).read_one(self._indexes[interface])

    # Running programs

    def argv(self, host: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in a host."""
        return namespaces.argv_in(self.host(host).netns, argv)

    def run(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess:
        """subprocess.run in a host; text output is captured unless told otherwise."""
        return namespaces.run_in(self.host(host).netns, argv, **options)

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen:
        """subprocess.Popen in a host, in a process group of its own; clean-up finds it by its namespace."""
        return subprocess.Popen(self.argv(host, argv), **{"start_new_session": True, **options})

    def enter(self, host: str) -> None:
        """Move the calling thread (in a forked child: the process) into a host's network namespace."""
        namespaces.enter_namespace(self.host(host).netns)

    def tc(self, lines: Sequence[str]) -> None:
        """Apply further tc commands in the run's own namespace, and list them. Raises TestbedError."""
        with self._lock:
            self._tc.run(lines)
            self._note(f"tc -n {self.net_namespace} ", lines)

    def _note(self, prefix: str, lines: Sequence[str]) -> None:
        room = COMMANDS_MAX - len(self.commands)
        self.commands += [prefix + line for line in lines[: max(0, room)]]
        self.changes_not_listed += len(lines) - max(0, min(room, len(lines)))
