"""What a node has received and whom it believes alive. Shared by all engines, so that the rules are the same.

The rules:

* a message is taken by (source, tag) in the order sent; from ANY source in the order of arrival;
* a message from an earlier generation of its sender, or meant for an earlier generation of this node, is
  dropped and counted;
* a message is held back until this node's view is as new as its sender's was, so that no one acts on news
  of a peer before hearing of the peer ("causal" delivery; Birman, Schiper, Stephenson 1991, for views);
* a receive from a peer that leaves the view ends with PeerLost, unless the message is already there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from types import MappingProxyType

from testbed.runtime.interface import MembershipEvent, Message, PeerLost


class View:
    """A membership view that follows a log of changes; implements `interface.Membership`."""

    def __init__(self, alive: Mapping[str, int] | None = None, version: int = 0):
        self._alive = dict(alive or {})
        self._events: asyncio.Queue[MembershipEvent] = asyncio.Queue()
        self.version = version

    @property
    def alive(self) -> Mapping[str, int]:
        return MappingProxyType(self._alive)

    async def next_event(self) -> MembershipEvent:
        return await self._events.get()

    def forget(self) -> None:
        """Events so far are history: the next one is the next change from now on."""
        while not self._events.empty():
            self._events.get_nowait()

    def apply(self, event: MembershipEvent) -> None:
        """Take the next change of the log."""
        self.version += 1
        if event.kind == "joined":
            self._alive[event.name] = event.generation
        else:
            self._alive.pop(event.name, None)
        self._events.put_nowait(event)


class _Waiter:
    __slots__ = ("source", "future")

    def __init__(self, source: str | None, future: asyncio.Future):
        self.source = source
        self.future = future


class Mailbox:
    """Messages that arrived at one incarnation of a node, and those who wait for them.

    Args:
        name: this node; a lost lease is reported under this name.
        generation: of this incarnation.
        view: this node's view; call `viewed` after each change of it.
        always: peers that are in the view at all times (the server, on devices).
    """

    def __init__(self, name: str, generation: int, view: View, always: frozenset[str] = frozenset()):
        self.name = name
        self.generation = generation
        self.view = view
        self.always = always
        self.dropped: Counter[str] = Counter()
        self._arrival = itertools.count()
        self._waiting: dict[str, dict[str, deque[tuple[int, Message]]]] = defaultdict(dict)
        self._receivers: dict[str, list[_Waiter]] = defaultdict(list)
        self._held: list[tuple[int, Message]] = []
        self._lost: PeerLost | None = None

    def deliver(self, message: Message, *, to_generation: int, view: int) -> bool:
        """Take a message off the wire. False when it was dropped (see `dropped` for why)."""
        if to_generation != self.generation:
            self.dropped["meant for an earlier generation"] += 1
            return False
        if view > self.view.version:
            self._held.append((view, message))
            return True
        return self._accept(message)

    def viewed(self, event: MembershipEvent) -> None:
        """The view changed: end receives that can't be served any more, let held messages through."""
        if event.kind == "left":
            for waiters in self._receivers.values():
                for w in waiters:
                    if w.source == event.name and not w.future.done():
                        w.future.set_result(PeerLost(event.name))
        else:
            for sources in self._waiting.values():
                old = sources.get(event.name)
                if old:
                    sources[event.name] = deque(m for m in old if m[1].generation >= event.generation)
                    self.dropped["from an earlier generation"] += len(old) - len(sources[event.name])
        if self._held:
            held, self._held = self._held, []
            for version, message in held:
                if version > self.view.version:
                    self._held.append((version, message))
                else:
                    self._accept(message)

    def fail(self, reason: str) -> None:
        """This node's own lease ran out: every receive, now and later, ends with PeerLost of this node."""
        self._lost = PeerLost(self.name, reason)
        for waiters in self._receivers.values():
            for w in waiters:
                if not w.future.done():
                    w.future.set_result(PeerLost(self.name, reason))

    def check(self, peer: str | None) -> None:
        """Raises PeerLost when this node's lease is gone or `peer` is not in the view."""
        if self._lost is not None:
            raise PeerLost(self._lost.peer, self._lost.reason)
        if peer is not None and peer not in self.view.alive and peer not in self.always:
            raise PeerLost(peer, "not in the view")

    async def recv(self, source: str | None, tag: str) -> Message:
        """See `interface.Node.recv`. May be cancelled at any time without losing a message."""
        waiter: _Waiter | None = None
        lost: PeerLost | None = None
        try:
            while True:
                if self._lost is not None:
                    raise PeerLost(self._lost.peer, self._lost.reason)
                message = self._take(source, tag)
                if message is not None:
                    return message
                if lost is not None:
                    raise lost
                self.check(source)
                future = asyncio.get_running_loop().create_future()
                if waiter is None:
                    waiter = _Waiter(source, future)
                    self._receivers[tag].append(waiter)
                else:
                    waiter.future = future
                lost = await future  # None: something of this tag came
        finally:
            if waiter is not None:
                waiters = self._receivers[tag]
                waiters.remove(waiter)
                if not waiters:
                    del self._receivers[tag]

    def has(self, source: str | None, tag: str) -> bool:
        """Whether `recv` would return at once."""
        sources = self._waiting.get(tag) or {}
        return any(sources.values()) if source is None else bool(sources.get(source))

    def behind(self) -> bool:
        """Whether messages are held back until the view catches up."""
        return bool(self._held)

    def receivers(self) -> list[tuple[str | None, str]]:
        """(source, tag) of each receive that waits now."""
        return [(w.source, tag) for tag, waiters in self._receivers.items() for w in waiters]

    def _accept(self, message: Message) -> bool:
        if message.source not in self.always:
            known = self.view.alive.get(message.source)
            if known is not None and message.generation < known:
                self.dropped["from an earlier generation"] += 1
                return False
            if known is None:  # it left; what it sent before is late news of a dead incarnation
                self.dropped["from a peer that left"] += 1
                return False
        sources = self._waiting[message.tag]
        if message.source not in sources:
            sources[message.source] = deque()
        sources[message.source].append((next(self._arrival), message))
        self._wake(message.tag)
        return True

    def _wake(self, tag: str) -> None:
        for w in self._receivers.get(tag, ()):
            if not w.future.done():
                w.future.set_result(None)

    def _take(self, source: str | None, tag: str) -> Message | None:
        sources = self._waiting.get(tag)
        if not sources:
            return None
        if source is None:
            source = min((s for s, q in sources.items() if q), key=lambda s: sources[s][0][0], default=None)
            if source is None:
                return None
        queue = sources.get(source)
        if not queue:
            return None
        _, message = queue.popleft()
        if not queue:
            del sources[source]
            if not sources:
                del self._waiting[tag]
        return message
