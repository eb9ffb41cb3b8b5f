"""A thread that can be told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable


class StoppableThread:
    """Runs `target()`, which returns once `stopped` is set; `wait` sleeps until then."""

    def __init__(self, target: Callable[[], None], name: str):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=target, name=name, daemon=True)

    def start(self) -> None:
        """Raises RuntimeError: it was started before."""
        self._thread.start()

    def stop(self) -> None:
        """The thread has ended when this returns, unless it is the caller. May be called again, and before `start`."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until it is told to stop; whether it was."""
        return self._stop.wait(seconds)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the target has returned; whether it has. False, too, before `start`."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return self.done

    @property
    def done(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()
