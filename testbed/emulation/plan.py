"""The whole network of a run as data: hosts, interfaces and the commands that make them. Pure; needs no root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.cluster import Link, Topology
from testbed.cluster.model import SERVER
from testbed.emulation import hosts as host_setup
from testbed.emulation import names, shaping
from testbed.emulation.hosts import HostPort, SharedPort
from testbed.errors import InputError, unknown

PLACEHOLDER_ID = "xxxxxx"  # the run id in plans that are only shown
BRIDGE_PORTS_MAX = 1023  # a Linux bridge has no more
SWITCHES = ("bridge", "ovs")
DELAY_BACKENDS = ("nfqueue", "netem")
CORE = "core"
_VETH = "numtxqueues 1 numrxqueues 1"


@dataclass(frozen=True)
class NetworkSettings:
    """How the network is built, beside its topology.

    congestion_control: of every host's TCP. buffer_s: size of each bottleneck's buffer, in seconds at its rate.
    mtu: bytes of an IP packet, on every interface.
    """

    switch: str = "bridge"
    congestion_control: str = "cubic"
    buffer_s: float = 0.1
    delay_backend: str = "nfqueue"
    mtu: int = 1500

    def __post_init__(self):
        if self.switch not in SWITCHES:
            raise unknown("network.switch", "switch", self.switch, SWITCHES)
        if self.delay_backend not in DELAY_BACKENDS:
            raise unknown("network.delay_backend", "delay backend", self.delay_backend, DELAY_BACKENDS)
        if not 0 < self.buffer_s <= 60:
            raise InputError("network.buffer", f"{self.buffer_s} s; expected more than 0 and at most 60 seconds")
        if not 576 <= self.mtu <= 9000:
            raise InputError("network.mtu", f"{self.mtu}; expected 576 to 9000 bytes")


@dataclass(frozen=True)
class Bridge:
    """A switch. `name` is its node's name in Mininet, `interface` the bridge's; ports are its members.

    Where each host lies is told to the bridge, not learned: a frame to a host that is down, or hasn't spoken yet,
    would go out by every port and take capacity from every home.
    """

    name: str
    interface: str
    ports: tuple[str, ...]
    macs: dict[str, str]  # of hosts that lie behind a port: MAC -> port


@dataclass(frozen=True)
class NetworkPlan:
    """What to make, in order: namespaces; `ip_lines`, `bridge_lines`, `tc_lines` in `net_netns`; the hosts' own side.

    With switch 'ovs' the bridges and their ports come from Open vSwitch (testbed.emulation.openvswitch) instead of
    `bridge_lines`.
    """

    net_netns: str
    hosts: dict[str, HostPort]
    shared: dict[str, SharedPort]
    bridges: tuple[Bridge, ...]
    ip_lines: tuple[str, ...]
    bridge_lines: tuple[str, ...]
    tc_lines: tuple[str, ...]
    shapes: dict[str, shaping.Shape]  # by interface
    settings: NetworkSettings

    @property
    def namespaces(self) -> list[str]:
        return [self.net_netns, *(host.netns for host in self.hosts.values())]

    def commands(self) -> list[str]:
        """Everything as one list of commands."""
        hosts = list(self.hosts.values())
        return [
            *(f"ip netns add {netns}" for netns in self.namespaces),
            f"ip netns exec {self.net_netns} sysctl -w net.ipv6.conf.all.disable_ipv6=1",
            *(f"ip -n {self.net_netns} {line}" for line in self.ip_lines),
            *(f"bridge -n {self.net_netns} {line}" for line in self.bridge_lines),
            *(f"tc -n {self.net_netns} {line}" for line in self.tc_lines),
            *(line for host in hosts
              for line in host_setup.setup_commands(host, hosts, self.settings.congestion_control)),
        ]


def _hosts(run_id: str, topology: Topology) -> dict[str, HostPort]:
    behind = {home: shared.name for shared in topology.shared_links for home in shared.members}
    hosts: dict[str, HostPort] = {}
    for index, name in enumerate((SERVER, *topology.homes)):
        if name in hosts or name == CORE:
            raise InputError(f"topology {topology.name}", f"home {name!r}: the name is taken; expected another")
        hosts[name] = HostPort(
            name=name, netns=names.namespace(run_id, name), interface=names.host_interface(index), ip=names.ip(index),
            mac=names.mac(index), index=index, shared_link=behind.get(name), net_netns=names.net_namespace(run_id),
        )
    return hosts


def _shape(where: str, rate_bps: float, settings: NetworkSettings) -> shaping.Shape:
    try:
        return shaping.shape(rate_bps, settings.buffer_s, settings.mtu)
    except ValueError as error:
        raise InputError(where, str(error)) from None


def link_shapes(name: str, link: Link, settings: NetworkSettings) -> tuple[shaping.Shape, shaping.Shape]:
    """(uplink, downlink) bottlenecks of an access link or shared link. Raises InputError: a rate that isn't positive."""
    return (
        _shape(f"link of {name}, uplink", link.uplink_bps, settings),
        _shape(f"link of {name}, downlink", link.downlink_bps, settings),
    )


