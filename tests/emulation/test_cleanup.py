"""Clean-up after every kind of end, with other people's objects beside ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.emulation import cleanup
from testbed.emulation import state as state_file
from testbed.emulation.kernel import namespaces
from testbed.emulation.state import RunState, process_value
from testbed.errors import InputError

pytestmark = pytest.mark.emulation

HOLDER = """
import subprocess, sys, time
from testbed.cluster import Link, Topology
from testbed.emulation.network.emulated import EmulatedNetwork
from testbed.emulation.state import RunState
homes = tuple(f"h{i}" for i in range(1, int(sys.argv[1]) + 1))
topology, links = Topology(homes, Link(1e9, 1e9)), {h: Link(1e7, 1e7) for h in homes}
network = EmulatedNetwork(RunState.create(), topology, links)
network.start()
network.popen("h1", ["sh", "-c", "sleep 300 & sleep 300"])
network.net.get("h2").cmd("sleep 300 &")
print(network.state.run_id, flush=True)
time.sleep(300)
"""


@pytest.fixture
def holder() -> Iterator[tuple[subprocess.Popen, str]]:
    """Another process that holds a network with programs in it: (process, run id)."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, "2"], stdout=subprocess.PIPE, text=True)
    run_id = process.stdout.readline().strip()
    assert run_id, "the other process didn't start"
    yield process, run_id
    process.kill()
    process.wait()
    process.stdout.close()
    if any(run.run_id == run_id for run in cleanup.runs()):
        cleanup.clean(run_id)


@pytest.fixture
def foreign() -> Iterator[str]:
    """A namespace of someone else's with a bridge and a program in it, its name much like ours."""
    name = f"tb-foreign-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "-n", name, "link", "add", "br0", "type", "bridge"], check=True)
    program = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "300"], start_new_session=True)
    yield name
    alive = program.poll() is None
    program.kill()
    program.wait()
    links = subprocess.run(["ip", "-n", name, "link"], capture_output=True, text=True, check=False).stdout
    subprocess.run(["ip", "netns", "del", name], check=False)
    assert alive
    assert "br0" in links


def names_of(run_id: str) -> list[str]:
    return [name for name in os.listdir("/run/netns") if run_id in name]


def test_after_sigkill_clean_leaves_nothing_and_touches_nobody_elses(holder, foreign):
    process, run_id = holder
    inside = namespaces.processes_in(names_of(run_id))
    assert len(names_of(run_id)) == 4
    assert len(inside) >= 4
    process.kill()
    process.wait()
    assert names_of(run_id)
    report = cleanup.clean(run_id)
    assert report.ok
    assert report.namespaces == 4
    assert not names_of(run_id)
    assert not [pid for pid in inside if cleanup.is_running(process_value(pid))]
    assert not (state_file.STATE_DIR / f"{run_id}.json").exists()
    with pytest.raises(InputError):
        cleanup.clean(run_id)


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.04, 0.08, 0.12, 0.18])
def test_sigkill_at_any_moment_of_the_start_leaves_nothing_after_clean(after_s):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, "60"], stdout=subprocess.DEVNULL)
    run = None
    while run is None:
        run = next((r for r in cleanup.runs() if r.owner == process_value(process.pid)), None)
    time.sleep(after_s)
    process.kill()
    process.wait()
    cleanup.clean(run.run_id)
    time.sleep(0.1)  # nor may anything appear afterwards
    assert not names_of(run.run_id)
    assert not list(state_file.STATE_DIR.glob(f"{run.run_id}*"))


def test_clean_skips_living_runs_unless_forced(holder):
    process, run_id = holder
    report = cleanup.clean(run_id)
    assert report.skipped == [run_id]
    assert len(names_of(run_id)) == 4
    report = cleanup.clean(run_id, force=True)
    assert report.ok
    assert process.wait(5) == -signal.SIGKILL
    assert not names_of(run_id)


def test_a_network_is_removed_when_its_start_fails_halfway(state, monkeypatch):
    from testbed.cluster import Link, Topology
    from testbed.emulation.network import hosts
    from testbed.emulation.network.emulated import EmulatedNetwork

    def fail(*_args):
        raise OSError("no more")

    monkeypatch.setattr(hosts, "set_up", fail)
    network = EmulatedNetwork(state, Topology(("h1",), Link(1e9, 1e9)), {"h1": Link(1e7, 1e7)})
    with pytest.raises(OSError, match="no more"), network:
        pass
    assert not names_of(state.run_id)


