"""Mininet's objects on a network that is already built: hosts with lazy shells, switches, links.

Mininet itself makes an interface, an address or a qdisc with one shell command each, and a shell a host;
here they only describe what is there, so `mininet.cli.CLI(network.net)` and code written for Mininet's API
find what they expect.
"""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Mapping
from typing import Any, Protocol

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Node, Switch

from testbed.emulation.kernel import names
from testbed.emulation.kernel.namespaces import argv_in
from testbed.emulation.network.hosts import HostPort, SharedPort
from testbed.emulation.network.plan import NetworkPlan

_PROMPT = chr(127)  # Mininet's mark for the end of a command's output


class NamespaceNode(Node):
    """A Mininet node in a named network namespace; its shell starts with the first command."""

    def __init__(self, name: str, netns: str, **params: Any):
        self.netns = netns
        self._constructing = True
        super().__init__(name, **params)
        self._constructing = False

    def startShell(self, mnopts: str | None = None) -> None:
        """Start the shell; not when Node's constructor asks, for there may be hundreds of hosts."""
        if self._constructing or self.shell:
            return
        self.master, self.slave = pty.openpty()
        self.shell = self._popen(
            [
                "ip",
                "netns",
                "exec",
                self.netns,
                "env",
                f"PS1={_PROMPT}",
                "bash",
                "--norc",
                "--noediting",
                "-is",
                f"testbed:{self.name}",
            ],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )
        self.stdin = os.fdopen(self.master, "r")
        self.stdout = self.stdin
        self.pid = self.shell.pid
        self.pollOut = select.poll()
        self.pollOut.register(self.stdout)
        self.outToNode[self.stdout.fileno()] = self
        self.inToNode[self.stdin.fileno()] = self
        self.execed, self.lastCmd, self.lastPid, self.readbuf = False, None, None, ""
        while not self.read(1024).endswith(_PROMPT):
            self.pollOut.poll()
        self.waiting = False
        self.cmd("unset HISTFILE; stty -echo; set +m")

    def sendCmd(self, *args: Any, **kwargs: Any) -> Any:
        self.startShell()
        return super().sendCmd(*args, **kwargs)

    def cmd(self, *args: Any, **kwargs: Any) -> str:
        self.startShell()
        return super().cmd(*args, **kwargs)

    def popen(self, *args: Any, **kwargs: Any) -> Any:
        """As Node.popen, without needing a shell to be there."""
        return super().popen(*args, **{"mncmd": argv_in(self.netns, []), "start_new_session": True, **kwargs})

    def cleanup(self) -> None:
        if self.shell:
            self.outToNode.pop(self.stdout.fileno(), None)
            self.inToNode.pop(self.stdin.fileno(), None)
        super().cleanup()

    @classmethod
    def setup(cls) -> None:
        """Nothing of Mininet's own programs is needed."""


class EmulatedHost(NamespaceNode):
    """A home's device, or the server."""


class EmulatedSwitch(NamespaceNode, Switch):
    """A bridge in the run's own namespace; several share it."""

    def __init__(self, name: str, netns: str, interface: str, **params: Any):
        self.interface = interface
        super().__init__(name, netns, **{**params, "inNamespace": True})
        self.controlIntf = None

    def start(self, _controllers: Any = None) -> None:
        self.cmd(f"ip link set {self.interface} up")

    def stop(self, deleteIntfs: bool = False) -> None:
        self.cmd(f"ip link set {self.interface} down")

    def dpctl(self, *args: str) -> str:
        """Mininet's LinuxBridge runs brctl here; so does this."""
        return self.cmd("brctl", *args)


class EmulatedIntf(Intf):
    """An interface that exists already."""

    def __init__(self, name: str, ip: str | None = None, **params: Any):
        super().__init__(name, **{"moveIntfFn": lambda *_: None, **params})
        if ip:
            self.ip, self.prefixLen = ip, names.SUBNET_BITS

    def config(self, **_: Any) -> dict:
        return {}

    def delete(self) -> None:
        """The network deletes its namespaces, and with them everything."""


class EmulatedLink(Link):
    """An access link or a shared link; docs/network.md shows what lies between its two interfaces."""

    @classmethod
    def makeIntfPair(cls, *_args: Any, **_kwargs: Any) -> None:
        """Both interfaces exist already."""

    def delete(self) -> None:
        """See EmulatedIntf.delete."""


class Network(Protocol):
    """What `build` needs of an EmulatedNetwork."""

    hosts: Mapping[str, HostPort]
    shared: Mapping[str, SharedPort]
    net_namespace: str
    plan: NetworkPlan

    def link_up(self, name: str) -> None: ...
    def link_down(self, name: str) -> None: ...


class EmulatedMininet(Mininet):
    """`mininet.net.Mininet` for a network that `EmulatedNetwork` starts and stops."""

    def __init__(self, network: Network):
        # Mininet's constructor first calls Mininet.init, which sets a dozen sysctls of the whole machine (TCP
        # buffers, ARP limits, …) and leaves them so. Nothing here needs them.
        Mininet.inited = True
        super().__init__(
            topo=None,
            switch=EmulatedSwitch,
            host=EmulatedHost,
            controller=None,
            link=EmulatedLink,
            intf=EmulatedIntf,
            build=False,
            ipBase=f"10.0.0.0/{names.SUBNET_BITS}",
        )
        self.network = network
        self.built = True

    def start(self) -> None:
        """Everything runs already."""

    def stop(self) -> None:
        """End the nodes' shells; the network itself ends with EmulatedNetwork.stop."""
        for node in (*self.hosts, *self.switches):
            node.terminate()

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:
        """`link h1 core down` cuts the whole access link, as EmulatedNetwork.link_down does."""
        for name in (src, dst):
            if name in self.network.hosts:
                (self.network.link_up if status == "up" else self.network.link_down)(name)


def build(network: Network) -> Mininet:
    """The Mininet object of a started network."""
    net = EmulatedMininet(network)
    ports = {}
    for number, bridge in enumerate(network.plan.bridges, start=1):
        net.addSwitch(bridge.name, netns=network.net_namespace, interface=bridge.interface, dpid=f"{number:x}")
        ports.update({port: (bridge.name, i) for i, port in enumerate(bridge.ports, start=1)})
    for host in network.hosts.values():
        net.addHost(host.name, netns=host.netns, ip=f"{host.ip}/{names.SUBNET_BITS}", mac=host.mac)
        switch, port = ports[host.bridge_port]
        net.addLink(
            host.name,
            switch,
            port1=0,
            port2=port,
            intfName1=host.interface,
            intfName2=host.bridge_port,
            addr1=host.mac,
            params1={"ip": host.ip},
        )
    for link in network.shared.values():
        (near, near_port), (core, core_port) = ports[link.up_interface], ports[link.down_interface]
        net.addLink(
            near, core, port1=near_port, port2=core_port, intfName1=link.up_interface, intfName2=link.down_interface
        )
    return net
