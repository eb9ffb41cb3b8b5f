"""The network of a run as data: hosts, interfaces and the commands that make them. Pure; needs no root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.cluster import Link, Topology
from testbed.cluster.model import SERVER
from testbed.emulation.kernel import names, processors
from testbed.emulation.network import hosts as host_setup
from testbed.emulation.network import openvswitch, shaping
from testbed.emulation.network.hosts import HostPort, SharedPort
from testbed.emulation.network.openvswitch import Bridge
from testbed.errors import InputError, unknown
from testbed.scenario.network import NetworkSettings

PLACEHOLDER_ID = "xxxxxx"  # the run id in plans that are only shown
BRIDGE_PORTS_MAX = 1023  # a Linux bridge has no more
CORE = "core"
OUTSIDE_LINK = Link(20e9, 20e9)  # real bit/s: never a bottleneck
_VETH = "numtxqueues 1 numrxqueues 1"


@dataclass
class NetworkPlan:
    """What to make: namespaces; `ip_lines`, `bridge_lines`, `tc_lines` in `net_netns`; the hosts' own side.

    With switch 'ovs' the bridges and their ports come from Open vSwitch (testbed.emulation.network.openvswitch).
    """

    net_netns: str
    settings: NetworkSettings
    hosts: dict[str, HostPort]
    shared: dict[str, SharedPort] = field(default_factory=dict)
    bridges: list[Bridge] = field(default_factory=list)  # the core first
    ip_lines: list[str] = field(default_factory=list)
    bridge_lines: list[str] = field(default_factory=list)
    tc_lines: list[str] = field(default_factory=list)
    shapes: dict[str, shaping.Shape] = field(default_factory=dict)  # by interface

    @property
    def namespaces(self) -> list[str]:
        return [self.net_netns, *(host.netns for host in self.hosts.values())]

    def commands(self) -> list[str]:
        """Everything as one list of commands."""
        hosts = list(self.hosts.values())
        switch: list[str] = []
        if self.settings.switch == "ovs":
            switch = openvswitch.commands(self.net_netns, self.bridges)
        return [
            *(f"ip netns add {netns}" for netns in self.namespaces),
            *processors.commands(self.net_netns),
            f"ip netns exec {self.net_netns} sysctl -w net.ipv6.conf.all.disable_ipv6=1",
            *(f"ip -n {self.net_netns} {line}" for line in self.ip_lines),
            *switch,
            *(f"bridge -n {self.net_netns} {line}" for line in self.bridge_lines),
            *(f"tc -n {self.net_netns} {line}" for line in self.tc_lines),
            *(line for host in hosts for line in host_setup.setup_commands(host, hosts, self.settings)),
        ]

    # The builders below are called once, by make_plan, in their order.

    def _add_bridge(self, name: str) -> Bridge:
        bridge = Bridge(name, names.bridge(len(self.bridges)))
        self.bridges.append(bridge)
        if self.settings.switch == "bridge":
            self.ip_lines.append(
                f"link add {bridge.interface} up{self._mtu} type bridge stp_state 0 forward_delay 0 "
                "mcast_snooping 0 ageing_time 100000000"
            )
        return bridge

    @property
    def _mtu(self) -> str:
        return f" mtu {self.settings.mtu}" if self.settings.mtu != 1500 else ""

    def _add_pair(self, member: str, bridge: Bridge, other: str, other_bridge: Bridge | None = None) -> None:
        """A veth pair whose first end, and perhaps second, is a member of a bridge."""
        masters = ["", ""]
        for i, (end, of) in enumerate(((member, bridge), (other, other_bridge))):
            if of is not None:
                of.ports.append(end)
                masters[i] = f" master {of.interface}" if self.settings.switch == "bridge" else ""
        self.ip_lines += [
            f"link add {member} up{masters[0]}{self._mtu} {_VETH} type veth peer name {other}{self._mtu} {_VETH}",
            f"link set {other}{masters[1]} up",
        ]

    def _add_shared_links(self, topology: Topology, core: Bridge) -> dict[str, tuple[Bridge, str]]:
        """Each shared link's bridge, and the core's port towards it."""
        found: dict[str, tuple[Bridge, str]] = {}
        for index, link in enumerate(topology.shared_links, start=1):
            if link.name in self.hosts or link.name in found or link.name == CORE:
                raise _taken(topology, "neighbourhood", link.name)
            up, down = names.shared_up(index), names.shared_down(index)
            found[link.name] = self._add_bridge(link.name), down
            self.shared[link.name] = SharedPort(
                link.name, link.members, link.delay_s, names.netns_path(self.net_netns), up, down
            )
            self.shapes[up], self.shapes[down] = link_shapes(link.name, link, self.settings)
            self._add_pair(down, core, up, found[link.name][0])
            self.tc_lines += shaping.shared_link(up, down, self.shapes[up], self.shapes[down])
        return found

    def _add_access_link(self, host: HostPort, link: Link, core: Bridge, shared: tuple[Bridge, str] | None) -> None:
        up, down = link_shapes(host.name, link, self.settings)
        self.shapes[host.inner], self.shapes[host.bridge_port] = up, down
        self.ip_lines.append(
            f"link add {host.port} up{self._mtu} {_VETH} type veth peer name {host.interface} "
            f"address {host.mac}{self._mtu} {_VETH} gso_max_segs 1 netns {host.netns}"
        )
        bridge, port_at_core = shared or (core, host.bridge_port)
        self._add_pair(host.bridge_port, bridge, host.inner)
        bridge.macs[host.mac] = host.bridge_port
        core.macs[host.mac] = port_at_core
        if self.settings.switch == "bridge":
            self.ip_lines.append(f"link set {host.bridge_port} type bridge_slave flood off learning off")
        self.tc_lines += shaping.access_link(host.port, host.inner, host.bridge_port, up, down)


def _taken(topology: Topology, kind: str, name: str) -> InputError:
    return InputError(f"topology {topology.name}", f"{kind} {name!r}: the name is taken; expected another")


def _hosts(run_id: str, topology: Topology, outside: str | None) -> dict[str, HostPort]:
    behind = {home: shared.name for shared in topology.shared_links for home in shared.members}
    hosts: dict[str, HostPort] = {}
    for index, name in enumerate((SERVER, *topology.homes, *([outside] if outside else []))):
        if name in hosts or name == CORE:
            raise _taken(topology, "home", name)
        hosts[name] = HostPort(
            name=name,
            netns=names.namespace(run_id, name),
            interface=names.host_interface(index),
            ip=names.ip(index),
            mac=names.mac(index),
            index=index,
            shared_link=behind.get(name),
            net_netns=names.net_namespace(run_id),
        )
    return hosts


def link_shapes(name: str, link, settings: NetworkSettings) -> tuple[shaping.Shape, shaping.Shape]:
    """(uplink, downlink) bottlenecks of a Link or SharedLink.

    Raises:
        InputError: a rate that isn't positive.
    """
    shapes = []
    for direction, rate_bps in (("uplink", link.uplink_bps), ("downlink", link.downlink_bps)):
        try:
            shapes.append(
                shaping.shape(
                    rate_bps,
                    settings.buffer_s,
                    settings.mtu,
                    shaping.default_burst_s(),
                    settings.queue,
                    settings.queue_interval_s,
                )
            )
        except ValueError as error:
            raise InputError(f"link of {name}, {direction}", str(error)) from None
    return shapes[0], shapes[1]


def make_plan(run_id: str, topology: Topology, links: Mapping[str, Link], settings: NetworkSettings) -> NetworkPlan:
    """Plan the network of `topology`, with `links` for the homes (rates as TCP goodput, real bit/s).

    Raises:
        InputError: a home without a link, a name that is taken, a rate that isn't positive, too many homes.
    """
    where = f"topology {topology.name}"
    if len(topology.homes) + bool(settings.outside) > names.MAX_HOMES:
        raise InputError(where, f"{len(topology.homes)} homes; expected {names.MAX_HOMES} at most")
    for name in links:
        if name not in topology.homes:
            raise unknown("links", "home", name, topology.homes)
    plan = NetworkPlan(names.net_namespace(run_id), settings, _hosts(run_id, topology, settings.outside))
    core = plan._add_bridge(CORE)
    shared = plan._add_shared_links(topology, core)
    for name, host in plan.hosts.items():
        link = {SERVER: topology.server_link, settings.outside: OUTSIDE_LINK}.get(name) or links.get(name)
        if link is None:
            raise InputError(f"links of {where}", f"home {name!r} has none; expected one for each home")
        plan._add_access_link(host, link, core, shared.get(host.shared_link))
    for bridge in plan.bridges:
        if len(bridge.ports) > BRIDGE_PORTS_MAX:
            raise InputError(
                where,
                f"{len(bridge.ports)} links meet at {bridge.name!r}; expected {BRIDGE_PORTS_MAX} at most",
                hint="put homes into neighbourhoods (kind: two-level)",
            )
        if settings.switch == "bridge":
            plan.bridge_lines += [f"fdb replace {mac} dev {port} master static" for mac, port in bridge.macs.items()]
    return plan


def plan_commands(topology: Topology, links: Mapping[str, Link], settings: NetworkSettings) -> list[str]:
    """The commands that would be applied, with a placeholder for the run id. Needs no root."""
    return make_plan(PLACEHOLDER_ID, topology, links, settings).commands()
