"""Membership over real datagrams on loopback, in real time: joins, views, a loss, a return."""

import contextlib
import itertools
import os
import queue
import resource
import time

from testbed.emulation.process.heartbeats import MembershipClient, MembershipServer
from testbed.emulation.process.membership import Expelled, Joined
from testbed.runtime import MembershipEvent
from testbed.runtime.failure_detector import DetectorSettings

FAST = DetectorSettings(interval_s=0.02, floor_s=0.3, ceiling_s=2.0)
_ports = itertools.count(20000 + os.getpid() % 20000)


def expect(changes, kind, name=None, timeout=5.0):
    """The next change of that type (or kind of MembershipEvent) and name."""
    end = time.monotonic() + timeout
    while True:
        change = changes.get(timeout=max(0.01, end - time.monotonic()))
        if isinstance(kind, type):
            if isinstance(change, kind):
                return change
        elif isinstance(change, MembershipEvent) and (change.kind, change.name) == (kind, name):
            return change


def test_join_leave_and_return():
    server_address = ("127.91.1.1", next(_ports))
    names = ["a", "b"]
    seen = queue.Queue()
    server = MembershipServer(server_address, names, on_event=seen.put, settings=FAST)
    server.start()
    clients, changes = {}, {}

    def start(name, ip):
        changes[name] = queue.Queue()
        clients[name] = MembershipClient(
            (ip, 0), server_address, names, name, on_change=changes[name].put, settings=FAST
        )
        clients[name].start()

    try:
        start("a", "127.91.1.2")
        expect(seen, "joined", "a")
        joined = expect(changes["a"], Joined)
        assert (joined.generation, joined.alive) == (1, {"a": 1})
        start("b", "127.91.1.3")
        assert expect(changes["a"], "joined", "b").generation == 1
        assert expect(changes["b"], Joined).alive == {"a": 1, "b": 1}
        server.begin(time.monotonic())
        deadline = time.monotonic() + 5
        while clients["b"].rtt_s == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 0 < clients["b"].rtt_s < 0.1
        assert server.deadline_s("b") >= FAST.floor_s
        clients["b"].close()  # dies without a word
        left = expect(seen, "left", "b")
        assert FAST.floor_s <= left.detection_s < 2
        assert left.at_s > 0
        assert expect(changes["a"], "left", "b") == left
        start("b", "127.91.1.3")
        assert expect(seen, "joined", "b").generation == 2
        assert expect(changes["b"], Joined).generation == 2
        server.close()
        assert expect(changes["a"], Expelled).reason == "the lease ran out"
    finally:
        server.close()
        for c in clients.values():
            c.close()


def test_sockets_of_a_process_with_a_thousand_files_open():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, limits[0]), limits[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1024):
            stack.callback(os.close, os.dup(2))
        address, seen = ("127.91.1.6", next(_ports)), queue.Queue()
        server = MembershipServer(address, ["a"], on_event=seen.put, settings=FAST)
        stack.callback(server.close)
        client = MembershipClient(("127.91.1.7", 0), address, ["a"], "a", on_change=lambda c: None, settings=FAST)
        stack.callback(client.close)
        server.start()
        client.start()
        expect(seen, "joined", "a")


def test_time_dilation_stretches_everything():
    address = ("127.91.1.4", next(_ports))
    seen = queue.Queue()
    server = MembershipServer(address, ["a"], on_event=seen.put, settings=FAST, tdf=3.0)
    server.start()
    client = MembershipClient(("127.91.1.5", 0), address, ["a"], "a", on_change=lambda c: None, settings=FAST, tdf=3.0)
    client.start()
    try:
        expect(seen, "joined", "a")
        time.sleep(0.5)
        client.close()
        closed = time.monotonic()
        left = expect(seen, "left", "a")
        assert time.monotonic() - closed > 3.0 * (FAST.floor_s - FAST.interval_s)
        assert FAST.floor_s <= left.detection_s < 2
    finally:
        client.close()
        server.close()
