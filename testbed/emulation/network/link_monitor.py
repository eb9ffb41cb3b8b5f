"""Watches the links of a run: are rates, buffers and link states what the tool set, all the time?

The kernel tells of every change as it happens, so that one which is undone a moment later is seen too; now and
then everything is read anew, in case a notice was missed. What differs from `EmulatedNetwork.expected` was
done behind the tool's back, and makes the run INVALID.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from testbed import units
from testbed.emulation.kernel.namespaces import in_thread, inside
from testbed.emulation.network.expectations import Expectations
from testbed.emulation.network.notices import (
    BOTTLENECK_CLASS,
    BUFFER_HANDLE,
    ROOT_HANDLE,
    ClassNotice,
    FilterNotice,
    LinkNotice,
    Notice,
    NoticeSocket,
    QueueNotice,
    dump,
)
from testbed.threads import StoppableThread

READ_ANEW_S = 5.0
_WAIT_S = 0.2
_RATE_TOLERANCE = 1e-3  # the kernel counts whole bytes a second
_CLSACT = "clsact"


@dataclass(frozen=True)
class Interference:
    """Something that the tool did not do.

    node: host or shared link. quantity: rate [bit/s on the wire], buffer [bytes], link (1 up, 0 down),
    queue or filter (no numbers). direction: up, down, or '' for both.
    """

    node: str
    quantity: str
    direction: str
    set: float | None
    measured: float | None
    text: str


@dataclass(frozen=True)
class _Place:
    """What an interface is: its node, and the direction that its egress carries."""

    node: str
    direction: str
    interface: str


class LinkMonitor:
    """Compares the kernel's state with what was set, from a thread of its own.

    Args:
        network: a started EmulatedNetwork (what is needed of it: hosts, shared, expected, net_namespace).
        on_found: takes each Interference once, in that thread.
        own_queues: kinds of queueing disciplines that the delay backend puts and changes.
    """

    def __init__(self, network: Any, on_found: Callable[[Interference], None], *, own_queues: Collection[str] = ()):
        self._expected: Expectations = network.expected
        self._namespace = network.net_namespace
        self._on_found = on_found
        self._own_queues = own_queues
        self._places: dict[str, _Place] = {}
        for name, host in network.hosts.items():
            self._places[host.port] = _Place(name, "", host.port)
            self._places[host.inner] = _Place(name, "up", host.inner)
            self._places[host.bridge_port] = _Place(name, "down", host.bridge_port)
        for name, port in network.shared.items():
            self._places[port.up_interface] = _Place(name, "up", port.up_interface)
            self._places[port.down_interface] = _Place(name, "down", port.down_interface)
        self._shaped = {name for name, place in self._places.items() if place.direction}
        self._cut = {host.inner: name for name, host in network.hosts.items()}
        self._dark = {host.bridge_port: name for name, host in network.hosts.items()}
        self._by_index: dict[int, _Place] = {}
        self._reported: dict[tuple[str, str], Any] = {}
        self._thread = StoppableThread(self._run, "link-monitor")
        self.notices = 0  # so far; for the record that somebody looked
        self.error: Exception | None = None

    def start(self) -> LinkMonitor:
        """Look at everything once, and from now on at every change. Raises OSError."""
        in_thread(self._open)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Nothing is found after this returns. Idempotent."""
        self._thread.stop()

    def _open(self) -> None:
        with inside(self._namespace):
            self._by_index = {socket.if_nametoindex(name): place for name, place in self._places.items()}
            self._socket = NoticeSocket()

    def _run(self) -> None:
        try:
            with inside(self._namespace):  # dumps need it; the thread is ours alone
                self._watch()
        except Exception as error:  # a monitor that fails must not end the run, nor be taken for an honest one
            self.error = error
        finally:
            self._socket.close()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        anew = missed = 0
        while not self._thread.stopped:
            if time.monotonic() >= anew or self._socket.missed > missed:
                missed = self._socket.missed
                anew = time.monotonic() + READ_ANEW_S
                for notice in dump(i for i, p in self._by_index.items() if p.interface in self._shaped):
                    self._judge(notice)
            poll.poll(1000 * _WAIT_S)
            for notice in self._socket.read():
                self.notices += 1
                self._judge(notice)

    def _judge(self, notice: Notice) -> None:
        place = self._by_index.get(notice.index)
        if place is None:
            return
        if isinstance(notice, LinkNotice):
            self._judge_link(place, notice)
        elif isinstance(notice, ClassNotice):
            self._judge_class(place, notice)
        elif isinstance(notice, QueueNotice):
            self._judge_queue(place, notice)
        elif isinstance(notice, FilterNotice):
            what = "removed" if notice.gone else "changed or added"
            self._found(place, "filter", None, None, f"filters on {place.interface} were {what}")

    def _judge_link(self, place: _Place, now: LinkNotice) -> None:
        """Up or down, against what churn made of it. `carrier` shows what happens at the other end."""
        if now.gone:
            self._found(place, "link", 1, 0, f"interface {place.interface} was removed")
            return
        cut_at = self._cut.get(place.interface)
        dark_at = self._dark.get(place.interface)
        cuts = self._expected.allowed(("cut", place.node)) or [False]
        if cut_at is not None:
            if now.up not in {not cut for cut in cuts}:
                word, done = ("up", "mended") if now.up else ("down", "taken down")
                self._found(
                    place,
                    "link",
                    float(not now.up),
                    float(now.up),
                    f"the access link was {done} ({place.interface} {word})",
                )
                return
            fine = now.up and now.carrier
        elif dark_at is not None:
            # it loses its carrier with the link, and whoever sets it down himself is seen in any case
            fine = now.up and (now.carrier or True in cuts)
            if not fine:
                self._found(place, "link", 1, 0, f"{place.interface} went down")
                return
        else:
            fine = now.up and now.carrier
            if not fine:
                end = "its other end" if now.up else place.interface
                self._found(place, "link", 1, 0, f"{end} went down ({place.interface})")
                return
        if fine:
            self._reported.pop((place.interface, "link"), None)

    def _judge_class(self, place: _Place, now: ClassNotice) -> None:
        if place.interface not in self._shaped or now.handle != BOTTLENECK_CLASS:
            return
        allowed = self._expected.allowed(place.interface)
        if not allowed:
            return
        newest = allowed[-1]
        if now.gone:
            self._found(place, "rate", newest.rate_bps, None, "the rate limit was removed")
            return
        if any(_close(now.rate_bps, s.rate_bps) and _close(now.ceil_bps, s.rate_bps) for s in allowed):
            self._reported.pop((place.interface, "rate"), None)
            return
        measured = now.ceil_bps if _close(now.rate_bps, newest.rate_bps) else now.rate_bps
        self._found(
            place,
            "rate",
            newest.rate_bps,
            measured,
            f"rate set to {units.rate(measured)} on the wire; the tool set {units.rate(newest.rate_bps)}",
        )

    def _judge_queue(self, place: _Place, now: QueueNotice) -> None:
        if now.kind in self._own_queues:
            return
        if place.interface not in self._shaped or now.handle not in (ROOT_HANDLE, BUFFER_HANDLE):
            if now.kind not in ("noqueue", "ingress", _CLSACT, "") or now.gone:
                done = "removed" if now.gone else "put"
                self._found(place, "queue", None, None, f"a {now.kind or 'queue'} was {done} on {place.interface}")
            return
        if now.gone:
            self._found(place, "queue", None, None, f"the {now.kind} of the bottleneck was removed")
            return
        if now.limit_bytes is None:
            return
        allowed = [s.limit_bytes for s in self._expected.allowed(place.interface)]
        if allowed and now.limit_bytes not in allowed:
            self._found(
                place,
                "buffer",
                allowed[-1],
                now.limit_bytes,
                f"buffer set to {units.size(now.limit_bytes)}; the tool set {units.size(allowed[-1])}",
            )
        else:
            self._reported.pop((place.interface, "buffer"), None)

    def _found(self, place: _Place, quantity: str, set_to: float | None, measured: float | None, text: str) -> None:
        """Report it, unless the same was reported and nothing has changed since."""
        key, value = (place.interface, quantity), (measured, text)
        if self._thread.stopped or self._reported.get(key) == value:
            return
        self._reported[key] = value
        direction = f" {place.direction}link" if place.direction else ""
        self._on_found(
            Interference(place.node, quantity, place.direction, set_to, measured, f"{place.node}{direction}: {text}")
        )


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _RATE_TOLERANCE * b + 16
