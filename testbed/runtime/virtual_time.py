"""An asyncio event loop in virtual time: when every coroutine waits, the clock jumps to the next timer.

Nothing waits in real time and nothing polls the operating system, so a callback costs about a microsecond. The order
of callbacks depends on nothing but the order in which they were asked for: runs repeat exactly.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any


class Handle(list):
    """What `call_soon` and `call_at` return: [callback, args, context, time]; `cancel` makes the callback a no-op.

    A list, since one is made for each step of each task.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[0] = None

    def cancelled(self) -> bool:
        return self[0] is None

    def when(self) -> float:
        return self[3]


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop whose `time()` is virtual; starts at 0.

    Beside asyncio's calls it has `at`, a timer for engines: no handle, no context, no cancelling.

    Attributes:
        settle: called whenever all callbacks of an instant have run, before time moves on; may make new ones.
        on_idle: called when nothing can happen any more; must make something happen, raise, or call `stop`.
        stopping: set it (also from a signal handler) and `run_until_complete` raises `Stopped` soon.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.settle: Callable[[], None] = _nothing
        self.on_idle: Callable[[], None] = self.stop
        self.stopping: str | None = None
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Callable[[Any], Any], Any]] = []
        self._order = 0
        self._running = False
        self._closed = False

    # -- for engines -------------------------------------------------------------------

    def at(self, when_s: float, fn: Callable[[Any], Any], argument: Any = None) -> None:
        """Call `fn(argument)` at that virtual time, or now if it has passed."""
        self._order += 1
        heappush(self._timers, (when_s, self._order, fn, argument))

    @property
    def timers(self) -> int:
        """How many timers are set, those among them that will do nothing."""
        return len(self._timers)

    @property
    def busy(self) -> bool:
        """Whether callbacks wait for their turn in this instant."""
        return bool(self._ready)

    def run_until_complete(self, future: Coroutine | asyncio.Future) -> Any:
        """Raises `Stopped` when `stopping` was set; else the future's result or exception."""
        outer = asyncio._get_running_loop()
        if outer is not None:
            raise RuntimeError("another event loop is running in this thread")
        asyncio._set_running_loop(self)
        self._running = True
        try:
            task = asyncio.ensure_future(future, loop=self)
            self._run(task)
            return task.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _run(self, task: asyncio.Future) -> None:
        ready, timers, pop = self._ready, self._timers, heappop
        next_ready = ready.popleft
        ended: list[asyncio.Future] = []
        task.add_done_callback(ended.append)
        while not ended:
            while ready:
                callback, args, context, _ = next_ready()
                if callback is not None:
                    context.run(callback, *args)
            if self.stopping is not None:
                raise Stopped(self.stopping)
            self.settle()
            if ready or ended:
                continue
            if not timers:
                self.on_idle()
                continue
            when, _, fn, argument = pop(timers)
            if when > self.now:
                self.now = when
            fn(argument)
            while timers and timers[0][0] <= when:  # all that is due at this instant, so that it is settled once
                _, _, fn, argument = pop(timers)
                fn(argument)

    # -- asyncio's interface ------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(self, callback, *args, context=None) -> Handle:
        handle = Handle((callback, args, contextvars.copy_context() if context is None else context, 0.0))
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *args, context=None) -> Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None) -> Handle:
        handle = Handle((callback, args, contextvars.copy_context() if context is None else context, when))
        self.at(when, _call, handle)
        return handle

    def create_future(self) -> asyncio.Future:
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None) -> asyncio.Task:
        if context is None:
            return asyncio.Task(coro, loop=self, name=name)
        return context.run(asyncio.Task, coro, loop=self, name=name)

    get_debug = staticmethod(bool)  # False; each future asks when it is made

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def stop(self) -> None:
        self.stopping = "stopped"

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def call_exception_handler(self, context) -> None:
        """Tasks of a node that was killed end when they end: what asyncio would log about them is no news."""

    def run_in_executor(self, executor, func, *args):
        raise RuntimeError("no threads in virtual time: a runner's work belongs into Node.compute")


class Stopped(Exception):
    """The loop was stopped before its task was done."""


def _call(handle: Handle) -> None:
    callback, args, context, _ = handle
    if callback is not None:
        context.run(callback, *args)


def _nothing() -> None:
    pass
