"""What a test may expect of measured times and rates, on a machine that others use too."""

from __future__ import annotations

from pathlib import Path

import pytest

#: For tests that compare a measured time or rate with its setting. The noise of a busy machine passes and a bug
#: doesn't, so such a test may be tried again; the summary counts each such rerun.
measured = pytest.mark.flaky(reruns=3, reruns_delay=2, only_rerun=["AssertionError"])

#: User-mode-linux switches between host processes for each packet, and its timers tick at 10 ms at worst.
IN_UML = "User Mode Linux" in Path("/proc/cpuinfo").read_text()

#: Error of a median round-trip time that passes [ms].
RTT_MS = 5.0 if IN_UML else 2.0