def test_half_made_namespaces_are_removed(state):
    names = [state.netns("h1"), state.netns("h2"), state.netns("h3")]
    state.record_many("netns", names)
    subprocess.run(["ip", "netns", "add", names[0]], check=True)
    (Path("/run/netns") / names[1]).touch()  # killed between making the file and mounting on it
    report = cleanup.teardown(state)
    assert report.ok
    assert report.namespaces == 2
    assert not names_of(state.run_id)


def test_teardown_spares_the_process_that_calls_it(state):
    state.record("process", process_value(os.getpid()))
    state.record("process", process_value(os.getppid()))
    assert cleanup.teardown(state).processes == 0


def test_whole_process_groups_end_and_reused_pids_are_spared(state):
    group = subprocess.Popen(
        ["sh", "-c", "sleep 301 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    child = process_value(int(group.stdout.readline()))
    other = subprocess.Popen(["sleep", "302"])
    try:
        state.record("process", process_value(group.pid))
        state.record("process", f"{other.pid}:1")  # a process of that pid that started at another time
        cleanup.teardown(state)
        assert group.wait(5) == -signal.SIGKILL
        deadline = time.monotonic() + 2
        while cleanup.is_running(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not cleanup.is_running(child)
        assert other.poll() is None
    finally:
        group.stdout.close()
        other.kill()
        other.wait()


def cgroup_roots() -> list[Path]:
    """A version 1 freezer, and version 2."""
    v1, v2, hybrid = Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")
    return [
        root
        for root in (v1, v2, hybrid)
        if (root / "cgroup.procs").exists() and (root == v1 or (root / "cgroup.controllers").exists())
    ]


@pytest.mark.parametrize("root", cgroup_roots(), ids=str)
def test_frozen_processes_in_nested_cgroups_end(state, root):
    outer = root / f"testbed-{state.run_id}"
    inner = outer / "device"
    state.record("cgroup", str(outer))
    inner.mkdir(parents=True)
    process = subprocess.Popen(["sleep", "303"])
    (inner / "cgroup.procs").write_text(str(process.pid))
    freezer = inner / "freezer.state" if (inner / "freezer.state").exists() else inner / "cgroup.freeze"
    freezer.write_text("FROZEN" if freezer.name == "freezer.state" else "1")
    report = cleanup.teardown(state)
    assert report.ok
    assert process.wait(5) == -signal.SIGKILL
    assert not outer.exists()


def test_paths_mounts_and_sysctls_are_restored(state, tmp_path):
    ttl = Path("/proc/sys/net/ipv4/ip_default_ttl")
    old = ttl.read_text().strip()
    folder, mount = tmp_path / "folder", tmp_path / "mount"
    for path in (folder, mount):
        path.mkdir()
    (folder / "file").touch()
    state.record("sysctl", f"net.ipv4.ip_default_ttl={old}")
    state.record("path", str(folder))
    state.record("path", str(tmp_path / "never made"))
    state.record("mount", str(mount))
    try:
        ttl.write_text(str(int(old) - 1))
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mount)], check=True)
        report = cleanup.teardown(state)
    finally:
        ttl.write_text(old)
        subprocess.run(["umount", "-q", str(mount)], check=False)
    assert report.ok
    assert (report.sysctls, report.paths, report.mounts) == (1, 1, 1)
    assert not folder.exists()
    assert not os.path.ismount(mount)


def test_a_path_near_the_root_is_refused(state):
    state.record("path", "/nowhere-of-ours")
    report = cleanup.teardown(state)
    assert not report.ok
    assert "too near the root" in report.problems[0]
    state.forget("path", "/nowhere-of-ours")


def test_a_run_whose_owner_is_dead_is_taken_and_others_stay(state):
    dead = RunState.create(command="dead")
    dead._content["owner"] = "1:0"  # a process that ended long ago
    dead.record("netns", dead.netns("h1"))
    subprocess.run(["ip", "netns", "add", dead.netns("h1")], check=True)
    report = cleanup.clean(dead.run_id)
    assert report.runs == [dead.run_id]
    assert not names_of(dead.run_id)
    assert state.path.exists()
