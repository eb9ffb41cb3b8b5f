"""Hosts: where each one meets the network, and how its own namespace is set up."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation import names, netlink
from testbed.emulation.namespaces import in_thread, inside

# Entries for every other host up to this many hosts: they cost 0.5 kB of kernel memory each, all pairs of them.
FULL_MESH_MAX = 400
_SYSCTL = Path("/proc/sys/net")  # shows the network namespace of the thread that looks


@dataclass(frozen=True)
class HostPort:
    """One host (a home's device, or the server) and its access link.

    In the namespace `netns`: `interface`. In the run's own namespace: `port` (the far end of that veth), `inner`
    (its egress is the uplink's bottleneck) and `bridge_port` (its egress is the downlink's bottleneck).
    """

    name: str
    netns: str  # name, as for `ip netns exec`
    interface: str
    ip: str
    mac: str
    index: int  # 0 is the server
    shared_link: str | None  # the one that the host is behind
    net_netns: str  # name of the run's own namespace

    @property
    def netns_path(self) -> str:
        return names.netns_path(self.netns)

    @property
    def port(self) -> str:
        return names.port(self.index)

    @property
    def inner(self) -> str:
        return names.inner(self.index)

    @property
    def bridge_port(self) -> str:
        return names.bridge_port(self.index)


@dataclass(frozen=True)
class DelayPort:
    """A host as delay backends see it (testbed.emulation.delay.base.HostPort): namespaces by path."""

    name: str
    mac: str
    netns: str
    interface: str
    net_netns: str
    port: str
    bridge_port: str
    ifb: str


@dataclass(frozen=True)
class SharedPort:
    """A shared link (testbed.emulation.delay.base.SharedPort)."""

    name: str
    members: tuple[str, ...]
    delay_s: float
    net_netns: str
    up_interface: str
    down_interface: str


def delay_port(host: HostPort) -> DelayPort:
    return DelayPort(
        name=host.name, mac=host.mac, netns=host.netns_path, interface=host.interface,
        net_netns=names.netns_path(host.net_netns), port=host.port, bridge_port=host.bridge_port,
        ifb=names.ifb(host.index),
    )


def neighbours_of(host: HostPort, hosts: Sequence[HostPort]) -> list[HostPort]:
    """Those that a host has permanent ARP entries for: all others, or (beyond FULL_MESH_MAX) server and homes."""
    if len(hosts) <= FULL_MESH_MAX or host.index == 0:
        return [other for other in hosts if other is not host]
    return [other for other in hosts if other.index == 0]


def setup_commands(host: HostPort, hosts: Sequence[HostPort], congestion_control: str) -> list[str]:
    """What `set_up` does, as commands: for the manifest and for --dry-run."""
    others = neighbours_of(host, hosts)
    arp = (
        f"ip -n {host.netns} neigh replace {others[0].ip} lladdr {others[0].mac} dev {host.interface} nud permanent"
        + (f"  # and so for each of {len(others)} others; the MAC is 02:00 and the address" if others[1:] else "")
    ) if others else ""
    return [line for line in (
        f"ip netns exec {host.netns} sysctl -w net.ipv6.conf.all.disable_ipv6=1",
        f"ip -n {host.netns} link set lo up",
        f"ip -n {host.netns} link set {host.interface} up",
        f"ip -n {host.netns} addr add {host.ip}/{names.SUBNET_BITS} dev {host.interface} noprefixroute",
        f"ip -n {host.netns} route replace 10.0.0.0/{names.SUBNET_BITS} dev {host.interface} proto kernel scope link "
        f"src {host.ip} congctl {congestion_control}",
        arp,
    ) if line]


def disable_ipv6() -> None:
    """In the calling thread's network namespace; nothing to do where the kernel has no IPv6."""
    for scope in ("all", "default"):
        with contextlib.suppress(FileNotFoundError):
            (_SYSCTL / f"ipv6/conf/{scope}/disable_ipv6").write_text("1")


def disable_ipv6_in(netns: str) -> None:
    def there() -> None:
        with inside(netns):
            disable_ipv6()

    in_thread(there)


def set_up(hosts: Iterable[HostPort], congestion_control: str) -> None:
    """Address, route, ARP entries and loopback of each host, whose namespace and interface exist.

    The congestion control is an attribute of the route, not the namespace's sysctl: that one takes only names that
    the whole machine allows to everyone (tcp_allowed_congestion_control), a setting which is not ours to change.

    Raises:
        OSError: the kernel refused something.
    """
    hosts = list(hosts)
    entries: dict[int, tuple[bytes, int]] = {}  # by interface index (the same nearly everywhere): all, size of one

    def one(host: HostPort) -> None:
        with inside(host.netns), netlink.Route() as route:
            disable_ipv6()
            index = socket.if_nametoindex(host.interface)
            if len(hosts) <= FULL_MESH_MAX:
                if index not in entries:
                    every = netlink.encode(netlink.neighbour(index, h.ip, h.mac) for h in hosts)
                    entries[index] = every, len(every) // len(hosts)
                every, size = entries[index]
                at = place[host.index] * size
                arp = every[:at] + every[at + size:]
            else:
                arp = netlink.encode(netlink.neighbour(index, h.ip, h.mac) for h in neighbours_of(host, hosts))
            route.send(
                [
                    netlink.link_up(1),
                    netlink.link_up(index),
                    netlink.address(index, host.ip, names.SUBNET_BITS),
                    netlink.subnet_route(index, host.ip, names.SUBNET_BITS, congestion_control),
                ]
            )
            if arp:
                route.send([netlink.link_up(index)], arp)

    place = {host.index: i for i, host in enumerate(hosts)}
    in_thread(lambda: [one(host) for host in hosts])
