"""What processes may do, and what is said when it isn't enough."""

import resource
import subprocess
import sys

import pytest

from testbed import processes
from testbed.errors import CapabilityError

TRIES = "from testbed.processes import allow_open_files as f; import resource as r; f({}); print(r.getrlimit(r.RLIMIT_NOFILE))"


def test_a_low_limit_of_open_files_is_raised_as_far_as_needed():
    done = subprocess.run(["sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", sys.executable, "-c", TRIES.format(100)],
                          capture_output=True, text=True, check=True)
    assert done.stdout == f"(100, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]})\n"
    processes.allow_open_files(10)  # enough already: stays


def test_a_hard_limit_of_open_files_is_told(monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(processes.resource, "getrlimit", lambda _: (64, 256))
    monkeypatch.setattr(processes.resource, "setrlimit", refuse)
    with pytest.raises(CapabilityError, match="1564 files have to be open at once; a process may have 256"):
        processes.allow_open_files(1564)
