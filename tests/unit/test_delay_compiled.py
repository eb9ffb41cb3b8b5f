"""The compiled loop does what the one in Python does; without a compiler nothing is lost."""

import errno
import importlib.metadata
import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from testbed.emulation.delay import compiled_line, netfilter, shared_stats
from testbed.emulation.delay.compiled_line import CompiledLine, library_path, load, make_line
from testbed.emulation.delay.delay_line import DelayLine
from testbed.emulation.delay.lanes import LOST, Generator, Lane, Lanes
from testbed.scenario.link_model import PathDelay

SOURCE = Path(compiled_line.__file__).with_name("line.c")
MACS = {bytes([2, 0, 0, 0, 0, i]): f"h{i}" for i in range(1, 5)}
PORTS = {10 + i: f"h{i}" for i in range(1, 5)}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Built here from source, with every warning an error."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("line") / "line.so"
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, SOURCE, "-lm", "-lpthread"],
        check=True,
    )
    return load(path)


@pytest.fixture
def wired(library):
    """Makes a compiled line with these delays: it, the kernel's end of its socket, and what makes its handler run."""
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told, tell = socket.socketpair()
    with kernel, ours, told, tell:

        def make(delays):
            line = CompiledLine(library, ours, Lanes(delays, {}, {}, 3), MACS, PORTS, _view())
            line.add_handler(told.fileno(), lambda: None)
            return line, kernel, tell

        yield make


def _view():
    fd = shared_stats.create()
    try:
        return shared_stats.view(fd)
    finally:
        os.close(fd)


