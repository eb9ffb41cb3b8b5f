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
from collections import Counter, deque
from collections.abc import Mapping
from types import MappingProxyType

from testbed.runtime.interface import MembershipEvent, Message, PeerLost


class View:
    """A membership view that follows a log of changes; implements `interface.Membership`."""

    __slots__ = ("version", "_alive", "_events")

    def __init__(self, alive: Mapping[str, int] | None = None, version: int = 0):
        self._alive = dict(alive or {})
        self._events: asyncio.Queue[MembershipEvent] = asyncio.Queue()
        self.version = version

    @property
    def alive(self) -> Mapping[str, int]:
        return MappingProxyType(self._alive)

    def knows(self, name: str) -> bool:
        return name in self._alive

    def generation_of(self, name: str) -> int | None:
        return self._alive.get(name)

    async def next_event(self) -> MembershipEvent:
        return await self._events.get()

    def forget(self) -> None:
        """Events so far are history: the next one is the next change from now on."""
        while not self._events.empty():
            self._events.get_nowait()

    def apply(self, event: MembershipEvent) -> None:
        """Take the next change of the log."""
        self.version += 1
        self._take(event)
        self._events.put_nowait(event)

    def _take(self, event: MembershipEvent) -> None:
        if event.kind == "joined":
            self._alive[event.name] = event.generation
        else:
            self._alive.pop(event.name, None)


class _Entry:
    """A message that waits. taken: it is in one of its two queues only because nobody came to tidy up."""

    __slots__ = ("message", "taken")

    def __init__(self, message: Message):
        self.message = message
        self.taken = False


class _Shelf:
    """The messages of one tag that wait: by source, and all in the order of arrival."""

    __slots__ = ("by_source", "arrived", "count")

    def __init__(self) -> None:
        self.by_source: dict[str, deque[_Entry]] = {}
        self.arrived: deque[_Entry] = deque()
        self.count = 0

    def put(self, message: Message, *, first: bool = False) -> None:
        """first: it comes before all that is there."""
        entry = _Entry(message)
        queue = self.by_source.get(message.source)
        if queue is None:
            queue = self.by_source[message.source] = deque()
        for line in (queue, self.arrived):
            (line.appendleft if first else line.append)(entry)
        self.count += 1

    def has(self, source: str | None) -> bool:
        return self.count > 0 if source is None else source in self.by_source

    def take(self, source: str | None) -> Message | None:
        if source is None:
            while self.arrived and self.arrived[0].taken:
                self.arrived.popleft()
            if not self.arrived:
                return None
            source = self.arrived[0].message.source
        queue = self.by_source.get(source)
        if queue is None:
            return None
        entry = queue.popleft()
        if not queue:
            del self.by_source[source]
        entry.taken = True
        self.count -= 1
        if len(self.arrived) > 2 * self.count + 16:
            self.arrived = deque(e for e in self.arrived if not e.taken)
        return entry.message

    def drop(self, source: str, before_generation: int) -> int:
        """Forget what an earlier generation of a source sent; how many messages that were."""
        dropped = 0
        queue = self.by_source.pop(source, ())
        kept = deque()
        for entry in queue:
            if entry.message.generation < before_generation:
                entry.taken = True
                dropped += 1
            else:
                kept.append(entry)
        if kept:
            self.by_source[source] = kept
        self.count -= dropped
        return dropped


