"""A worker process: joins, runs the runner's part once for each life, reports. Runs in a forked child."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import time
import traceback
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import zmq

from testbed.cluster import Device
from testbed.cluster.model import SERVER
from testbed.emulation.process import control
from testbed.emulation.process.heartbeats import MembershipClient, MembershipServer
from testbed.emulation.process.membership import Expelled, Joined
from testbed.emulation.process.node import Clock, EmulatedNode
from testbed.emulation.process.pacing import compute_thread
from testbed.emulation.process.reporter import Reporter
from testbed.emulation.process.transport import Transport
from testbed.emulation.process.warm_up import warm_up
from testbed.runtime import MembershipEvent, PeerLost, Plan, Runner, wire
from testbed.runtime.failure_detector import DetectorSettings
from testbed.runtime.mailbox import View

DATA_PORT, MEMBERSHIP_PORT = 47100, 47101
_GRACE_S = 1.0  # emulated; for `work` to end by itself after its lease ran out


class WorkerSpec(msgspec.Struct):
    """What one worker has to know.

    names: all devices, in an order that is everyone's. ips: of every node.
    initial: devices that the server waits for before it is ready.
    """

    name: str
    device: Device
    names: list[str]
    ips: dict[str, str]
    tdf: float
    initial: list[str]
    detector: DetectorSettings
    threads: int = 1


class Worker:
    """One process's part in the run: the coordinator's on the server, otherwise a device's, life by life."""

    def __init__(self, spec: WorkerSpec, plan: Plan, runner: Callable[[], Runner], sock: socket.socket):
        self._spec = spec
        self._plan = plan
        self._runner = runner
        self._sock = sock
        self._name = spec.name
        self._is_server = spec.name == SERVER
        self._clock = Clock(spec.tdf)
        self._executor: ThreadPoolExecutor = compute_thread()
        self._early: list[tuple[wire.Header, list[zmq.Frame]]] = []
        self._node: EmulatedNode | None = None
        self._lost = asyncio.Event()
        self._joined = asyncio.Event()
        self._begun = asyncio.Event()
        self._begin_view = 0

    async def run(self) -> None:
        """Until the engine says stop. Errors of the runner are reported, not raised."""
        self._loop = asyncio.get_running_loop()
        self._reporter = Reporter(self._sock, self._loop)
        unframer = control.Unframer()
        self._stopped = self._loop.create_future()
        self._loop.add_reader(self._sock, self._control, unframer)
        await self._loop.run_in_executor(self._executor, functools.partial(warm_up, backward=True))
        ip = self._spec.ips[self._name]
        peers = {n: (i, DATA_PORT) for n, i in self._spec.ips.items()}
        self._transport = Transport((ip, DATA_PORT), peers, self._message, tdf=self._spec.tdf)
        settings = {"tdf": self._spec.tdf, "settings": self._spec.detector}
        if self._is_server:
            self._node = self._new_node(1, View())
            self._membership = MembershipServer(
                (ip, MEMBERSHIP_PORT), self._spec.names, on_event=self._soon(self._server_event), **settings
            )
        else:
            server = (self._spec.ips[SERVER], MEMBERSHIP_PORT)
            self._membership = MembershipClient(
                (ip, 0), server, self._spec.names, self._name, on_change=self._soon(self._change), **settings
            )
        self._membership.start()
        part = asyncio.ensure_future(self._coordinate() if self._is_server else self._live())
        try:
            await asyncio.wait([part, self._stopped], return_when=asyncio.FIRST_COMPLETED)
            if part.done() and not part.cancelled() and part.exception() is not None:
                self._failed(part.exception())
            await self._stopped
        finally:
            part.cancel()
            self._membership.close()
            counters = self._transport.counters
            if self._node is not None:
                self._reporter.event({
                    "t": self._clock.now(), "node": self._name, "event": "transport",
                    "sent": dict(counters.sent_bytes), "received": dict(counters.received_bytes),
                    "dropped": dict(self._node.mailbox.dropped),
                })  # fmt: skip
            self._transport.close()
            self._loop.remove_reader(self._sock)
            self._reporter.drain()

    # the engine's side

    def _control(self, unframer: control.Unframer) -> None:
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(1)  # the engine is gone
        for message in unframer.feed(data):
            if message["kind"] == "begin":
                self._clock.t0 = message["t0"]
                self._begin_view = message["view"]
                if self._is_server:
                    self._membership.begin(message["t0"])
                self._begun.set()
            elif message["kind"] == "stop" and not self._stopped.done():
                self._stopped.set_result(None)

    def _failed(self, error: BaseException) -> None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and _is_here(trace):
            trace = trace.tb_next  # the runner's own part is what matters
        text = "".join(traceback.format_exception(type(error), error, trace))
        print(text, flush=True)
        summary = f"{type(error).__name__}: {error}"
        self._reporter.message({"kind": "failed", "error": summary, "traceback": text})

    def _ready(self) -> None:
        self._reporter.message({"kind": "ready", "view": self._node.membership.version})

    async def _wait_begin(self) -> None:
        await self._begun.wait()
        await asyncio.sleep(self._clock.t0 - time.monotonic())
        view = self._node.membership
        while view.version < self._begin_view and not self._lost.is_set():
            await asyncio.sleep(0.01)

    # the runner's side

    def _new_node(self, generation: int, view: View) -> EmulatedNode:
        return EmulatedNode(
            self._spec.device, generation, view,
            always=frozenset() if self._is_server else frozenset({SERVER}), transport=self._transport,
            clock=self._clock, executor=self._executor, on_event=self._reporter.event,
        )  # fmt: skip

    async def _coordinate(self) -> None:
        alive = self._node.membership.alive
        while not all(name in alive for name in self._spec.initial):
            self._joined.clear()
            await self._joined.wait()
        self._ready()
        await self._wait_begin()
        self._node.membership.forget()
        await self._runner().coordinate(self._node, self._plan)
        self._reporter.message({"kind": "done"})

    async def _live(self) -> None:
        runner = self._runner()  # for as long as this process: a device that was only cut off may keep what it holds
        first = True
        while True:
            await self._joined.wait()
            node = self._node
            self._ready()
            await self._wait_begin()
            if first:
                node.membership.forget()
                first = False
            work = asyncio.ensure_future(runner.work(node, self._plan))
            lost = asyncio.ensure_future(self._lost.wait())
            await asyncio.wait([work, lost], return_when=asyncio.FIRST_COMPLETED)
            if not self._lost.is_set():
                self._check(work, node)
                self._reporter.message({"kind": "idle"})
                await lost
            if not work.done():
                await asyncio.wait([work], timeout=_GRACE_S * self._spec.tdf)
                work.cancel()
                await asyncio.wait([work])
            self._check(work, node)
            # a computation that was under way can't be interrupted; the next life begins after it
            await self._loop.run_in_executor(self._executor, lambda: None)
            self._joined.clear()
            self._lost.clear()
            self._membership.rejoin()

    def _check(self, work: asyncio.Future, node: EmulatedNode) -> None:
        """Raises what `work` raised, unless it is the loss of its own lease."""
        if work.cancelled() or work.exception() is None:
            return
        error = work.exception()
        if not (isinstance(error, PeerLost) and error.peer == node.name):
            raise error

    # membership and messages

    def _soon(self, fn: Callable[[Any], None]) -> Callable[[Any], None]:
        """From the membership thread into the loop."""

        def call(argument: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(fn, argument)

        return call

    def _server_event(self, event: MembershipEvent) -> None:
        self._node.see(event)
        self._joined.set()

    def _change(self, change: Joined | Expelled | MembershipEvent) -> None:
        if isinstance(change, Joined):
            self._node = self._new_node(change.generation, View(change.alive, change.version))
            early, self._early = self._early, []
            for header, frames in early:
                self._message_of(header, frames)
            self._joined.set()
        elif isinstance(change, Expelled):
            self._node.mailbox.fail(change.reason)
            self._transport.lose_all()
            self._lost.set()
        else:
            self._node.see(change)

    def _message(self, frames: list[zmq.Frame]) -> None:
        try:
            header = wire.decode_header(frames[0].buffer)
        except msgspec.MsgspecError:
            return
        self._message_of(header, frames)

    def _message_of(self, header: wire.Header, frames: list[zmq.Frame]) -> None:
        node = self._node
        if node is None or header.to_generation > node.generation:
            self._early.append((header, frames))  # for the life that we are about to hear of
            return
        node.receive(header, frames)
        if node.mailbox.behind() and not self._is_server:
            self._membership.hurry()


def _is_here(trace: types.TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename == __file__
