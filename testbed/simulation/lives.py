"""Who is alive, and who knows: processes, their joining, their loss, and the views of it."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.cluster.model import SERVER
from testbed.runtime import MembershipEvent
from testbed.runtime.failure_detector import DetectorSettings
from testbed.simulation.detection import HeartbeatPath, Noticed, next_heartbeat_s, noticed
from testbed.simulation.node import Engine, Process, SimulatedNode
from testbed.simulation.views import Log, LoggedView

START_S = 0.1  # from the launch of a worker until it asks to join: 0.09 to 0.15 s in emulation on an idle machine
GRACE_S = 1.0  # for `work` to end by itself after its lease ran out (the emulation's)
MANY_DEVICES = 128  # from here on, only the server's view is recorded


class _Device:
    """One device over the whole run."""

    __slots__ = ("alive", "attempt", "cut_s", "generation", "joined_s", "lost_s", "mode", "name", "notice", "process",
                 "returned_s", "silence")  # fmt: skip

    def __init__(self, name: str, mode: str):
        self.name = name
        self.process: Process | None = None
        self.generation = 0
        self.alive = False  # in the server's view
        self.joined_s = 0.0  # when its heartbeats began
        self.cut_s: float | None = None  # when it left last; returned_s: when it came back from that, if it has
        self.returned_s: float | None = None
        self.lost_s: float | None = None  # when the server last gave it up
        self.mode = mode  # of its latest departure
        self.notice: Noticed | None = None
        self.silence = 0  # counts cuts and returns: what was set for an earlier one is void
        self.attempt = 0  # to join, the latest


def _first(lines: list[str]) -> list[str]:
    return lines if len(lines) <= 24 else [*lines[:20], f"  … {len(lines) - 20} more"]


Place = _Device | SimulatedNode  # the latter for the server; has a `name`, and the `process` that is there now


class Lives:
    """The devices' processes and lives.

    Args:
        mode: what leaving is: 'kill', 'suspend' or 'disconnect'.
        absent: devices that aren't there at the start.
    """

    def __init__(self, engine: Engine, settings: DetectorSettings, mode: str, absent: Iterable[str]):
        self._engine, self._settings, self._mode = engine, settings, mode
        self._loop, self._network = engine.loop, engine.network
        self._devices = {d.name: _Device(d.name, mode) for d in engine.plan.cluster.devices}
        self._absent = frozenset(absent)
        self._server: SimulatedNode | None = None
        self._log: Log

    def begin(self):
        """Everyone who is there starts; the coordinator's task."""
        present = [d for d in self._devices.values() if d.name not in self._absent]
        for name in self._devices:
            if name in self._absent:
                self._network.cut(name)
        self._log = Log({d.name: 1 for d in present})
        view = LoggedView(self._log, self._log.version)
        self._server = SimulatedNode(self._engine.new_process(SERVER), 1, view, frozenset())
        self._server.process.life = self._server
        for d in present:
            d.generation, d.alive = 1, True
            d.joined_s = -self._engine.random.uniform(8.0, 9.0)  # they have been waiting for the start
            self._member_event(SERVER, MembershipEvent("joined", d.name, 1, 0.0))
            d.process = self._engine.new_process(d.name)
            self._new_life(d)
        coordinate = self._server.process.runner.coordinate(self._server, self._engine.plan)
        self._server.task = self._engine.run_part(self._server, coordinate)
        for d in present:
            self._work(d.process.life)
        return self._server.task

    def end(self) -> None:
        """Every process is dead from now on: its calls are cancelled, what it records is dropped."""
        for name in (SERVER, *self._devices):
            if (process := self.process(name)) is not None:
                process.dead = True

    # -- looking -------------------------------------------------------------------------

    def process(self, name: str) -> Process | None:
        place = self.place(name)
        return None if place is None else place.process

    def place(self, name: str) -> Place | None:
        """Where messages for a node go; its `process` may be another one, or none, by the time they arrive.

        None for the server before it has begun.
        """
        return self._devices.get(name) or self._server

    def waits(self) -> list[str]:
        """Who waits for what."""
        lines = []
        for name in (SERVER, *self._devices):
            process = self.process(name)
            if process is None or process.dead or process.life is None:
                continue
            receives = [f"recv({s or 'ANY'}, {tag!r})" for s, tag in process.life.mailbox.receivers()]
            state = " (suspended)" if process.frozen else ""
            lines.append(f"  {name}{state}: {', '.join(receives) or 'waits for no message'}")
        return _first(lines)

    def departures(self) -> list[str]:
        """Which device left when, and whether it was missed: who waits for ANY may wait for one of these."""
        lines = []
        for d in self._devices.values():
            if d.cut_s is None:
                continue
            noticed = "not noticed" if d.lost_s is None else f"lost to the server at {d.lost_s:.3f} s"
            back = "not back" if d.returned_s is None else f"back at {d.returned_s:.3f} s"
            lines.append(f"  {d.name} left at {d.cut_s:.3f} s ({d.mode}), {noticed}, {back}")
        hint = "  a wait that counts on a device that has left must end with its loss (Node.membership)"
        return [*_first(lines), hint] if lines else []

    # -- churn ---------------------------------------------------------------------------

    def leave(self, name: str, mode: str | None = None) -> None:
        """The device is gone from now on: its link is cut first, whatever the mode (None: the run's)."""
        d = self._devices[name]
        if self._network.ports[name].cut:
            return
        d.mode, d.returned_s, d.lost_s = mode or self._mode, None, None
        self._network.cut(name)
        self._churn_event(name, "leave")
        self._silence(d)
        process = d.process
        if process is None:
            return
        if d.mode == "kill":
            process.dead = True
            process.lose_all()
            if process.life is not None and process.life.task is not None:
                process.life.task.cancel()
            d.attempt += 1
        elif d.mode == "suspend":
            process.frozen = True

    def come_back(self, name: str) -> None:
        """The device is there again; one killed, or never there, starts anew."""
        d = self._devices[name]
        if not self._network.ports[name].cut:
            return
        self._network.mend(name)
        self._churn_event(name, "return")
        d.returned_s = now = self._loop.now
        if d.process is None or d.process.dead:
            d.attempt += 1
            self._loop.at(now + START_S, self._launched, (d, d.attempt))
            return
        beat = now if d.process.frozen else next_heartbeat_s(d.joined_s, now, self._settings.interval_s)
        d.process.thaw()
        if d.process.life is None:
            if not d.process.ending:  # otherwise it joins when its former life has ended
                self._try_join(d, beat)
        else:
            self._loop.at(beat + self._path(d).up_s, self._heard_again, (d, d.silence))

    def _silence(self, d: _Device) -> None:
        """Nothing of it comes any more: when will that be noticed?"""
        d.silence += 1
        d.cut_s = self._loop.now
        if not d.alive:
            return
        d.notice = noticed(self._path(d), d.joined_s, d.cut_s, self._settings, self._engine.random)
        self._loop.at(d.notice.lost_s, self._judge, (d, d.silence))
        if d.mode == "disconnect":
            self._loop.at(d.notice.expired_s, self._expire, (d, d.silence))

    def _judge(self, due: tuple[_Device, int]) -> None:
        d, silence = due
        if d.silence == silence and d.alive:
            self._declare_lost(d, self._loop.now - d.notice.heard_s)

    def _expire(self, due: tuple[_Device, int]) -> None:
        """The device has heard no echo for so long that its lease is over."""
        d, silence = due
        if d.silence == silence and d.process is not None and d.process.life is not None:
            self._lose_lease(d, "the lease ran out")

    def _heard_again(self, due: tuple[_Device, int]) -> None:
        """A heartbeat of a device that was away, but not for itself, gets through."""
        d, silence = due
        if d.silence != silence or self._network.ports[d.name].cut or d.process is None:
            return
        life, echoed_s = d.process.life, self._loop.now + self._path(d).down_s
        if d.alive:
            d.silence += 1  # nobody missed it
            if life is not None:
                self._loop.at(echoed_s, self._hear, (d, life))
        elif life is not None:
            self._loop.at(echoed_s, self._expelled, (d, life))

    def _expelled(self, due: tuple[_Device, SimulatedNode]) -> None:
        d, life = due
        if d.process is not None and d.process.life is life and not self._network.ports[d.name].cut:
            self._lose_lease(d, "the server gave this device up")

    def _declare_lost(self, d: _Device, detection_s: float) -> None:
        d.alive, d.lost_s = False, self._loop.now
        self._change(MembershipEvent("left", d.name, d.generation, self._loop.now, detection_s))

    # -- joining -------------------------------------------------------------------------

    def _launched(self, due: tuple[_Device, int]) -> None:
        d, attempt = due
        if d.attempt != attempt or self._network.ports[d.name].cut:
            return
        d.process = self._engine.new_process(d.name)
        self._try_join(d, self._loop.now)

    def _try_join(self, d: _Device, at_s: float) -> None:
        """Ask the server to be let in, from `at_s` on."""
        d.attempt += 1
        self._loop.at(at_s + self._path(d).up_s, self._admit, (d, d.attempt, at_s))

    def _admit(self, due: tuple[_Device, int, float]) -> None:
        d, attempt, asked_s = due
        if d.attempt != attempt or d.process is None or d.process.dead or self._network.ports[d.name].cut:
            return  # when its link is back it asks again
        if d.alive:  # back before anyone noticed that it was gone
            heard_s = d.notice.heard_s if d.notice is not None else self._loop.now
            self._declare_lost(d, self._loop.now - heard_s)
        d.silence += 1
        d.generation += 1
        d.alive, d.joined_s = True, asked_s
        self._change(MembershipEvent("joined", d.name, d.generation, self._loop.now))
        self._loop.at(self._loop.now + self._path(d).down_s, self._admitted, (d, attempt, d.generation))

    def _admitted(self, due: tuple[_Device, int, int]) -> None:
        d, attempt, generation = due
        process = d.process
        if d.attempt != attempt or d.generation != generation or process is None or process.dead or process.frozen:
            return
        if self._network.ports[d.name].cut:
            return
        self._new_life(d)
        self._work(process.life)

    def _new_life(self, d: _Device) -> None:
        view = LoggedView(self._log, self._log.version)
        d.process.life = SimulatedNode(d.process, d.generation, view, frozenset({SERVER}))

    def _work(self, life: SimulatedNode) -> None:
        life.task = self._engine.run_part(life, life.process.runner.work(life, self._engine.plan))

    def _lose_lease(self, d: _Device, reason: str) -> None:
        life, process = d.process.life, d.process
        process.life = None
        process.lose_all()
        life.mailbox.fail(reason)
        task = life.task

        def again(_: object = None) -> None:
            process.ending = False
            if d.process is process and not process.dead and not self._network.ports[d.name].cut:
                self._try_join(d, self._loop.now)

        if task is None or task.done():
            again()
        else:
            process.ending = True
            task.add_done_callback(again)
            self._loop.at(self._loop.now + GRACE_S, lambda _: task.cancel())

    # -- views ---------------------------------------------------------------------------

    def _change(self, event: MembershipEvent) -> None:
        """The server's view changes; the news goes out to every device at once."""
        self._log.note(event)
        self._see(self._server, event)
        now = self._loop.now
        for d in self._devices.values():
            if d.name != event.name and d.process is not None and d.process.life is not None:
                self._loop.at(now + self._path(d).down_s, self._hear, (d, d.process.life))

    def _hear(self, due: tuple[_Device, SimulatedNode]) -> None:
        """What the device's view lacks; what a cut link keeps from it comes with the first echo after."""
        d, life = due
        if d.process is None or d.process.life is not life or d.process.dead:
            return
        if self._network.ports[d.name].cut:
            return
        while life.membership.version < self._log.version:
            behind = life.membership.version - self._log.version
            self._see(life, self._log.changes[behind])

    def _see(self, node: SimulatedNode, event: MembershipEvent) -> None:
        node.membership.apply(event)
        node.process.lose(event.name)
        node.mailbox.viewed(event)
        if node is self._server or len(self._devices) < MANY_DEVICES:
            self._member_event(node.name, event)

    # -- inside ----------------------------------------------------------------------------

    def _path(self, d: _Device) -> HeartbeatPath:
        network, port = self._network, self._network.ports[d.name]
        return HeartbeatPath(
            network.delay_s(d.name, SERVER),
            network.delay_s(SERVER, d.name),
            network.sigma_s(d.name, SERVER),
            port.up_loss,
            port.down_loss,
        )

    def _member_event(self, node: str, event: MembershipEvent) -> None:
        self._engine.record(
            "member", node, kind=event.kind, peer=event.name, generation=event.generation, detection=event.detection_s
        )

    def _churn_event(self, name: str, action: str) -> None:
        self._engine.record("churn", name, action=action, mode=self._devices[name].mode, late=0.0, cause="trace")
