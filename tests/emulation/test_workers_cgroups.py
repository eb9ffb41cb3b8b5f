"""Control groups for real, on whichever versions this kernel has mounted (often both)."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time

import pytest

from testbed.emulation.process.cgroups import Mounts, RunCgroups, find_mounts

pytestmark = pytest.mark.emulation

BURN = "import time\nwhile True: time.monotonic()"


def machines():
    """This machine as it is, and as if it had only what v2 offers."""
    found = find_mounts()
    yield pytest.param(found, id=f"as found ({found.version})")
    v2 = Mounts({}, found.v2, found.v2_controllers)
    missing = pytest.mark.skipif(found.v2 is None, reason="no cgroup2 is mounted")
    yield pytest.param(v2, id="v2 alone", marks=missing)


@pytest.fixture(params=machines())
def group(request):
    """An empty group of one host."""
    noted, gone = [], []
    run = RunCgroups(secrets.token_hex(3), mounts=request.param, record=noted.extend, forget=gone.append)
    run.make(["h1"], {})
    host = run.hosts["h1"]
    yield host
    run.remove()
    run.remove()
    assert not any(d.exists() for d in host.directories)
    assert set(noted) == set(gone)


@pytest.fixture
def burner(group):
    """A process in the group that uses all the CPU time it gets."""
    p = subprocess.Popen([sys.executable, "-c", BURN], preexec_fn=group.enter)
    yield p
    p.kill()
    p.wait()


def cpu_in(group, seconds):
    before = group.cpu_s()
    time.sleep(seconds)
    return group.cpu_s() - before


def test_freeze_stops_and_thaw_goes_on(group, burner):
    assert group.pids() == {burner.pid}
    assert group.can_freeze
    assert cpu_in(group, 0.3) > 0.02
    group.freeze()
    assert cpu_in(group, 0.3) == 0
    group.thaw()
    assert cpu_in(group, 0.3) > 0.02


@pytest.mark.parametrize("frozen", [False, True])
def test_kill_ends_all_frozen_ones_too(group, burner, frozen):
    if frozen:
        group.freeze()
    group.kill()
    assert burner.wait(5) == -9
    assert group.pids() == set()


def test_a_memory_limit_binds(group):
    if group.memory_bytes() is None:
        pytest.skip("this hierarchy has no memory controller")
    group.limit_memory(60 << 20)
    assert group.oom_kills() == 0
    eat = "x = bytearray(20 << 20); print('fine', flush=True); y = bytearray(200 << 20); print('too much')"
    done = subprocess.run([sys.executable, "-c", eat], preexec_fn=group.enter, capture_output=True, text=True)
    assert done.stdout == "fine\n"
    assert done.returncode == -9
    assert group.oom_kills() == 1
    assert 20 << 20 < group.memory_peak_bytes() <= 60 << 20
