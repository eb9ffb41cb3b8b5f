"""Signals that end a run: the first ends it in order, the next can't cut its clean-up short."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to end: it does so in order and keeps what it measured. The text names the signal."""


AGAIN_S = 0.01
TELL_S = 2.0  # at most, for telling of a signal
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

    on_signal: told the signal's name, in a thread of its own. Python runs a handler between any two instructions, also
        while standard output is being written: what prints there fails. The handler itself only raises.

    Raises:
        Interrupted: again, where Python drops it, as it does with what is raised in a destructor or a weak callback.
    """
    if threading.current_thread() is not threading.main_thread():  # where Python sets no handlers
        yield
        return
    name = ""
    told, tell = os.pipe()

    def handler(signum: int, frame: Any) -> None:
        nonlocal name
        if name:
            return
        name = signal.Signals(signum).name
        for s in _SIGNALS:
            _ignore(s)
        os.write(tell, name.encode())
        raise Interrupted(name)

    def listen() -> None:
        if text := os.read(told, 32).decode():
            with contextlib.suppress(OSError, ValueError):  # a closed output
                on_signal(text)

    class Again(Interrupted):
        """Made by Python itself, without arguments."""

        def __init__(self) -> None:
            super().__init__(name)

    main = threading.get_ident()

    def raise_again() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Again))

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, Interrupted):
            threading.Timer(AGAIN_S, raise_again).start()  # by then the destructor has ended
        else:
            drop_before(what)

    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    before = {
        s: signal.signal(s, handler)
        for s in _SIGNALS
        if s is not signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN
    }
    drop_before, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = drop_before
        for s, old in before.items():
            signal.signal(s, old)
        os.close(tell)  # ends the listener
        listener.join(TELL_S)
        if not listener.is_alive():
            os.close(told)
