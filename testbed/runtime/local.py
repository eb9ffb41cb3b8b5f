"""An engine in one process, for tests of a runner's logic: real tensors, a virtual clock, faults on demand.

    engine = LocalEngine(plan, PipelineRunner)
    engine.at("step", lambda e: e["step"] == 2, lambda: engine.kill("home2"))
    engine.at("member", lambda e: e["kind"] == "left", lambda: engine.rejoin("home2"))
    events = asyncio.run(engine.run())

It needs no root and no network, waits for nothing in real time, and keeps the rules of the real engine:
tensors are copied on send, messages to and from a killed device vanish, losses are noticed only after
a detection time, views reach devices a link delay later, and a rejoined device starts anew with a higher
generation. Links have delays but no rates; `testbed.simulation` prices transfers.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

from testbed.cluster.model import SERVER
from testbed.runtime import wire
from testbed.runtime.interface import MembershipEvent, PeerLost, Plan, Runner
from testbed.runtime.local_node import Incarnation, VirtualClock
from testbed.runtime.mailbox import View

_GRACE_S = 1.0  # how long `work` may go on after its lease ran out


class Deadlock(RuntimeError):
    """Everybody waits and nothing can happen any more; the message lists who waits for what."""


class LocalEngine:
    """Runs a runner's plan in one asyncio loop.

    Args:
        plan: what `runner.plan` returned.
        runner: the runner's class (or an instance; every node gets a copy of its own).
        seed: of the message delays, which vary by `jitter`: another seed, another interleaving.
        detection_s: from a device's last sign of life to the server's noticing.
        jitter: delays are drawn from [1, 1 + jitter] times the links' delays.
        absent: devices that aren't there at the start; `rejoin` brings them in.
        min_delay_s: delay of a message between nodes whose links state none.

    Faults (at any time, from a hook too; never for the server): `kill`, `rejoin`, `suspend`, `resume`,
    `disconnect`, `reconnect`. `now` is the virtual time [s], `events` what was recorded so far.
    """

    def __init__(
        self, plan: Plan, runner: type[Runner] | Runner, seed: int = 0, *, detection_s: float = 1.0,
        jitter: float = 0.5, absent: Sequence[str] = (), min_delay_s: float = 0.001,
    ):  # fmt: skip
        self.plan = plan
        self.detection_s = detection_s
        self.jitter = jitter
        self.min_delay_s = min_delay_s
        self.events: list[dict[str, Any]] = []
        self._runner = runner
        self._random = random.Random(seed)
        self.clock = VirtualClock()
        self._hooks: list[tuple[str, Callable[[dict], bool], Callable[[], None]]] = []
        self._last_arrival: dict[tuple[str, int, str], float] = {}
        self._generations = {d.name: 0 for d in plan.cluster.devices}
        self._current: dict[str, Incarnation] = {}
        self._absent = set(absent)
        self._joining: set[str] = set()
        self._failure: asyncio.Future | None = None
        self._tasks: set[asyncio.Task] = set()
        unknown = self._absent - set(self._generations)
        if unknown:
            raise KeyError(f"not in the cluster: {', '.join(sorted(unknown))}")

    # -- running ----------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def coordinator(self) -> Runner:
        """The server's runner, to look at after the run."""
        return self._current[SERVER].runner

    async def run(self) -> list[dict[str, Any]]:
        """Run until the coordinator returns; the events in the order recorded.

        Raises:
            Deadlock: nothing can happen any more.
            Exception: whatever the runner raised at any node, with a note that names the node.
        """
        self._failure = asyncio.get_running_loop().create_future()
        alive = {}
        for name in self._generations:
            if name not in self._absent:
                self._generations[name] = alive[name] = 1
        server = self._current[SERVER] = Incarnation(self, SERVER, 1, View(alive, len(alive)))
        for name in alive:
            joined = {"kind": "joined", "peer": name, "generation": 1, "detection": 0.0}
            self.record(SERVER, "member", joined)
            self._current[name] = Incarnation(self, name, 1, View(alive, len(alive)))
        plan = copy.deepcopy(self.plan)
        coordinate = asyncio.ensure_future(server.runner.coordinate(server.node, plan))
        for name in alive:
            self._start(self._current[name])
        drive = asyncio.ensure_future(self.clock.drive(self._deadlock))
        try:
            await asyncio.wait([coordinate, self._failure, drive], return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                raise self._failure.exception()
            if coordinate.done():
                coordinate.result()
            else:
                drive.result()
        finally:
            tasks = [coordinate, drive, *self._tasks]
            for inc in self._current.values():
                inc.dead = True
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._failure.done():
                self._failure.exception()
        return self.events

    def at(self, event: str, predicate: Callable[[dict], bool], action: Callable[[], None]) -> None:
        """Do `action` once, right when the first such event that satisfies `predicate` is recorded."""
        self._hooks.append((event, predicate, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` when that much virtual time has passed."""
        self.clock.call_at(self.clock.now + seconds, action)

    # -- faults ----------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """The process dies and its link with it: memory lost, messages in flight to and from it vanish."""
        me = self._device(name)
        if me.dead:
            return
        self._silence(me)
        me.dead = True
        me.held.clear()
        if me.task:
            me.task.cancel()
        self.record("testbed", "churn", {"action": "leave", "mode": "kill", "peer": name})

    def rejoin(self, name: str) -> None:
        """A killed (or absent) device comes back, with an empty memory and a higher generation."""
        if name not in self._generations:
            raise KeyError(f"not in the cluster: {name}")
        me = self._current.get(name)
        if me is not None and not me.dead:
            raise ValueError(f"{name} is there already")
        self.record("testbed", "churn", {"action": "return", "mode": "kill", "peer": name})
        self._join_soon(name)

    def suspend(self, name: str) -> None:
        """The device freezes where it is, link included."""
        me = self._device(name)
        me.running.clear()
        self._silence(me)
        self.record("testbed", "churn", {"action": "leave", "mode": "suspend", "peer": name})

    def resume(self, name: str) -> None:
        me = self._device(name)
        me.running.set()
        self.record("testbed", "churn", {"action": "return", "mode": "suspend", "peer": name})
        self._reach(me)

    def disconnect(self, name: str) -> None:
        """The link goes down; the device runs on, and notices when its lease runs out."""
        self._silence(self._device(name))
        self.record("testbed", "churn", {"action": "leave", "mode": "disconnect", "peer": name})

    def reconnect(self, name: str) -> None:
        me = self._device(name)
        self.record("testbed", "churn", {"action": "return", "mode": "disconnect", "peer": name})
        self._reach(me)

    # -- inside ----------------------------------------------------------------------

    def _device(self, name: str) -> Incarnation:
        if name == SERVER:
            raise ValueError("the server doesn't fail")
        return self._current[name]

    def new_runner(self) -> Runner:
        return self._runner() if isinstance(self._runner, type) else copy.deepcopy(self._runner)

    def record(self, node: str, event: str, fields: dict[str, Any]) -> None:
        entry = {"t": self.clock.now, "node": node, "event": event, **fields}
        self.events.append(entry)
        for hook in list(self._hooks):
            kind, predicate, action = hook
            if kind == event and hook in self._hooks and predicate(entry):
                self._hooks.remove(hook)
                action()

    def _delay(self, source: str, to: str) -> float:
        cluster = self.plan.cluster
        delay = cluster.device(source).link.uplink_delay_s + cluster.device(to).link.downlink_delay_s
        return max(self.min_delay_s, delay) * (1 + self.jitter * self._random.random())

    def post(self, sender: Incarnation, to: str, header: wire.Header, buffers: list, nbytes: int) -> None:
        pair = (sender.name, sender.generation, to)
        arrival = max(self.now + self._delay(sender.name, to), self._last_arrival.get(pair, 0.0))
        self._last_arrival[pair] = arrival
        self.clock.call_at(arrival, lambda: self._arrive(sender, to, header, buffers, nbytes))

    def _arrive(self, sender: Incarnation, to: str, header: wire.Header, buffers: list, nbytes: int) -> None:
        receiver = self._current.get(to)
        if sender.dead or receiver is None or receiver.dead:
            return
        for end in (sender, receiver):
            if end.cut:
                end.held.append(lambda: self._arrive(sender, to, header, buffers, nbytes))
                return
        message = wire.message(header, buffers, nbytes=nbytes, received_s=self.now)
        if receiver.mailbox.deliver(message, to_generation=header.to_generation, view=header.view):
            fields = {"start": header.sent_s, "end": self.now, "tag": header.tag, "bytes": nbytes}
            self.record(to, "transfer", {"peer": sender.name, **fields})

    def _start(self, me: Incarnation) -> None:
        me.task = asyncio.ensure_future(self._live(me))
        self._tasks.add(me.task)
        me.task.add_done_callback(self._tasks.discard)

    async def _live(self, me: Incarnation) -> None:
        try:
            await me.runner.work(me.node, copy.deepcopy(self.plan))
        except PeerLost as e:
            if e.peer != me.name or not me.declared_lost:
                self._fail(me.name, e)
        except Exception as e:
            self._fail(me.name, e)

    def _fail(self, name: str, error: Exception) -> None:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"at node {name}, t={self.now:.3f} s")
        if not self._failure.done():
            self._failure.set_exception(error)

    def _silence(self, me: Incarnation) -> None:
        """Its link is cut: after the detection time both ends notice, unless it is back by then."""
        if me.cut:
            return
        me.cut = True
        me.silence += 1
        me.silent_since = self.now
        silence = me.silence

        def detect() -> None:
            if me.silence == silence and me.cut and not me.declared_lost:
                self._declare_lost(me)

        self.clock.call_at(self.now + self.detection_s, detect)

    def _declare_lost(self, me: Incarnation) -> None:
        me.declared_lost = True
        me.held.clear()
        self._change(MembershipEvent("left", me.name, me.generation, self.now, self.now - me.silent_since))
        if not me.dead and me.running.is_set():
            self._lose_lease(me)

    def _lose_lease(self, me: Incarnation) -> None:
        me.mailbox.fail("lease ran out")
        if me.task and not me.task.done():
            self.clock.call_at(self.now + _GRACE_S, lambda: me.task.cancel())

    def _reach(self, me: Incarnation) -> None:
        """The link is back. In time: what was held crosses it. Too late: the device joins anew."""
        if not me.cut:
            return
        me.cut = False
        if not me.declared_lost:
            held, me.held = me.held, []
            for arrive in held:
                self.clock.call_at(self.now + self.min_delay_s, arrive)
            return
        self._lose_lease(me)
        if me.task is None or me.task.done():
            self._join_soon(me.name)
        else:
            me.task.add_done_callback(lambda _: self._join_soon(me.name))

    def _join_soon(self, name: str) -> None:
        if name in self._joining:
            return
        self._joining.add(name)
        self.clock.call_at(self.now + self._delay(name, SERVER), lambda: self._join(name))

    def _join(self, name: str) -> None:
        self._joining.discard(name)
        old = self._current.get(name)
        if old is not None:
            if not old.declared_lost:  # back before anyone noticed that it was gone
                self._declare_lost(old)
            old.dead = True
        self._generations[name] += 1
        self._change(MembershipEvent("joined", name, self._generations[name], self.now))
        server = self._current[SERVER].view
        me = Incarnation(self, name, self._generations[name], View(server.alive, server.version))
        self._current[name] = me
        self.clock.call_at(self.now + self._delay(SERVER, name), lambda: me.dead or self._start(me))

    def _change(self, event: MembershipEvent) -> None:
        """The server's view changes, and a link delay later those of the devices that it reaches."""
        self._see(self._current[SERVER], event)
        for me in list(self._current.values()):
            if me.name in (SERVER, event.name):
                continue
            pair = (SERVER, 0, me.name)
            arrival = max(self.now + self._delay(SERVER, me.name), self._last_arrival.get(pair, 0.0))
            self._last_arrival[pair] = arrival
            self.clock.call_at(arrival, lambda me=me: self._hear(me, event))

    def _hear(self, me: Incarnation, event: MembershipEvent) -> None:
        if me.dead or me.declared_lost:
            return
        if me.cut:
            me.held.append(lambda: self._hear(me, event))
            return
        self._see(me, event)

    def _see(self, me: Incarnation, event: MembershipEvent) -> None:
        me.view.apply(event)
        me.mailbox.viewed(event)
        fields = {"kind": event.kind, "peer": event.name, "generation": event.generation}
        self.record(me.name, "member", {**fields, "detection": event.detection_s})

    def _deadlock(self) -> None:
        waits = []
        for me in self._current.values():
            if me.dead:
                continue
            receives = [f"recv({s or 'ANY'}, {tag!r})" for s, tag in me.mailbox.receivers()]
            state = "" if me.running.is_set() else " (suspended)"
            waits.append(f"  {me.name}{state}: {', '.join(receives) or 'waits for no message'}")
        raise Deadlock(f"at t={self.now:.3f} s nothing can happen any more:\n" + "\n".join(waits))
