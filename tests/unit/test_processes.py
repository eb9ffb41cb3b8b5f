"""What processes may do, and what is said when it isn't enough."""

import resource
import subprocess
import sys

import pytest

from testbed import processes
from testbed.errors import CapabilityError

TRIES = "from testbed.processes import allow_open_files as f; import resource as r; f(50, {}); print(r.getrlimit(r.RLIMIT_NOFILE))"


@pytest.mark.parametrize(
    ("limits", "most", "then"),
    [
        ("-Sn 40", 100, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        ("-n 80", 100, (80, 80)),
        ("-n 80", 60, (80, 80)),
    ],
)
def test_a_low_limit_of_open_files_is_raised_as_far_as_it_may(limits, most, then):
    done = subprocess.run(
        ["sh", "-c", f'ulimit {limits}; exec "$@"', "sh", sys.executable, "-c", TRIES.format(most)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{then}\n"


def test_a_limit_of_open_files_that_is_too_low_is_told(monkeypatch):
    monkeypatch.setattr(processes.resource, "getrlimit", lambda _: (64, 256))
    with pytest.raises(CapabilityError, match="at least 333 files have to be open at once; a process may have 256"):
        processes.allow_open_files(333, 1569)
