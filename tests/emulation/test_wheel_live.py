"""The package as pip installs it emulates, too: workers, delay lines and cross traffic start from there."""

import pytest

pytestmark = [pytest.mark.root, pytest.mark.emulation]


def test_a_ready_made_experiment_runs(installed):
    done = installed("run", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VALID" in done.stdout
