"""The virtual-time engine: the runner's own coroutines, on a virtual clock, a fluid network and priced computation.

simulation = Simulation(plan, new_runner, ports, on_event=events.append)
outcome = simulation.run()
"""

from __future__ import annotations

import asyncio
import gc
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.errors import TestbedError
from testbed.runtime import Message, PeerLost, Plan, Runner, wire
from testbed.runtime.failure_detector import DetectorSettings
from testbed.runtime.virtual_time import Stopped, VirtualLoop
from testbed.simulation.lives import Lives, Place
from testbed.simulation.memory import MemoryMeter
from testbed.simulation.meta_device import meta_by_default
from testbed.simulation.network import Network, PortSettings
from testbed.simulation.node import Process, SimulatedNode
from testbed.simulation.totals import Totals
from testbed.simulation.traffic import Traffic

DETAIL_KINDS = ("send", "transfer", "wait", "compute")


class Deadlock(TestbedError):
    """Everybody waits and nothing can happen any more."""


@dataclass(frozen=True)
class Outcome:
    """How a simulation ended. status: complete, interrupted (time limit) or failed; log: a traceback, or ''."""

    status: str
    error: str | None = None
    log: str = ""


@dataclass(frozen=True)
class PortChange:
    """A link's settings from `at_s` on; `state` is what the trace said, for the event."""

    at_s: float
    settings: PortSettings
    state: LinkState


@dataclass
class _Hook:
    """What happens at the moment of an event; `left`: how many such events are still to come."""

    event: str
    predicate: Callable[[dict[str, Any]], bool]
    action: Callable[[], None]
    left: int


