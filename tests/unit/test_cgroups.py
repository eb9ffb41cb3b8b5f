"""Which files are written and read, on both versions of cgroups; that limits bind, emulation tests show."""

import pytest

from testbed.emulation import cleanup
from testbed.emulation.process import cgroups
from testbed.emulation.process.cgroups import HostCgroup, Mounts, RunCgroups, find_mounts
from testbed.errors import CapabilityError

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0
cgroup2 /sys/fs/cgroup/nowhere\\040else cgroup2 rw 0 0
"""


def test_mounts_of_v1_and_hybrid_machines():
    mounts = find_mounts(V1)
    assert {c: str(p) for c, p in mounts.v1.items()} == {
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct", "memory": "/sys/fs/cgroup/memory",
        "freezer": "/sys/fs/cgroup/freezer",
    }  # fmt: skip
    assert str(mounts.v2) == "/sys/fs/cgroup/nowhere else"
    assert mounts.version == "v1"


def test_mounts_of_a_v2_machine(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    mounts = find_mounts(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    assert mounts.version == "v2"
    assert find_mounts("tmpfs / tmpfs rw 0 0\n").version == "none"


@pytest.fixture
def v2(tmp_path):
    """A pretend v2 hierarchy: files that a kernel would make appear when written to."""
    (tmp_path / "cgroup.subtree_control").write_text("")
    return Mounts({}, tmp_path, frozenset({"memory", "cpu"}))


def test_v2_hands_controllers_down_and_sets_the_limit(v2, tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_read", lambda path: "cpu memory" if "subtree" in path.name else "")
    recorded = []
    groups = RunCgroups("abc123", mounts=v2, record=recorded.extend)
    groups.make(["h1", "h2"], {"h1": 1000})
    run = tmp_path / "testbed" / "abc123"
    for directory in (tmp_path, tmp_path / "testbed", run):
        assert (directory / "cgroup.subtree_control").read_text() == "+memory +cpu"
    assert (run / "h1" / "memory.max").read_text() == "1000"
    assert (run / "h1" / "memory.swap.max").read_text() == "0"
    assert not (run / "h2" / "memory.max").exists()
    assert recorded == [str(run), str(run / "h1"), str(run / "h2")]


def test_v2_without_delegation_is_an_error_that_says_so(v2):
    with pytest.raises(CapabilityError, match="doesn't hand the memory controller down"):
        RunCgroups("abc123", mounts=v2).make(["h1"], {"h1": 1000})


def test_a_limit_that_nothing_can_enforce_is_refused():
    groups = RunCgroups("abc123", mounts=Mounts())
    with pytest.raises(CapabilityError, match="memory limits can't be enforced"):
        groups.make(["h1"], {"h1": 1000})


def test_v2_reads(tmp_path):
    host = HostCgroup({}, tmp_path)
    (tmp_path / "memory.current").write_text("123\n")
    (tmp_path / "memory.peak").write_text("456\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "cgroup.procs").write_text("11\n12\n")
    assert (host.memory_bytes(), host.memory_peak_bytes(), host.oom_kills()) == (123, 456, 1)
    assert host.cpu_s() == 2.5
    assert host.pids() == {11, 12}
    assert not host.can_freeze
    (tmp_path / "cgroup.freeze").write_text("0")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert host.can_freeze
    host.freeze()
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    with pytest.raises(TimeoutError):
        host.thaw(timeout_s=0.01)


def test_v1_reads(tmp_path):
    for name in ("memory", "cpuacct", "freezer"):
        (tmp_path / name).mkdir()
    host = HostCgroup({n: tmp_path / n for n in ("memory", "cpuacct", "freezer")}, None)
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("123\n")
    (tmp_path / "memory" / "memory.max_usage_in_bytes").write_text("456\n")
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "cpuacct" / "cpuacct.usage").write_text("1500000000\n")
    assert (host.memory_bytes(), host.memory_peak_bytes(), host.oom_kills()) == (123, 456, 3)
    assert host.cpu_s() == 1.5
    assert host.can_freeze
    host.limit_memory(77)
    assert (tmp_path / "memory" / "memory.limit_in_bytes").read_text() == "77"
    host.freeze()  # the pretend file answers with what was written
    assert (tmp_path / "freezer" / "freezer.state").read_text() == "FROZEN"


def test_cleaning_up_after_the_last_run_removes_what_all_runs_share(tmp_path):
    ours, others, report = tmp_path / "testbed" / "abc123", tmp_path / "testbed" / "def456", cleanup.CleanReport()
    for directory in (ours / "h1", others):
        directory.mkdir(parents=True)
    cleanup._remove_cgroup(ours, report)
    assert [path.name for path in (tmp_path / "testbed").iterdir()] == ["def456"]
    cleanup._remove_cgroup(others, report)
    assert list(tmp_path.iterdir()) == []
