"""Devices leave and come back, as their availability traces say or by hand: their links and processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from testbed.errors import InputError, unknown
from testbed.threads import StoppableThread

MODES = ("kill", "suspend", "disconnect")
ACTIONS = ("leave", "return")


class Network(Protocol):
    """What is needed of `testbed.emulation.network.emulated.EmulatedNetwork`."""

    def link_down(self, name: str) -> None: ...
    def link_up(self, name: str) -> None: ...


class Workers(Protocol):
    """What is needed of `testbed.emulation.process.workers.WorkerPool`."""

    def kill(self, name: str) -> None: ...
    def suspend(self, name: str) -> None: ...
    def resume(self, name: str) -> None: ...
    def relaunch(self, name: str) -> None: ...
    def state(self, name: str) -> str | None: ...


class ChurnController:
    """Toggles devices at their times, in a thread; `leave` and `come_back` toggle by hand. Records `churn`.

    Whatever the mode, the link is cut before anything happens to the worker, so that no connection is closed
    in an orderly way: others learn of the loss from silence, as they do when a computer is unplugged.

    * `kill`: the process dies, memory is lost; on return a new one starts.
    * `suspend`: the process is frozen (a sleeping computer answers nothing); on return it goes on.
    * `disconnect`: only the link is cut; the process computes on.

    A device that was never launched is launched on its first return, whatever the mode.

    Args:
        schedule: (emulated time [s], device, 'leave' or 'return').
        mode: one of MODES.
        tdf: time dilation factor.
        on_event: takes each event; called from the thread that toggles.
        absent: devices that are away at the start, beside those whose link is down already.
    """

    def __init__(
        self, schedule: Iterable[tuple[float, str, str]], *, mode: str, network: Network, pool: Workers,
        tdf: float = 1.0, on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        absent: Iterable[str] = (),
    ):  # fmt: skip
        if mode not in MODES:
            raise unknown("availability.churn", "churn mode", mode, MODES)
        self._schedule = sorted(schedule, key=lambda entry: entry[0])
        for t_s, device, action in self._schedule:
            if action not in ACTIONS or not t_s >= 0:
                raise InputError(
                    "churn schedule",
                    f"{device} at {t_s} s: action {action!r}; expected leave or return, at 0 s or later",
                )
        self.mode = mode
        self.error: BaseException | None = None  # what ended the schedule early
        self._network = network
        self._pool = pool
        self._tdf = tdf
        self._on_event = on_event
        self._away = {*absent, *getattr(network, "down", ())}
        self._t0: float | None = None
        self._next_due: float | None = None  # on CLOCK_MONOTONIC
        self._lock = threading.RLock()
        self._thread = StoppableThread(self._follow, "churn")

    @property
    def overdue_s(self) -> float:
        """For how long the next toggle has been due without being done [real s]; 0 when none is."""
        due = self._next_due
        return 0.0 if due is None else max(0.0, time.monotonic() - due)

    @property
    def away(self) -> frozenset[str]:
        """Devices that are away now."""
        with self._lock:
            return frozenset(self._away)

    def start(self, t0_monotonic: float) -> None:
        """Follow the schedule; emulated time 0 is at that moment of CLOCK_MONOTONIC."""
        self._t0 = t0_monotonic
        self._thread.start()

    def stop(self) -> None:
        """Nothing is toggled after this returns; devices stay as they are. Idempotent."""
        self._thread.stop()

    def leave(self, device: str, *, due_s: float | None = None) -> bool:
        """The device is gone from now on. False when it was away already.

        Args:
            due_s: when the schedule wanted it [emulated s]; None: by hand.
        """
        with self._lock:
            if device in self._away:
                return False
            self._network.link_down(device)
            self._away.add(device)
            self._record(device, "leave", due_s)
            if self.mode == "kill":
                self._pool.kill(device)
            elif self.mode == "suspend":
                self._pool.suspend(device)
            return True

    def come_back(self, device: str, *, due_s: float | None = None) -> bool:
        """The device is there again; one killed, or never there, starts anew. False when it was there."""
        with self._lock:
            if device not in self._away:
                return False
            self._network.link_up(device)
            self._away.discard(device)
            self._record(device, "return", due_s)
            state = self._pool.state(device)
            if state == "suspended":
                self._pool.resume(device)
            elif state in (None, "killed", "ended"):
                self._pool.relaunch(device)
            return True

    def _record(self, device: str, action: str, due_s: float | None) -> None:
        """Right after the link has changed, which is what the others can notice."""
        now_s = 0.0 if self._t0 is None else max(0.0, (time.monotonic() - self._t0) / self._tdf)
        self._on_event({
            "t": now_s, "node": device, "event": "churn", "action": action, "mode": self.mode,
            "late": 0.0 if due_s is None else max(0.0, now_s - due_s),
            "cause": "manual" if due_s is None else "trace",
        })  # fmt: skip

    def _follow(self) -> None:
        try:
            for due_s, device, action in self._schedule:
                self._next_due = self._t0 + due_s * self._tdf
                if self._thread.wait(max(0.0, self._t0 + due_s * self._tdf - time.monotonic())):
                    return
                toggle = self.leave if action == "leave" else self.come_back
                toggle(device, due_s=due_s)
        except BaseException as error:
            self.error = error
            text = f"churn ended early, at {device}'s {action} due at {due_s:g} s: {error}"
            now_s = max(0.0, (time.monotonic() - self._t0) / self._tdf)
            self._on_event({"t": now_s, "node": "testbed", "event": "warning", "text": text})
        finally:
            self._next_due = None
