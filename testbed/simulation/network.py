"""Nodes behind access links, and the connections between them: messages in, messages out at their time.

A path is the sender's uplink, its neighbourhood's uplink and the receiver's neighbourhood's downlink (unless it is the
same neighbourhood), and the receiver's downlink. Rates are TCP goodput, as in experiment files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from testbed.cluster import Link as AccessLink
from testbed.cluster import SharedLink
from testbed.runtime.virtual_time import VirtualLoop
from testbed.simulation.connection import Connection
from testbed.simulation.flow import Link
from testbed.simulation.fluid import FluidNetwork


@dataclass
class Port:
    """A node's own link: both directions' rates are in `up` and `down`; delays one-way; loss of each direction."""

    name: str
    up: Link
    down: Link
    up_delay_s: float = 0.0
    down_delay_s: float = 0.0
    sigma_s: float = 0.0  # deviation of each one-way delay
    up_loss: float = 0.0
    down_loss: float = 0.0
    shared_up: Link | None = None
    shared_down: Link | None = None
    shared_delay_s: float = 0.0
    cut: bool = False


@dataclass(frozen=True)
class PortSettings:
    """What a link is set to, in the emulation's terms: bit/s of goodput, s, probabilities a direction."""

    up_bps: float
    down_bps: float
    up_delay_s: float
    down_delay_s: float
    sigma_s: float = 0.0
    up_loss: float = 0.0
    down_loss: float = 0.0

    @classmethod
    def of(cls, link: AccessLink) -> PortSettings:
        """A planner's link, without jitter and loss."""
        return cls(link.uplink_bps, link.downlink_bps, link.uplink_delay_s, link.downlink_delay_s)


class Network:
    """The links of all nodes, and the connections over them.

    Args:
        ports: each node's settings at the start, the server's among them.
        shared: neighbourhoods.
        buffer_s: bottleneck buffers, as time at the link's rate.
        seed: of jitter and loss.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        ports: dict[str, PortSettings],
        shared: Iterable[SharedLink] = (),
        *,
        buffer_s: float = 0.1,
        seed: int = 0,
    ):
        self.loop = loop
        self.fluid = FluidNetwork(loop)
        self.buffer_s = buffer_s
        self.random = random.Random(seed)
        self.ports = {name: Port(name, Link(f"{name} up", 0.0), Link(f"{name} down", 0.0)) for name in ports}
        for s in shared:
            up, down = Link(f"{s.name} up", s.uplink_bps / 8), Link(f"{s.name} down", s.downlink_bps / 8)
            for member in s.members:
                port = self.ports[member]
                port.shared_up, port.shared_down, port.shared_delay_s = up, down, s.delay_s
        self._connections: dict[str, dict[Connection, None]] = {name: {} for name in ports}
        for name, settings in ports.items():
            self.set_port(name, settings)
        self._starting: list[Connection] = []

    # -- links -------------------------------------------------------------------------

    def set_port(self, name: str, s: PortSettings) -> None:
        """Change a node's link in place."""
        port = self.ports[name]
        port.up_delay_s, port.down_delay_s, port.sigma_s = s.up_delay_s, s.down_delay_s, s.sigma_s
        port.up_loss, port.down_loss = s.up_loss, s.down_loss
        self.fluid.set_rate(port.up, s.up_bps / 8)
        self.fluid.set_rate(port.down, s.down_bps / 8)
        for connection in self._connections[name]:
            connection.path_changed()

    def cut(self, name: str) -> None:
        """Nothing crosses the node's link from now on."""
        self.ports[name].cut = True
        for connection in list(self._connections[name]):
            connection.cut()

    def mend(self, name: str) -> None:
        self.ports[name].cut = False
        for connection in list(self._connections[name]):
            connection.mend()

    # -- paths -------------------------------------------------------------------------

    def path(self, source: str, to: str) -> tuple[Link, ...]:
        a, b = self.ports[source], self.ports[to]
        if a.shared_up is b.shared_up:
            return (a.up, b.down)
        return tuple(x for x in (a.up, a.shared_up, b.shared_down, b.down) if x is not None)

    def delay_s(self, source: str, to: str) -> float:
        """One-way delay of the way, queues apart."""
        a, b = self.ports[source], self.ports[to]
        delay = a.up_delay_s + b.down_delay_s
        return delay if a.shared_up is b.shared_up else delay + a.shared_delay_s + b.shared_delay_s

    def rtt_s(self, source: str, to: str) -> float:
        return self.delay_s(source, to) + self.delay_s(to, source)

    def loss(self, source: str, to: str) -> float:
        """Probability that a packet is lost on the way."""
        return 1 - (1 - self.ports[source].up_loss) * (1 - self.ports[to].down_loss)

    def sigma_s(self, source: str, to: str) -> float:
        a, b = self.ports[source].sigma_s, self.ports[to].sigma_s
        return (a * a + b * b) ** 0.5 if a or b else 0.0

    def is_cut(self, source: str, to: str) -> bool:
        return self.ports[source].cut or self.ports[to].cut

    # -- connections ---------------------------------------------------------------------

    def connect(self, source: str, to: str, deliver: Callable) -> Connection:
        """A new connection for messages from `source` to `to`; `deliver(item)` is called for each that arrives."""
        connection = Connection(self, source, to, deliver)
        self._connections[source][connection] = None
        self._connections[to][connection] = None
        return connection

    def forget(self, connection: Connection) -> None:
        self._connections[connection.source].pop(connection, None)
        self._connections[connection.to].pop(connection, None)

    def begins(self, connection: Connection) -> None:
        """A connection has something to send and was idle: its pause is known at the instant's end."""
        self._starting.append(connection)

    def settle(self) -> None:
        """The end of an instant."""
        if self._starting:
            starting, self._starting = self._starting, []
            if len(starting) == 1:
                share = starting[0].flow.limit
                for link in starting[0].flow.path:
                    part = link.rate / (len(link.flows) + 1)
                    if part < share:
                        share = part
                starting[0].begin(share)
            else:
                self._begin_all(starting)
        self.fluid.settle()

    @staticmethod
    def _begin_all(starting: list[Connection]) -> None:
        coming: dict[Link, int] = {}
        for connection in starting:
            for link in connection.flow.path:
                coming[link] = coming.get(link, len(link.flows)) + 1
        for connection in starting:
            share = connection.flow.limit
            for link in connection.flow.path:
                part = link.rate / coming[link]
                if part < share:
                    share = part
            connection.begin(share)