class Mailbox:
    """Messages that arrived at one incarnation of a node, and those who wait for them.

    Args:
        name: this node; a lost lease is reported under this name.
        generation: of this incarnation.
        view: this node's view; call `viewed` after each change of it.
        always: peers that are in the view at all times (the server, on devices).
    """

    __slots__ = ("name", "generation", "view", "always", "dropped", "closed", "_waiting", "_receivers", "_held",
                 "_lost")  # fmt: skip

    def __init__(self, name: str, generation: int, view: View, always: frozenset[str] = frozenset()):
        self.name = name
        self.generation = generation
        self.view = view
        self.always = always
        self.dropped: Counter[str] = Counter()
        self._waiting: dict[str, _Shelf] = {}
        self._receivers: dict[tuple[str | None, str], dict[asyncio.Future, None]] = {}
        self._held: list[tuple[int, Message]] = []
        self.closed = False  # this node's own lease ran out
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
            for (source, _), waiters in self._receivers.items():
                if source == event.name:
                    self._wake(waiters, PeerLost(event.name))
        else:
            for shelf in self._waiting.values():
                if dropped := shelf.drop(event.name, event.generation):
                    self.dropped["from an earlier generation"] += dropped
        if self._held:
            held, self._held = self._held, []
            for version, message in held:
                if version > self.view.version:
                    self._held.append((version, message))
                else:
                    self._accept(message)

    def fail(self, reason: str) -> None:
        """This node's own lease ran out: every receive, now and later, ends with PeerLost of this node."""
        self.closed, self._lost = True, PeerLost(self.name, reason)
        for waiters in self._receivers.values():
            self._wake(waiters, PeerLost(self.name, reason))

    def check(self, peer: str | None) -> None:
        """Raises PeerLost when this node's lease is gone or `peer` is not in the view."""
        if self.closed:
            raise PeerLost(self._lost.peer, self._lost.reason)
        if peer is not None and not self.view.knows(peer) and peer not in self.always:
            raise PeerLost(peer, "not in the view")

    async def recv(self, source: str | None, tag: str) -> Message:
        """See `interface.Node.recv`. May be cancelled at any time without losing a message."""
        message = self.take(source, tag)
        return message if message is not None else await self.wait(source, tag)

    async def wait(self, source: str | None, tag: str) -> Message:
        """`recv` when `take` had nothing: the message is handed over as it arrives."""
        key = source, tag
        while True:
            if self.closed or (source is not None and source not in self.always):
                self.check(source)
            future = asyncio.get_running_loop().create_future()
            waiters = self._receivers.get(key)
            if waiters is None:
                waiters = self._receivers[key] = {}
            waiters[future] = None
            version = self.view.version
            try:
                news = await future
            except asyncio.CancelledError:
                self._forget(key, future)
                if not future.cancelled() and isinstance(future.result(), Message):
                    self._hand_over(future.result(), first=True)
                raise
            if isinstance(news, Message):
                if version == self.view.version or self._current(news):
                    return news
                continue
            self._forget(key, future)
            message = self.take(source, tag)
            if message is None:
                raise news
            return message

    def take(self, source: str | None, tag: str) -> Message | None:
        """What `recv` would return without waiting. Raises PeerLost when this node's lease is gone."""
        if self.closed:
            raise PeerLost(self._lost.peer, self._lost.reason)
        shelf = self._waiting.get(tag)
        if shelf is None:
            return None
        message = shelf.take(source)
        if not shelf.count:
            del self._waiting[tag]
        return message

    def has(self, source: str | None, tag: str) -> bool:
        """Whether `recv` would return at once."""
        shelf = self._waiting.get(tag)
        return shelf is not None and shelf.has(source)

    def behind(self) -> bool:
        """Whether messages are held back until the view catches up."""
        return bool(self._held)

    def receivers(self) -> list[tuple[str | None, str]]:
        """(source, tag) of each receive that waits now."""
        return [key for key, waiters in self._receivers.items() for _ in waiters]

    def _accept(self, message: Message) -> bool:
        if not self._current(message):
            return False
        self._hand_over(message)
        return True

    def _current(self, message: Message) -> bool:
        """Whether the view has that incarnation of the sender."""
        if message.source in self.always:
            return True
        known = self.view.generation_of(message.source)
        if known is None:  # it left; what it sent before is late news of a dead incarnation
            self.dropped["from a peer that left"] += 1
            return False
        if message.generation < known:
            self.dropped["from an earlier generation"] += 1
            return False
        return True

    def _hand_over(self, message: Message, *, first: bool = False) -> None:
        """To whoever has waited longest, those who want it from this source before others; or onto the shelf."""
        for key in (message.source, message.tag), (None, message.tag):
            for future in self._receivers.get(key, ()):
                if not future.done():
                    self._forget(key, future)
                    future.set_result(message)
                    return
        shelf = self._waiting.get(message.tag)
        if shelf is None:
            shelf = self._waiting[message.tag] = _Shelf()
        shelf.put(message, first=first)

    def _forget(self, key: tuple[str | None, str], future: asyncio.Future) -> None:
        waiters = self._receivers.get(key)
        if waiters is not None:
            waiters.pop(future, None)
            if not waiters:
                del self._receivers[key]

    @staticmethod
    def _wake(waiters: dict[asyncio.Future, None], news: PeerLost) -> None:
        for future in waiters:
            if not future.done():
                future.set_result(news)
