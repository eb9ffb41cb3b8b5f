"""Hosts: where each one meets the network, and how its own namespace is set up."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.kernel import names, netlink, trying
from testbed.emulation.kernel.namespaces import in_thread, inside
from testbed.errors import unknown
from testbed.scenario.network import NetworkSettings

# Up to this many hosts, each has an entry for every other: 0.5 kB of kernel memory a pair and direction.
FULL_MESH_MAX = 400
TCP_BUFFERS = {"tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"}  # least, first, most [bytes]
RTO_MAX_MS = 1000, 120_000  # what Linux takes (Documentation/networking/ip-sysctl.rst)
_SYSCTL = Path("/proc/sys/net")  # shows the network namespace of the thread that looks


@dataclass(frozen=True)
class HostPort:
    """One host (a home's device, or the server) and its access link.

    In the namespace `netns`: `interface`. In the run's own namespace: `port` (the far end of that veth),
    `inner` (its egress is the uplink's bottleneck) and `bridge_port` (its egress is the downlink's
    bottleneck).
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
        name=host.name,
        mac=host.mac,
        netns=host.netns_path,
        interface=host.interface,
        net_netns=names.netns_path(host.net_netns),
        port=host.port,
        bridge_port=host.bridge_port,
        ifb=names.ifb(host.index),
    )


def neighbours_of(host: HostPort, hosts: Sequence[HostPort]) -> list[HostPort]:
    """Whom a host has ARP entries for: all others; beyond FULL_MESH_MAX, a home has only the server's."""
    if len(hosts) <= FULL_MESH_MAX or host.index == 0:
        return [other for other in hosts if other is not host]
    return [other for other in hosts if other.index == 0]


def setup_commands(host: HostPort, hosts: Sequence[HostPort], settings: NetworkSettings) -> list[str]:
    """What `set_up` does, as commands: for the manifest and for --dry-run."""
    others = neighbours_of(host, hosts)
    ip, dev = f"ip -n {host.netns}", f"dev {host.interface}"
    lines = [
        f"ip netns exec {host.netns} sysctl -w net.ipv6.conf.all.disable_ipv6=1",
        *(f"ip netns exec {host.netns} sysctl -w 'net.ipv4.{name}={value}'" for name, value in TCP_BUFFERS.items()),
        f"ip netns exec {host.netns} sysctl -e -w net.ipv4.tcp_rto_max_ms={_rto_max_ms(settings)}",
        f"{ip} link set lo up",
        f"{ip} link set {host.interface} up",
        f"{ip} addr add {host.ip}/{names.SUBNET_BITS} {dev} noprefixroute",
        f"{ip} route replace 10.0.0.0/{names.SUBNET_BITS} {dev} proto kernel scope link src {host.ip} "
        f"congctl {settings.congestion_control} rto_min {round(1e3 * settings.rto_min_s)}ms",
        f"ip netns exec {host.netns} sysctl -w net.ipv4.ip_forward=0",
        f"{ip} route replace default "
        + (f"via {names.ip(0)} {dev} src {host.ip}" if host.index else f"dev lo scope link src {host.ip}"),
    ]
    if others:
        lines.append(f"{ip} neigh replace {others[0].ip} lladdr {others[0].mac} {dev} nud permanent")
    if len(others) > 1:
        lines[-1] += f"  # and so for all {len(others)} others; a MAC is 02:00 and the address"
    return lines


def drop_what_is_not_emulated() -> None:
    """The server is every home's way to the internet, and passes nothing on, whatever this machine does."""
    (_SYSCTL / "ipv4/ip_forward").write_text("0")


def set_tcp_buffers() -> None:
    """Linux's own defaults, whatever this machine was tuned to: a window that differs would change every result."""
    for name, value in TCP_BUFFERS.items():
        (_SYSCTL / f"ipv4/{name}").write_text(value)


def _rto_max_ms(settings: NetworkSettings) -> int:
    least, most = RTO_MAX_MS
    return round(min(max(1e3 * settings.rto_max_s, least), most))


def cap_retransmission_timeout(settings: NetworkSettings) -> None:
    """So TCP resumes soon after a link is back. Nothing to do where the kernel has no such setting (before 6.15)."""
    path = _SYSCTL / "ipv4/tcp_rto_max_ms"
    if path.exists():
        path.write_text(str(_rto_max_ms(settings)))


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


def require_congestion_control(name: str, where: str = "network.congestion_control", *, load: bool = False) -> None:
    """Raises InputError, with the choices, when this kernel has no such congestion control, nor a module of it.

    load: load the module, which needs root; without, that there is one will do, and nothing changes.
    """
    known = trying.congestion_controls()
    if name in known or (not known and not load):  # a kernel that doesn't tell is asked once it is used
        return
    modprobe = shutil.which("modprobe", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "modprobe"
    only_look = [] if load else ["-n"]
    if not name.isalnum() or not trying.command(modprobe, "-q", *only_look, f"tcp_{name}").available:
        raise unknown(where, "congestion control", name, known)


def set_up(hosts: Iterable[HostPort], settings: NetworkSettings) -> None:
    """Address, route, ARP entries and loopback of each host, whose namespace and interface exist.

    The congestion control is an attribute of the route, not the namespace's sysctl: that one takes only
    names that the whole machine allows to everyone (tcp_allowed_congestion_control), a setting which is not
    ours to change. So is the least retransmission timeout, which also says when an idle connection starts slowly anew.

    Raises:
        OSError: the kernel refused something.
    """
    hosts = list(hosts)
    encoded: dict[tuple[int, int], bytes] = {}  # ARP entry of a host, by its index and the interface's

    def entry(interface: int, other: HostPort) -> bytes:
        key = interface, other.index
        if key not in encoded:
            encoded[key] = netlink.encode([netlink.neighbour(interface, other.ip, other.mac)])
        return encoded[key]

    def one(host: HostPort) -> None:
        with inside(host.netns), netlink.Route() as route:
            disable_ipv6()
            set_tcp_buffers()
            cap_retransmission_timeout(settings)
            drop_what_is_not_emulated()
            index = socket.if_nametoindex(host.interface)
            route.send(
                [
                    netlink.link_up(1),
                    netlink.link_up(index),
                    netlink.address(index, host.ip, names.SUBNET_BITS),
                    netlink.subnet_route(
                        index, host.ip, names.SUBNET_BITS, settings.congestion_control, settings.rto_min_s
                    ),
                    netlink.default_route(index, host.ip, names.ip(0))
                    if host.index
                    else netlink.default_route(1, host.ip, None),
                ]
            )
            arp = b"".join(entry(index, other) for other in neighbours_of(host, hosts))
            if arp:
                route.send([netlink.link_up(index)], arp)

    in_thread(lambda: [one(host) for host in hosts])