def _message(queue: int, packet_id: int, out: int, mac: bytes) -> bytes:
    """One packet's metadata, as the kernel sends it."""

    def attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)

    now = time.time_ns()
    body = (
        struct.pack("=BB", 0, 0)
        + struct.pack(">H", queue)
        + attribute(netfilter.A_PACKET_HDR, struct.pack(">IHB", packet_id, 0x0800, 2))
        + attribute(netfilter.A_PHYSOUTDEV, struct.pack(">I", out))
        + attribute(netfilter.A_HWADDR, struct.pack(">HH", 6, 0) + mac + bytes(2))
        + attribute(netfilter.A_TIMESTAMP, struct.pack(">QQ", now // 10**9, now % 10**9 // 1000))
    )
    return struct.pack("=IHHII", 16 + len(body), 3 << 8, 0, 0, 0) + body


def _verdicts(sock: socket.socket) -> list[tuple[int, int, int]]:
    """(queue, packet id, verdict) of what has been answered."""
    found = []
    while True:
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            return found
        for at in range(0, len(data), netfilter.VERDICT_BYTES):
            queue, header, verdict, packet_id = netfilter.VERDICT_FIELDS.unpack_from(data, at + netfilter.VERDICT_AT)
            assert header == netfilter.VERDICT_HEADER
            found.append((queue, packet_id, verdict))


@pytest.mark.parametrize(
    "settings",
    [
        PathDelay(down_delay_s=0.02),
        PathDelay(down_delay_s=0.02, down_loss=0.2),
        PathDelay(0.0, 0.01, 0.0, 0.004),
        PathDelay(down_delay_s=0.01, down_jitter_s=0.02, down_loss=0.05, reorder=0.3),
    ],
)
def test_every_packet_has_the_same_fate_in_both(library, settings):
    lanes = Lanes({"b": settings}, {}, {}, 7)
    lane = lanes.lane("a", "b")
    line = library.line_new(-1, -1, None)
    try:
        number = library.line_add(line, 1, bytes(6), *lane.seeds)
        library.line_set(line, number, lane.delay, lane.jitter, lane.loss, lane.reorder)
        rng, at, lost = random.Random(1), 1_000_000_000, 0
        for _ in range(5000):
            at += rng.randrange(2_000_000)
            due = lane.due(at)
            assert library.line_due(line, number, at) == due
            lost += due == LOST
        assert (lost > 0) == (settings.down_loss > 0)
    finally:
        library.line_free(line)


@pytest.mark.parametrize("make", [DelayLine, CompiledLine], ids=["python", "compiled"])
def test_packets_are_released_once_in_order_and_on_time(request, make):
    """120 packets of several pairs through a socket that stands for the kernel's."""
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told, tell = socket.socketpair()
    with kernel, ours, told, tell:
        kernel.setblocking(False)
        memory = _view()
        lanes = Lanes(
            {"h2": PathDelay(down_delay_s=0.03), "h3": PathDelay(down_delay_s=0.01, down_loss=0.3)}, {}, {}, 3
        )
        arguments = (ours, lanes, MACS, PORTS, memory)
        line = make(*arguments) if make is DelayLine else make(request.getfixturevalue("library"), *arguments)
        line.add_handler(told.fileno(), lambda: told.recv(1))
        sent = {}
        mac = next(iter(MACS))
        for i in range(120):
            out = 12 + i % 2  # h2, h3
            sent[i % 128, i] = (out, time.monotonic())  # before: between the two the test may have to wait
            kernel.send(_message(i % 128, i, out, mac))
            if i == 60:  # it had dropped a packet before its verdict came: no packet
                kernel.send(struct.pack("=IHHIIi", 36, netfilter._NLMSG_ERROR, 0, 0, 0, -errno.ENOENT) + bytes(16))
        answers, released = {}, []
        deadline = time.monotonic() + 5
        while len(answers) < 120 and time.monotonic() < deadline:
            line.turn(time.monotonic_ns() + 2_000_000)
            for queue, packet_id, verdict in _verdicts(kernel):
                assert (queue, packet_id) not in answers
                answers[queue, packet_id] = verdict
                if verdict == netfilter.ACCEPT:
                    released.append((packet_id, time.monotonic() - sent[queue, packet_id][1]))
        assert answers.keys() == sent.keys()
        slow = [p for p in released if sent[p[0] % 128, p[0]][0] == 12]
        assert len(slow) == 60
        assert [p for p, _ in slow] == sorted(p for p, _ in slow)
        assert min(t for _, t in slow) >= 0.03 - 0.001  # never early, but for what is released together
        dropped = sum(v == netfilter.DROP for v in answers.values())
        assert dropped == line.lost
        assert 5 < dropped < 35
        assert line.packets == 120
        assert line.queued == 0
        counted = sum(memory[shared_stats.HISTOGRAM :])
        assert counted == line.released == 120 - dropped
        lanes.set({"h2": PathDelay(down_delay_s=0.0)})  # a change reaches the loop
        kernel.send(_message(5, 1000, 12, mac))
        began = time.monotonic()
        while not (got := _verdicts(kernel)) and time.monotonic() < began + 5:
            line.turn(time.monotonic_ns() + 2_000_000)
        assert got == [(5, 1000, netfilter.ACCEPT)]
        tell.send(b"x")
        line.turn(time.monotonic_ns() + 1_000_000_000)  # the handler ends the turn
        assert time.monotonic() < began + 5


@pytest.mark.parametrize(("delay_s", "early_s"), [(0.03, 200e-6), (0.0004, 100e-6), (0.0001, 25e-6)])
@pytest.mark.parametrize("make", [DelayLine, CompiledLine], ids=["python", "compiled"])
def test_a_busy_line_releases_packets_only_a_little_early(request, make, delay_s, early_s):
    """30,000 packets a second: what is due soon goes along with what is due."""
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told, tell = socket.socketpair()
    with kernel, ours, told, tell:
        kernel.setblocking(False)
        arguments = (ours, Lanes({"h2": PathDelay(down_delay_s=delay_s)}, {}, {}, 3), MACS, PORTS, _view())
        line = make(*arguments) if make is DelayLine else make(request.getfixturevalue("library"), *arguments)
        line.add_handler(told.fileno(), lambda: None)
        mac, sent, early = next(iter(MACS)), [], []
        begin = time.monotonic()
        while len(early) < 1200 and time.monotonic() < begin + 5:
            while len(sent) < min(1200, 30_000 * (time.monotonic() - begin)):
                sent.append(time.monotonic())
                kernel.send(_message(1, len(sent) - 1, 12, mac))
            line.turn(time.monotonic_ns() + 500_000)
            for _, packet_id, _ in _verdicts(kernel):
                early.append(sent[packet_id] + delay_s - time.monotonic())
        assert len(early) == 1200
        assert max(early) < early_s + 2e-6  # the kernel's times are whole microseconds


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor only")
def test_a_stand_in_works_while_the_line_is_kept_from_it(wired):
    """The main thread takes packets in once and is then never there: they are released all the same, each once."""
    before = os.sched_getaffinity(0)
    line, kernel, _ = wired({"h2": PathDelay(down_delay_s=0.03)})
    kernel.setblocking(False)
    try:
        own, *others = sorted(before)
        os.sched_setaffinity(0, [own])
        line.start_stand_in(others)
        mac = next(iter(MACS))
        for i in range(50):
            kernel.send(_message(1, i, 12, mac))
        began = time.monotonic()
        while line.packets < 50 and time.monotonic() < began + 5:  # an unknown lane is the main thread's to make
            line.turn(time.monotonic_ns() + 1_000_000)
        for i in range(50, 100):  # of a lane that is known: not even to be read by the main thread
            kernel.send(_message(1, i, 12, mac))
        released = []
        while len(released) < 100 and time.monotonic() < began + 5:
            time.sleep(0.001)
            released += _verdicts(kernel)
        assert released == [(1, i, netfilter.ACCEPT) for i in range(100)]
        line.close()
        assert line.stood_in == line.released == 100
    finally:
        line.close()
        os.sched_setaffinity(0, before)


def test_lags_are_counted_in_the_same_buckets(library):
    """The compiled histogram's edges are shared_stats' (the last edge of each doubling, and beyond the last)."""
    text = SOURCE.read_text()
    assert f"STEP_NS = {shared_stats._STEP_NS}" in text
    assert f"LINEAR = {shared_stats._LINEAR}" in text
    assert f"HISTOGRAM = {shared_stats.HISTOGRAM}" in text
    assert shared_stats.BYTES == 8 * (shared_stats.HISTOGRAM + shared_stats._LINEAR + 40)


def test_generator_is_uniform_and_normal():
    g = Generator(12345)
    uniform = [g.uniform() for _ in range(20_000)]
    assert 0 <= min(uniform) < max(uniform) < 1
    assert sum(uniform) / 20_000 == pytest.approx(0.5, abs=0.01)
    normal = [g.gauss() for _ in range(20_000)]
    mean = sum(normal) / 20_000
    assert mean == pytest.approx(0, abs=0.03)
    assert sum((x - mean) ** 2 for x in normal) / 20_000 == pytest.approx(1, abs=0.05)
    assert Lane("a>b", 1).seeds == Lane("a>b", 1).seeds != Lane("a>b", 2).seeds


def test_the_choice(monkeypatch):
    a, b = socket.socketpair()
    with a, b:
        arguments = (a, Lanes({}, {}, {}, 0), {}, {}, _view())
        monkeypatch.setenv(compiled_line.CHOICE, "python")
        assert make_line(*arguments).loop == "python"
        monkeypatch.delenv(compiled_line.CHOICE)
        monkeypatch.setattr(compiled_line, "library_path", lambda: None)  # as where it could not be built
        assert make_line(*arguments).loop == "python"
        monkeypatch.setenv(compiled_line.CHOICE, "compiled")
        with pytest.raises(OSError, match="was not built"):
            make_line(*arguments)


def test_it_was_built_where_there_is_a_compiler():
    assert importlib.metadata.version("testbed")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    path = library_path()
    assert path is not None, "pip install -e . builds testbed/emulation/delay/line.c"
    load(path)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor only")
def test_what_a_stand_in_reads_does_not_wait_for_the_lines_next_look(wired):
    """Each packet opens a lane, which only the line's own thread can make; it is asleep until long after."""
    line, kernel, tell = wired({})
    kernel.settimeout(5)
    turn = threading.Thread(target=line.turn, args=(time.monotonic_ns() + 60 * 10**9,))
    try:
        turn.start()
        line.start_stand_in(os.sched_getaffinity(0))
        for i in range(400):
            time.sleep(0.0017)
            kernel.send(_message(1, i, 12, i.to_bytes(6)))
            assert kernel.recv(1 << 16)
        tell.send(b"x")
        turn.join(5)
        assert not turn.is_alive()
        assert line.stood_in < line.released == 400
    finally:
        tell.send(b"x")
        turn.join()
        line.close()
