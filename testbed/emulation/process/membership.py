"""Membership with leases and generations over datagrams: who is in, as the server's failure detector sees it.

Devices send heartbeats to the server over the emulated link; the server answers each with an echo, which
renews the device's lease and brings what the device's view lacks. Nothing is acknowledged or sent again on a
timer: a heartbeat says what the device knows, an echo brings the rest, so a lost datagram costs one interval.
Datagrams, because a heartbeat that TCP sends again after its backed-off timeout says nothing about the
present.

* A device joins by heartbeats of generation 0 with a nonce that grows with each life. The server gives each
  new nonce the next generation; a device that joins while its former life is still in the view first leaves
  it.
* The server declares a device lost when it was silent beyond its deadline (see `failure_detector`).
* A device's lease runs for the same deadline from the sending of the last heartbeat that was echoed; when it
  runs out, or when the server says so, the device is out and has to join anew.

The two classes hold the rules alone: datagrams in, datagrams and changes out, time as an argument.
`heartbeats` puts them on sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from testbed.runtime import MembershipEvent
from testbed.runtime.failure_detector import Arrivals, AwakeTime, DetectorSettings, RoundTrip

_EVENTS_AN_ECHO = 30  # keeps an echo within one packet
_JOINED, _LEFT = 1, 0


class Heartbeat(msgspec.Struct, array_like=True, gc=False):
    """From a device. generation 0: wants to join. view: number of the last change it knows, -1: of none."""

    device: int  # index in the cluster's order
    nonce: int
    generation: int
    sequence: int
    view: int
    bound_s: float
    loss: float


class Echo(msgspec.Struct, array_like=True, gc=False):
    """From the server. generation 0: you are not in the view. sequence 0: not an answer, but news.

    changes: (joined or left, device, generation, at_s, detection_s), those that follow number `view`;
    latest: how many there are in all. alive: generation of each device or 0, as of number `view`.
    """

    nonce: int
    generation: int
    sequence: int
    lease_s: float
    view: int
    latest: int
    changes: list[tuple[int, int, int, float, float]]
    alive: list[int] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_heartbeat = msgspec.msgpack.Decoder(Heartbeat).decode
_decode_echo = msgspec.msgpack.Decoder(Echo).decode


@dataclass
class _Peer:
    generation: int = 0
    alive: bool = False
    nonce: int = 0
    view: int = -1
    address: object = None
    arrivals: Arrivals | None = None
    heard_awake_s: float = 0.0
    heard_s: float = 0.0


class Registry:
    """The server's side.

    Args:
        names: the devices in the cluster's order.
        now_s: emulated time on any scale, as in all calls.
    """

    def __init__(self, names: Sequence[str], settings: DetectorSettings, now_s: float):
        self._names = list(names)
        self._settings = settings
        self._peers = [_Peer() for _ in names]
        self._log: list[tuple[int, int, int, float, float]] = []
        self._awake = AwakeTime(now_s, settings.interval_s)
        self.start_s: float | None = None  # of the experiment; changes before it are stamped 0

    @property
    def version(self) -> int:
        return len(self._log)

    @property
    def alive(self) -> dict[str, int]:
        return {n: p.generation for n, p in zip(self._names, self._peers) if p.alive}

    def deadline_s(self, name: str) -> float | None:
        """The present deadline of a device that has joined."""
        arrivals = self._peers[self._names.index(name)].arrivals
        return arrivals.deadline_s if arrivals else None

    def receive(
        self, data: bytes, address: object, now_s: float
    ) -> tuple[list[tuple[object, bytes]], list[MembershipEvent]]:
        """A datagram came: what to send to whom, and the changes of the view that it makes."""
        try:
            beat = _decode_heartbeat(data)
        except msgspec.MsgspecError:
            return [], []
        if not 0 <= beat.device < len(self._peers):
            return [], []
        peer = self._peers[beat.device]
        events: list[MembershipEvent] = []
        if beat.generation == 0 and beat.nonce > peer.nonce:
            if peer.alive:
                events.append(self._leave(beat.device, now_s))
            events.append(self._join(beat.device, beat.nonce, now_s))
        if not peer.alive or beat.nonce != peer.nonce:
            gone = Echo(beat.nonce, 0, beat.sequence, 0.0, 0, 0, [])
            return [(address, _encode(gone))], events
        peer.address = address
        peer.heard_awake_s = self._awake.tick(now_s)
        peer.heard_s = now_s
        peer.view = beat.view
        peer.arrivals.heartbeat(beat.sequence, now_s, bound_s=beat.bound_s, loss=beat.loss)
        out = [(address, self._echo(peer, beat.sequence, snapshot=beat.view < 0))]
        if events:
            out += self._news(except_peer=peer)
        return out, events

    def judge(self, now_s: float) -> tuple[list[tuple[object, bytes]], list[MembershipEvent]]:
        """Look for deadlines that have passed. Call it every so often, after receiving all that has come."""
        awake_s = self._awake.tick(now_s)
        events = [
            self._leave(i, now_s)
            for i, peer in enumerate(self._peers)
            if peer.alive and awake_s - peer.heard_awake_s > peer.arrivals.deadline_s
        ]
        return (self._news() if events else []), events

    def _join(self, index: int, nonce: int, now_s: float) -> MembershipEvent:
        peer = self._peers[index]
        peer.generation += 1
        peer.alive, peer.nonce, peer.view = True, nonce, -1
        peer.arrivals = Arrivals(self._settings)
        return self._note(_JOINED, index, now_s, 0.0)

    def _leave(self, index: int, now_s: float) -> MembershipEvent:
        peer = self._peers[index]
        peer.alive = False
        return self._note(_LEFT, index, now_s, now_s - peer.heard_s)

    def _note(self, kind: int, index: int, now_s: float, detection_s: float) -> MembershipEvent:
        at_s = 0.0 if self.start_s is None else max(0.0, now_s - self.start_s)
        change = (kind, index, self._peers[index].generation, at_s, detection_s)
        self._log.append(change)
        return _event(change, self._names)

    def _echo(self, peer: _Peer, sequence: int, *, snapshot: bool = False) -> bytes:
        """What the peer lacks; taken as known to it from now on, until its heartbeat says less."""
        lease_s = peer.arrivals.deadline_s
        if snapshot:
            alive = [p.generation if p.alive else 0 for p in self._peers]
            echo = Echo(peer.nonce, peer.generation, sequence, lease_s, self.version, self.version, [], alive)
            peer.view = self.version
        else:
            changes = self._log[peer.view : peer.view + _EVENTS_AN_ECHO]
            echo = Echo(peer.nonce, peer.generation, sequence, lease_s, peer.view, self.version, changes)
            peer.view += len(changes)
        return _encode(echo)

    def _news(self, except_peer: _Peer | None = None) -> list[tuple[object, bytes]]:
        """The latest changes, at once, to everyone who has a view."""
        to = [p for p in self._peers if p.alive and p.view >= 0 and p is not except_peer]
        return [(p.address, self._echo(p, 0)) for p in to]


@dataclass(frozen=True)
class Joined:
    """This device is in: the view that it starts from."""

    generation: int
    version: int
    alive: dict[str, int]


@dataclass(frozen=True)
class Expelled:
    """This device is out: its lease ran out, or the server had given it up."""

    reason: str


class Lease:
    """A device's side. Begins to join at once; after `Expelled`, `rejoin` begins anew."""

    def __init__(self, names: Sequence[str], name: str, settings: DetectorSettings, now_s: float, nonce: int):
        self._names = list(names)
        self._index = self._names.index(name)
        self._settings = settings
        self._awake = AwakeTime(now_s, 2 * settings.interval_s)
        self._due_s = now_s
        self._urgent = False
        self._begin(nonce)

    def _begin(self, nonce: int) -> None:
        self._nonce = nonce
        self._active = True
        self._generation = 0
        self._sequence = 0
        self._version = -1
        self._round_trip = RoundTrip(self._settings)
        self._sent: deque[tuple[int, float, float]] = deque(maxlen=self._settings.window)
        self._renewed_awake_s = 0.0
        self._renewed_sequence = 0
        self._lease_s = self._settings.ceiling_s

    @property
    def round_trip(self) -> RoundTrip:
        return self._round_trip

    def rejoin(self, nonce: int, now_s: float) -> None:
        """Join anew as another life; `nonce` must be larger than any before."""
        self._begin(nonce)
        self._due_s = now_s

    def hurry(self) -> None:
        """The view is known to lack something: ask for it now rather than with the next heartbeat."""
        self._urgent = True

    @property
    def due_s(self) -> float:
        """When `poll` has something to do."""
        return 0.0 if self._urgent and self._active else self._due_s

    def poll(self, now_s: float) -> tuple[bytes | None, list[Joined | Expelled | MembershipEvent]]:
        """The heartbeat to send now, if any, and whether the lease ran out. Call it after receiving."""
        awake_s = self._awake.tick(now_s)
        if not self._active:
            self._due_s = now_s + self._settings.interval_s
            return None, []
        if self._generation and awake_s - self._renewed_awake_s > self._lease_s:
            return None, [self._expel("the lease ran out")]
        if now_s < self._due_s and not self._urgent:
            return None, []
        if now_s >= self._due_s:
            self._due_s += self._settings.interval_s
            if self._due_s <= now_s:  # stalled: no burst of heartbeats to catch up
                self._due_s = now_s + self._settings.interval_s
        self._urgent = False
        self._sequence += 1
        self._sent.append((self._sequence, now_s, awake_s))
        beat = Heartbeat(
            self._index, self._nonce, self._generation, self._sequence, self._version,
            self._round_trip.bound_s, self._round_trip.loss,
        )  # fmt: skip
        return _encode(beat), []

    def receive(self, data: bytes, now_s: float) -> list[Joined | Expelled | MembershipEvent]:
        """A datagram came: what it changes."""
        try:
            echo = _decode_echo(data)
        except msgspec.MsgspecError:
            return []
        if echo.nonce != self._nonce or not self._active:
            return []
        if echo.generation == 0:
            if self._generation:
                return [self._expel("the server gave this device up")]
            self._begin(self._nonce + 1)  # admitted and given up again before the admission reached us
            return []
        awake_s = self._awake.tick(now_s)
        changes: list[Joined | Expelled | MembershipEvent] = []
        if not self._generation:
            if echo.alive is None:
                return []
            self._generation = echo.generation
            self._version = echo.view
            self._renewed_awake_s = awake_s
            alive = {n: g for n, g in zip(self._names, echo.alive) if g}
            changes.append(Joined(echo.generation, echo.view, alive))
        if echo.sequence:
            self._renew(echo, now_s)
        elif echo.lease_s:
            self._lease_s = echo.lease_s
        if echo.alive is None and echo.view <= self._version:
            for change in echo.changes[self._version - echo.view :]:
                self._version += 1
                changes.append(_event(change, self._names))
        if self._version < echo.latest:
            self._urgent = True
        return changes

    def _renew(self, echo: Echo, now_s: float) -> None:
        for sequence, sent_s, awake_s in reversed(self._sent):
            if sequence == echo.sequence:
                self._round_trip.echoed(sequence, now_s - sent_s)
                if sequence > self._renewed_sequence:
                    self._renewed_sequence = sequence
                    self._renewed_awake_s = awake_s
                    self._lease_s = echo.lease_s
                return

    def _expel(self, reason: str) -> Expelled:
        self._active = False
        self._generation = 0
        return Expelled(reason)


def _event(change: tuple[int, int, int, float, float], names: Sequence[str]) -> MembershipEvent:
    kind, index, generation, at_s, detection_s = change
    what = "joined" if kind == _JOINED else "left"
    return MembershipEvent(what, names[index], generation, at_s, detection_s)
