"""The kernel suite runs where user-mode-linux does."""

import pytest

from testbed import uml


@pytest.fixture(scope="session", autouse=True)
def _needs_a_second_kernel() -> None:
    found = uml.availability()
    if not found.available:
        pytest.skip(f"{found.lacking} ({found.remedy})")
