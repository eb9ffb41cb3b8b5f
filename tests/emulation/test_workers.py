"""Worker processes: what they are, that they do the work, and that nothing of them outlives its run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec
from testbed.emulation import cleanup
from testbed.emulation.process.workers import HostAddress, WorkerPool
from testbed.errors import TestbedError
from testbed.runtime import Plan

pytestmark = pytest.mark.emulation

MEMORY = 200 << 20


def make_plan(names, **data):
    cluster = Cluster(
        Device("server", 1e10, 1 << 30, Link(1e9, 1e9)),
        tuple(Device(n, 1e9, MEMORY, Link(2e7, 1e8, 0.01, 0.01)) for n in names),
    )
    return Plan("test", ModelSpec(), TrainingSpec(), cluster, data=data)


def loopback(names):
    """Addresses of their own in the machine's namespace, for tests that need no network."""
    last = {"server": 250, **{n: i + 1 for i, n in enumerate(names)}}
    return {n: HostAddress(n, f"127.83.{os.getpid() % 250}.{i}") for n, i in last.items()}


@pytest.fixture
def pool(state, tmp_path):
    """Makes a started pool: pool(runner, number of devices or their names, addresses=…, **plan data)."""
    made = []

    def make(runner, devices=2, addresses=None, options=None, run_state=None, **data):
        names = [f"home{i}" for i in range(devices)] if isinstance(devices, int) else list(devices)
        events = []
        p = WorkerPool(
            state=run_state or state, run_dir=tmp_path, runner=f"worker_runners:{runner}",
            plan=make_plan(names, **data), addresses=addresses or loopback(names), on_event=events.append,
            memory_limits=dict.fromkeys(names, MEMORY), **(options or {}),
        )  # fmt: skip
        made.append(p)
        p.events = events
        p.names = names
        p.start()
        return p

    yield make
    for p in made:
        p.close()


def go(p, timeout=60):
    p.launch(["server", *p.names])
    p.begin(time.monotonic() + 0.1)
    return p.wait(timeout)


def of(events, kind):
    return [e for e in events if e["event"] == kind]


def test_workers_are_unprivileged_processes_in_their_host_and_cgroup(build, pool, tmp_path):
    network = build(("home0", "home1"))
    p = pool("Echo", ("home0", "home1"), network.hosts, run_state=network.state)
    outcome = go(p)
    assert (outcome.ok, outcome.node) == (True, "server")
    usage = p.usage()
    p.close()
    facts = {e["device"]: e for e in of(p.events, "facts")}
    for name in ("home0", "home1"):
        f = facts[name]
        assert f["uid"] == [65534] * 3
        assert f["groups"] == ""
        assert int(f["privileges"], 16) == 1 << 2  # CAP_DAC_READ_SEARCH: to read what it imports late
        assert f["no_new_privs"] == "1"
        assert f["netns"] == f"net:[{os.stat(network.hosts[name].netns_path).st_ino}]"
        assert f["threads"] == 1
        assert f["group"] is True
        assert f"/testbed/{network.state.run_id}/{name}\n" in f["memory_cgroup"]
        assert f"hello from {name}" in (tmp_path / "logs" / f"{name}.log").read_text()
        assert usage[name]["cpu_s"] > 0
        assert 1e6 < usage[name]["memory_bytes"] < MEMORY
    computes = of(p.events, "compute")
    assert len(computes) == 2
    for c in computes:  # paced: never faster than the device
        assert c["end"] - c["start"] > 0.1 - 1e-6
    sent = {(e["node"], e["peer"], e["tag"]): e["bytes"] for e in of(p.events, "send")}
    came = {(e["peer"], e["node"], e["tag"]): e["bytes"] for e in of(p.events, "transfer")}
    assert sent == came
    assert len(sent) == 4
    total = {e["node"]: e for e in of(p.events, "transport")}
    assert total["server"]["sent"]["home0"] == sent["server", "home0", "x"] > 300_000 * 8
    assert total["home1"]["received"] == {"server": sent["server", "home1", "x"]}
    states = [(e["node"], e["state"]) for e in of(p.events, "worker")]
    assert [s for n, s in states if n == "home0"] == ["started", "ready", "ended"]


def test_a_device_that_needs_too_much_memory_is_killed_and_named(pool):
    outcome = go(pool("Hungry"))
    assert not outcome.ok
    assert outcome.node == "home1"
    assert re.search(r"home1 needed more than its 210 MB of memory and was killed", outcome.reason)