class Simulation:
    """One run in virtual time. Everything that happens depends on the arguments alone.

    Args:
        plan: what `runner.plan` returned.
        new_runner: makes a process's runner.
        links: each home's settings over time, the first at 0; and the server's.
        churn: (time, device, 'leave' or 'return'), in order; mode: 'kill', 'suspend' or 'disconnect'.
        absent: devices that aren't there at the start.
        buffer_s: bottleneck buffers, as time at the link's rate.
        seed: of jitter, loss and heartbeats' phases.
        time_limit_s: virtual time at which the run is ended.
        tensors: 'meta' (shapes only) or 'real'.
        details: messages and computations beyond this many get no events of their own; None: all get them.
        on_event: takes each event, in order.
    """

    def __init__(
        self, plan: Plan, new_runner: Callable[[], Runner], links: Mapping[str, Sequence[PortChange]], *,
        churn: Iterable[tuple[float, str, str]] = (), mode: str = "kill", absent: Iterable[str] = (),
        buffer_s: float = 0.1, seed: int = 0, time_limit_s: float = float("inf"), tensors: str = "meta",
        details: int | None = None, on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        detector: DetectorSettings | None = None,
    ):  # fmt: skip
        self.plan, self.new_runner = plan, new_runner
        self.loop = VirtualLoop()
        self.random = random.Random(f"{seed} heartbeats")
        self.tensors = tensors
        self.network = Network(
            self.loop,
            {n: series[0].settings for n, series in links.items()},
            plan.cluster.shared_links,
            buffer_s=buffer_s,
            seed=seed,
        )
        self.totals = {name: Totals() for name in links}
        self.lives = Lives(self, detector or DetectorSettings(), mode, absent)
        self._links, self._churn = links, sorted(churn, key=lambda change: change[0])
        self._time_limit_s = time_limit_s
        self._on_event = on_event
        self._details_left = float("inf") if details is None else details
        self.detailed = self._details_left > 0
        self._traffic = Traffic(self)
        self._failure: asyncio.Future = self.loop.create_future()
        self._described: dict[tuple[torch.Size, torch.dtype], tuple[tuple[str, list[int]], int]] = {}
        self._ended = False
        self._hooks: list[_Hook] = []
        self._quiet = False  # when it was last looked whether anything can happen

    # -- running -----------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until the coordinator returns, something fails, or the time limit."""
        self.loop.settle = self.network.settle
        self.loop.on_idle = self._idle
        with meta_by_default() if self.tensors == "meta" else _one_thread(), _rare_garbage_collection():
            try:
                self.loop.run_until_complete(self._main())
                outcome = Outcome("complete")
            except Stopped as stopped:
                outcome = Outcome("interrupted", str(stopped))
            except TestbedError as error:
                outcome = Outcome("failed", str(error))
            except Exception as error:
                where = getattr(error, "at_node", None)
                if where is None:
                    raise  # not a runner's
                outcome = Outcome("failed", f"{where}: {type(error).__name__}: {error}", error.log)
            finally:
                self.finish()
                self.loop.stopping = None
                self.loop.run_until_complete(self._end_tasks())
                self.loop.close()
        return outcome

    def finish(self) -> None:
        """Record what is only known at the end. A second call does nothing."""
        if self._ended:
            return
        self._traffic.sample()
        for name, totals in self.totals.items():
            process = self.lives.process(name)
            memory = {"memory_peak_bytes": process.memory.peak_bytes} if process is not None else {}
            self.record("totals", name, **totals.fields(), **memory)
        self._ended = True

    async def _end_tasks(self) -> None:
        """Nothing that the runners still do counts any more."""
        self.lives.end()
        tasks = asyncio.all_tasks(self.loop) - {asyncio.current_task(self.loop)}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    async def _main(self) -> None:
        self._check_memory()
        for name, series in self._links.items():
            self._link_event(name, series[0].state)
            if len(series) > 1:
                self.loop.at(series[1].at_s, self._change_link, (name, 1))
        coordinator = self.lives.begin()
        if self._churn:
            self.loop.at(self._churn[0][0], self._toggle, 0)
        if self._time_limit_s < float("inf"):
            self.loop.at(self._time_limit_s, self._limit)
        self._traffic.begin()
        await asyncio.wait([coordinator, self._failure], return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            raise self._failure.exception()
        coordinator.result()

    def fail(self, node: str, error: BaseException) -> None:
        """A runner's part raised, or a device is out of memory: the run ends."""
        if not self._failure.done():
            error.at_node = node
            error.log = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._failure.set_exception(error)

    def _check_memory(self) -> None:
        """What the plan itself says that each device needs."""
        for name, needed in (self.plan.data.get("memory_bytes") or {}).items():
            device = self.plan.cluster.device(name)
            if isinstance(needed, (int, float)) and needed > device.memory_bytes:
                MemoryMeter(name, device.memory_bytes).need(needed)

    def _limit(self, _: Any) -> None:
        text = f"the time limit of {self._time_limit_s:g} emulated seconds was reached (time_limit in the experiment)"
        self.record("warning", text=text)
        self.loop.stopping = text

    def check_alive(self) -> None:
        """Called again and again: twice in a row no timer but the time limit's and nobody to go on is a deadlock."""
        quiet = self.loop.timers <= (self._time_limit_s < float("inf")) and not self.loop.busy
        if quiet and self._quiet:
            self._idle()
        self._quiet = quiet

    def _idle(self) -> None:
        lines = "\n".join([*self.lives.waits(), *self.lives.departures()])
        self.fail("", Deadlock(f"at t={self.loop.now:.3f} s nothing can happen any more:\n{lines}"))

    # -- what happens --------------------------------------------------------------------

    def _change_link(self, step: tuple[str, int]) -> None:
        name, index = step
        series = self._links[name]
        self.network.set_port(name, series[index].settings)
        self._link_event(name, series[index].state)
        if index + 1 < len(series):
            self.loop.at(series[index + 1].at_s, self._change_link, (name, index + 1))

    def _link_event(self, name: str, s: LinkState) -> None:
        self.record(
            "link",
            name,
            down_bps=s.down_bps,
            up_bps=s.up_bps,
            rtt_s=s.rtt_s,
            jitter_s=s.jitter_s,
            loss=s.loss,
            late=0.0,
        )

    def _toggle(self, index: int) -> None:
        _, device, action = self._churn[index]
        (self.lives.leave if action == "leave" else self.lives.come_back)(device)
        if index + 1 < len(self._churn):
            self.loop.at(self._churn[index + 1][0], self._toggle, index + 1)

    def arrived(self, to: Place, item: tuple[Message, int, int, list[int]]) -> None:
        """A message's last byte is at the receiver's link."""
        process = to.process
        if process is None or process.dead or process.life is None:
            return
        try:
            process.life.receive(*item)
        except TestbedError as error:
            self.fail(to.name, error)

    def copies(self, tensors: Sequence[torch.Tensor]) -> tuple[list, list[torch.Tensor], list[int]]:
        """(described, what the receiver gets, bytes of each): the sender may change its own tensors meanwhile."""
        if not tensors:
            return [], [], []
        if self.tensors != "meta":
            copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
            return wire.describe(tensors), copies, [t.nbytes for t in copies]
        described, copies, sizes = [], [], []  # without data nothing can change but what hangs on the object
        for t in tensors:
            known = self._described.get((t.shape, t.dtype)) if type(t) is torch.Tensor else None
            if known is None:
                known = wire.describe([t])[0], t.nbytes
                self._described[t.shape, t.dtype] = known
            described.append(known[0])
            copies.append(t.data)  # an object of its own like `detach`, for half the time and memory
            sizes.append(known[1])
        return described, copies, sizes

    def run_part(self, node: SimulatedNode, part: Any) -> asyncio.Task:
        """Start a node's coroutine; its errors end the run, but for the loss of its own lease."""
        task = self.loop.create_task(part, name=node.name)

        def ended(task: asyncio.Task) -> None:
            error = None if task.cancelled() else task.exception()
            if error is None or node.process.dead:
                return
            if not (isinstance(error, PeerLost) and error.peer == node.name and node.name != SERVER):
                self.fail(node.name, error)

        task.add_done_callback(ended)
        return task

    def new_process(self, name: str) -> Process:
        return Process(self, self.plan.cluster.device(name), self.new_runner())

    # -- departures on demand ----------------------------------------------------------------

    def at(
        self, event: str, predicate: Callable[[dict[str, Any]], bool], action: Callable[[], None], *, nth: int = 1
    ) -> None:
        """Do `action` once, at the moment of the nth such event that satisfies `predicate`."""
        self._hooks.append(_Hook(event, predicate, action, nth))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` when that much virtual time has passed."""
        self.loop.at(self.loop.now + seconds, lambda _: action())

    def leave(self, device: str, mode: str | None = None) -> None:
        """A device leaves now: 'kill', 'suspend' or 'disconnect'; None: as the run's churn does. Twice is once."""
        self.lives.leave(device, mode)

    def come_back(self, device: str) -> None:
        """It is there again, a device that was killed with an empty memory."""
        self.lives.come_back(device)

    def _look_at(self, entry: dict[str, Any]) -> None:
        for hook in [h for h in self._hooks if h.event == entry["event"] and h.predicate(entry)]:
            hook.left -= 1
            if hook.left == 0:
                self._hooks.remove(hook)
                self.after(0.0, hook.action)  # not inside of whoever recorded it

    # -- events --------------------------------------------------------------------------

    def record(self, event: str, node: str = "testbed", /, **fields: Any) -> None:
        if self._ended:
            return
        entry = {"t": self.loop.now, "node": node, "event": event, **fields}
        self._on_event(entry)
        if self._hooks:
            self._look_at(entry)

    def detail(self, event: str, node: str, /, **fields: Any) -> None:
        """An event of which there may be millions."""
        if self.detailed:
            self._details_left -= 1
            self.record(event, node, **fields)
            if self._details_left <= 0:
                self.detailed = False
                self.record(
                    "warning",
                    text=f"from {self.loop.now:.3f} s on, messages and computations are only in the "
                    "totals (simulation.details in the experiment)",
                )


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Thousands of nodes live until the end: looking through them every few thousand allocations costs more than
    all the rest."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1_000_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors are quicker on one thread, as the emulation's workers have it; and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