def make_plan(run_id: str, topology: Topology, links: Mapping[str, Link], settings: NetworkSettings) -> NetworkPlan:
    """Plan the network of `topology`, with `links` for the homes (rates as TCP goodput, real bit/s).

    Raises:
        InputError: a home without a link, a name that is taken, a rate that isn't positive, too many homes.
    """
    if len(topology.homes) > names.MAX_HOMES:
        raise InputError(f"topology {topology.name}",
                         f"{len(topology.homes)} homes; expected {names.MAX_HOMES} at most")
    for name in links:
        if name not in topology.homes:
            raise unknown("links", "home", name, topology.homes)
    hosts = _hosts(run_id, topology)
    net_netns = names.net_namespace(run_id)
    mtu = f" mtu {settings.mtu}" if settings.mtu != 1500 else ""
    core = names.bridge(0)
    ports: dict[str, list[str]] = {core: []}
    macs: dict[str, dict[str, str]] = {core: {}}
    bridge_names = {core: CORE}
    of_shared: dict[str, tuple[str, str]] = {}  # shared link -> its bridge, its port at the core
    shared: dict[str, SharedPort] = {}
    shapes: dict[str, shaping.Shape] = {}
    ip_lines: list[str] = []
    tc_lines: list[str] = []
    switched = settings.switch == "bridge"

    def pair(member: str, bridge: str, other: str, other_bridge: str | None = None) -> None:
        """A veth pair whose first end is a member of a bridge."""
        ports[bridge].append(member)
        master = f" master {bridge}" if switched else ""
        ip_lines.append(f"link add {member} up{master}{mtu} {_VETH} type veth peer name {other}{mtu} {_VETH}")
        other_master = f" master {other_bridge}" if switched and other_bridge else ""
        ip_lines.append(f"link set {other}{other_master} up")
        if other_bridge:
            ports[other_bridge].append(other)

    for index, link in enumerate(topology.shared_links, start=1):
        bridge, up, down = names.bridge(index), names.shared_up(index), names.shared_down(index)
        if link.name in hosts or link.name in of_shared or link.name == CORE:
            raise InputError(f"topology {topology.name}", f"neighbourhood {link.name!r}: the name is taken")
        of_shared[link.name], bridge_names[bridge], ports[bridge], macs[bridge] = (bridge, down), link.name, [], {}
        shared[link.name] = SharedPort(link.name, link.members, link.delay_s, names.netns_path(net_netns), up, down)
        shapes[up], shapes[down] = link_shapes(
            link.name, Link(uplink_bps=link.uplink_bps, downlink_bps=link.downlink_bps), settings)
        pair(down, core, up, bridge)
        tc_lines += shaping.shared_link(up, down, shapes[up], shapes[down])
    for name, host in hosts.items():
        link = topology.server_link if name == SERVER else links.get(name)
        if link is None:
            raise InputError(f"links of topology {topology.name}", f"home {name!r} has no link; expected one for each")
        shapes[host.inner], shapes[host.bridge_port] = link_shapes(name, link, settings)
        ip_lines.append(
            f"link add {host.port} up{mtu} {_VETH} type veth peer name {host.interface} address {host.mac}{mtu} "
            f"{_VETH} gso_max_segs 1 netns {host.netns}"
        )
        bridge = core
        if host.shared_link:
            bridge, macs[core][host.mac] = of_shared[host.shared_link]
        macs[bridge][host.mac] = host.bridge_port
        pair(host.bridge_port, bridge, host.inner)
        if switched:
            ip_lines.append(f"link set {host.bridge_port} type bridge_slave flood off learning off")
        tc_lines += shaping.access_link(
            host.port, host.inner, host.bridge_port, shapes[host.inner], shapes[host.bridge_port])
    for bridge, members in ports.items():
        if len(members) > BRIDGE_PORTS_MAX:
            raise InputError(
                f"topology {topology.name}", f"{len(members)} links meet at {bridge_names[bridge]!r}; expected "
                f"{BRIDGE_PORTS_MAX} at most", hint="put homes into neighbourhoods (kind: two-level)")
    if switched:
        ip_lines[:0] = [f"link add {bridge} up{mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0 "
                        "ageing_time 100000000" for bridge in ports]
    bridge_lines = [f"fdb replace {mac} dev {port} master static"
                    for places in macs.values() for mac, port in places.items()] if switched else []
    return NetworkPlan(
        net_netns=net_netns, hosts=hosts, shared=shared,
        bridges=tuple(Bridge(bridge_names[b], b, tuple(members), macs[b]) for b, members in ports.items()),
        ip_lines=tuple(ip_lines), bridge_lines=tuple(bridge_lines), tc_lines=tuple(tc_lines), shapes=shapes, settings=settings,
    )


def plan_commands(topology: Topology, links: Mapping[str, Link], settings: NetworkSettings) -> list[str]:
    """The commands that would be applied, with a placeholder for the run id. Needs no root."""
    return make_plan(PLACEHOLDER_ID, topology, links, settings).commands()
