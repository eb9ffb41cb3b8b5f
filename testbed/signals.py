"""Signals that end a run: the first ends it in order, the next can't cut its clean-up short."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to end: it does so in order and keeps what it measured. The text names the signal."""


_libc = ctypes.CDLL(None)
_libc.signal.restype = ctypes.c_void_p
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ignore(signum: int) -> None:
    """Ignore a signal, as what is started from now on does, too, which Ctrl-C reaches as well.

    Not by `signal.signal`: of a signal that comes while Python's own handler becomes SIG_IGN, Python writes a traceback
    (`ignored due to race condition`). So that one stays, and the kernel alone knows that it is not called any more.
    """
    _libc.signal(signum, ctypes.c_void_p(signal.SIG_IGN.value))


@contextmanager
def interruptible(on_signal: Callable[[str], None] = lambda name: None) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP raises Interrupted in the main thread; later ones can't cut clean-up short.

    A SIGHUP that is ignored, as `nohup` has it, stays so. Leaving the context restores the handlers.
    """

    came = False

    def handler(signum: int, frame: Any) -> None:
        nonlocal came
        if came:
            return
        came = True
        for s in _SIGNALS:
            _ignore(s)
        name = signal.Signals(signum).name
        on_signal(name)
        raise Interrupted(name)

    def once_more(signum: int, frame: Any) -> None:
        _ignore(signum)
        raise Interrupted(signal.Signals(signum).name)

    def unraisable(what: sys.UnraisableHookArgs) -> None:
        """What is raised in a destructor, or in a weak reference's callback, Python drops: the signal comes again."""
        if not isinstance(what.exc_value, Interrupted):
            hook(what)
            return
        signum, main = signal.Signals[str(what.exc_value)], threading.main_thread().ident
        signal.signal(signum, once_more)
        threading.Timer(0.01, lambda: signal.pthread_kill(main or 0, signum)).start()  # once the callback is over

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        s: signal.signal(s, handler)
        for s in _SIGNALS
        if s is not signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN
    }
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for s, old in before.items():
            signal.signal(s, old)
