"""Fixtures of tests that build real networks, and the check that each leaves the machine as it was."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import leaks
import pytest

from testbed.cluster import Link, SharedLink, Topology
from testbed.emulation import cleanup
from testbed.emulation.machine.capabilities import Capabilities, can_run, probe
from testbed.emulation.network.emulated import EmulatedNetwork
from testbed.emulation.state import RunState
from testbed.scenario.network import NetworkSettings


@pytest.fixture(scope="session")
def capabilities() -> Capabilities:
    return probe()


@pytest.fixture(scope="session", autouse=True)
def _needs_emulation(capabilities: Capabilities) -> None:
    fine, reasons = can_run(capabilities)
    if not fine:
        pytest.skip("; ".join(reasons))


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_nothing(_needs_emulation: None) -> Iterator[None]:
    os.environ[leaks.MARK] = secrets.token_hex(8)
    before = leaks.Snapshot()
    yield
    found = leaks.leaks(before, set())
    assert not found, "the tests left behind: " + "; ".join(found)


@pytest.fixture(autouse=True)
def _leaves_nothing(_session_leaves_nothing: None) -> Iterator[None]:
    before, running = leaks.Snapshot(), set(leaks.processes())
    yield
    found = leaks.leaks(before, running)
    assert not found, "the test left behind: " + "; ".join(found)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RunState]:
    """A run's state; everything recorded in it is removed at the end."""
    run = RunState.create(tmp_path, command="pytest")
    yield run
    report = cleanup.teardown(run)
    assert report.ok, report.problems


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., EmulatedNetwork]]:
    """Starts networks, and removes them at the end.

    build(homes=2, up_mbps=20, down_mbps=100, links={}, shared=(), server_mbps=1000, **settings): homes h1, h2
    and so on (or names), all with the same link but for those in `links`.
    """
    started: list[EmulatedNetwork] = []

    def start(
        homes: int | tuple[str, ...] = 2,
        up_mbps: float = 20,
        down_mbps: float = 100,
        *,
        links: dict[str, Link] | None = None,
        shared: tuple[SharedLink, ...] = (),
        server_mbps: float = 1000,
        **settings,
    ) -> EmulatedNetwork:
        names = tuple(f"h{i}" for i in range(1, homes + 1)) if isinstance(homes, int) else homes
        every = {name: Link(up_mbps * 1e6, down_mbps * 1e6) for name in names} | (links or {})
        topology = Topology(names, Link(server_mbps * 1e6, server_mbps * 1e6), shared)
        network = EmulatedNetwork(
            RunState.create(tmp_path, command="pytest"), topology, every, NetworkSettings(**settings)
        )
        started.append(network)
        network.start()
        return network

    yield start
    problems = []
    for network in started:
        network.stop()
        problems += cleanup.teardown(network.state).problems
    assert not problems
