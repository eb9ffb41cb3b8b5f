"""Signals that end a run, from a user who can't wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref

import pytest

from testbed.signals import Interrupted, interruptible

HASTY = """
import os, signal, threading, time
from testbed.signals import Interrupted, interruptible

signal.signal(signal.SIGTERM, lambda *_: None)
me = os.getpid()
if not (child := os.fork()):
    while os.getppid() == me:
        os.kill(me, signal.SIGTERM)
        os.kill(me, signal.SIGTERM)
        time.sleep(2e-4)
    os._exit(0)
for _ in range(3):  # which the second signal comes to, as long as the first is about to be handled
    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
ended = time.monotonic() + 1
count = 0
while time.monotonic() < ended:
    try:
        with interruptible():
            try:
                time.sleep(5)
            finally:
                count += 1
                assert not os.system("kill -TERM $$")  # what is started now does not heed them either
    except Interrupted:
        pass
os.kill(child, signal.SIGKILL)
print(count)
"""


def test_signals_that_come_while_the_first_is_handled_neither_end_anything_nor_leave_a_traceback():
    done = subprocess.run([sys.executable, "-c", HASTY], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0
    assert int(done.stdout) > 10


@pytest.mark.parametrize("ignored", [True, False])
def test_a_run_under_nohup_outlives_its_terminal(ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    came = []
    try:
        with interruptible(came.append):
            os.kill(os.getpid(), signal.SIGHUP)
    except Interrupted:
        pass
    finally:
        signal.signal(signal.SIGHUP, before)
    assert came == ([] if ignored else ["SIGHUP"])


CHATTY = """
import os, random, signal, time
from testbed.signals import Interrupted, interruptible

me, count = os.getpid(), 0
for _ in range(60):
    try:
        with interruptible(lambda name: print(f"{name}: told")):
            if not (child := os.fork()):
                time.sleep(random.uniform(1e-3, 8e-3))
                os.kill(me, signal.SIGINT)
                os._exit(0)
            while True:
                print("x" * 200, flush=True)
    except Interrupted:
        count += 1
    os.waitpid(child, 0)
print(count, flush=True)
"""


def test_a_signal_in_the_middle_of_a_print_is_told_and_ends_the_run():
    done = subprocess.run([sys.executable, "-c", CHATTY], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "60"
    assert done.stdout.count("SIGINT: told") == 60


LOST = """
import os, signal, time
from testbed.signals import Interrupted, interruptible

class Destroyed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)  # the handler raises in here, where Python drops it

try:
    with interruptible():
        thing = Destroyed()
        del thing
        while True:
            time.sleep(0.01)
except Interrupted as name:
    print(name)
"""


def test_an_interrupt_that_python_drops_is_raised_again():
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("SIGTERM\n", "")


def test_a_signal_that_comes_in_a_weak_references_callback_is_not_lost():
    """Python drops what such a callback raises."""

    class Thing:
        pass

    told = []

    def wait() -> None:
        with interruptible(told.append):
            thing = Thing()
            reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
            del thing
            assert reference() is None
            for _ in range(500):
                time.sleep(0.01)

    with pytest.raises(Interrupted, match="SIGTERM"):
        wait()
    assert told == ["SIGTERM"]


def test_a_run_that_heeds_the_signal_inside_goes_on_to_its_summary():
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Interrupted as name:
            said = str(name)
    assert said == "SIGTERM"
