"""Signals that end a run: the first ends it in order, the next can't cut its clean-up short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to end: it does so in order and keeps what it measured. The text names the signal."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible(on_signal: Callable[[str], None] = lambda name: None) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP raises Interrupted in the main thread; later ones can't cut clean-up short.

    Leaving the context restores the handlers.
    """

    def handler(signum: int, frame: Any) -> None:
        for s in _SIGNALS:
            signal.signal(s, signal.SIG_IGN)
        name = signal.Signals(signum).name
        on_signal(name)
        raise Interrupted(name)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, handler) for s in _SIGNALS}
    try:
        yield
    finally:
        for s, old in before.items():
            signal.signal(s, old)