def test_an_error_of_the_runner_ends_the_run_with_its_traceback(pool, tmp_path):
    p = pool("Broken")
    outcome = go(p)
    assert not outcome.ok
    assert outcome.node == "home0"
    assert outcome.reason == "home0: ZeroDivisionError: a bug in the runner"
    assert "worker_runners.py" in outcome.traceback
    assert "testbed/emulation" not in outcome.traceback
    assert "ZeroDivisionError" in (tmp_path / "logs" / "home0.log").read_text()


def test_a_worker_that_just_ends_is_named_and_a_dead_fork_server_too(pool):
    p = pool("Exits")
    outcome = go(p)
    assert outcome.reason == "the worker of home0 ended with exit code 3"
    pids = p.pids()
    assert set(pids) == {"server", "home1"}
    os.kill(p._forkserver.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(cleanup._alive(pid) for pid in pids.values()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(cleanup._alive(pid) for pid in pids.values())


def test_an_unknown_runner_is_an_error_that_says_so(pool):
    with pytest.raises(TestbedError, match="does not load.*NoSuchRunner"):
        pool("NoSuchRunner").launch(["server"])


def test_a_device_that_never_joins_is_named(pool):
    p = pool("Idle", options={"ready_timeout_s": 6.0})
    p._addresses["home1"] = HostAddress("home1", "127.83.0.9", netns_path=None)
    p._addresses["server"] = HostAddress("server", "127.83.0.8")
    p.launch(["server", "home0"])
    p._ready_timeout_s = 1.0
    p._addresses["server"] = HostAddress("server", "127.83.0.7")  # home1 knocks at the wrong door
    with pytest.raises(TestbedError, match=r"home1 didn't join within 1 s"):
        p.launch(["home1"])


def test_kill_suspend_resume_and_relaunch(pool):
    p = pool("Idle", 2)
    p.launch(["server", *p.names])
    p.begin(time.monotonic())
    first = p.pids()["home0"]
    p.suspend("home1")
    assert p.state("home1") == "suspended"
    before = p.usage()["home1"]["cpu_s"]
    time.sleep(0.5)
    assert p.usage()["home1"]["cpu_s"] == before
    p.kill("home0")
    assert p.state("home0") == "killed"
    assert not cleanup._alive(first)
    p.resume("home1")
    p.relaunch("home0")
    deadline = time.monotonic() + 10
    while p.state("home0") != "ready" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert p.state("home0") == "ready"
    assert p.pids()["home0"] != first
    assert p.usage()["home1"]["cpu_s"] > before
    assert p.wait(0.0) is None
    p.suspend("home1")  # and the end finds it frozen
    pids = p.pids()
    p.close()
    p.close()
    assert not any(cleanup._alive(pid) for pid in pids.values())
    assert not [d for h in p._cgroups.hosts.values() for d in h.directories]


def test_a_killed_engine_leaves_no_orphans(tmp_path):
    script = textwrap.dedent("""
        import sys, time
        sys.path[:0] = {path!r}
        import test_workers as t
        from testbed.emulation.state import RunState
        state = RunState.create(None, command="pytest")
        names = ["home0", "home1"]
        p = t.WorkerPool(state=state, run_dir=t.Path({run_dir!r}), runner="worker_runners:Idle",
                         plan=t.make_plan(names), addresses=t.loopback(names))
        p.start()
        p.launch(["server", *names])
        p.begin(time.monotonic())
        p.suspend("home1")
        print(state.run_id, *p.pids().values(), flush=True)
        time.sleep(100)
    """).format(path=[str(Path(__file__).parent), *filter(None, sys.path)], run_dir=str(tmp_path))
    engine = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    run_id, *pids = engine.stdout.readline().split()
    assert len(pids) == 3
    engine.kill()
    engine.wait()
    engine.stdout.close()
    running = [int(p) for p in pids[:2]]
    deadline = time.monotonic() + 5
    while any(map(cleanup._alive, running)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(cleanup._alive, running))
    cleanup.clean(run_id)  # the frozen one of cgroup v1 dies when thawed; and the groups go
    assert not cleanup._alive(int(pids[2]))
    assert not list(Path("/sys/fs/cgroup").glob(f"**/testbed/{run_id}"))
    assert not [r for r in cleanup.runs() if r.run_id == run_id]
