"""A runner tried out in virtual time: real tensors, the plan's own links, departures at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed.cluster import LinkState
from testbed.errors import TestbedError
from testbed.runtime import Plan, Runner
from testbed.simulation.engine import PortChange, Simulation
from testbed.simulation.network import PortSettings


def trial(
    plan: Plan, new_runner: Callable[[], Runner], faults: Callable[[Simulation], None] | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """The events of a whole run, in order, over links that stay as the plan's cluster has them.

    Args:
        faults: gets the simulation before it starts, to arrange departures (`Simulation.at`, `after`, `leave`,
            `come_back`).
        settings: of `Simulation`; tensors are real unless they say otherwise.

    Raises:
        TestbedError: the run did not complete; says why, with the traceback of a runner's error.
    """
    events: list[dict[str, Any]] = []
    links = {}
    for device in (plan.cluster.server, *plan.cluster.devices):
        link = device.link
        state = LinkState(link.downlink_bps, link.uplink_bps, link.uplink_delay_s + link.downlink_delay_s)
        links[device.name] = [PortChange(0.0, PortSettings.of(link), state)]
    simulation = Simulation(plan, new_runner, links, on_event=events.append, **{"tensors": "real", **settings})
    if faults is not None:
        faults(simulation)
    outcome = simulation.run()
    if outcome.status != "complete":
        raise TestbedError("\n".join(filter(None, [outcome.error, outcome.log])))
    return events
