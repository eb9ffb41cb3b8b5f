"""What a run would apply, without root and without doing it."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.emulation.delay import registry
from testbed.emulation.delay.base import described
from testbed.emulation.network.plan import plan_commands
from testbed.emulation.schedule.replay import ReplayPlan
from testbed.scenario.link_model import access_links, dilated
from testbed.scenario.network import NetworkSetup

MOST_CHANGES = 20


def commands(setup: NetworkSetup) -> Iterator[str]:
    """The commands that build and shape the network as it is at the start; then, as comments, what the delay backend is
    told, a line a home, and the first changes of the replay. The run id is a placeholder."""
    topology, tdf = setup.topology, setup.settings.tdf
    links = access_links(setup.at_start(), topology.server_link, topology.shared_links, tdf)
    yield from plan_commands(dilated(topology, tdf), {h: a.link for h, a in links.items()}, setup.wiring)
    asked = setup.settings.delay_backend
    lines = described if asked == "auto" else registry.load(asked).declares.dry_run
    yield from lines({home: a.delay for home, a in links.items()})
    batches = ReplayPlan.of(setup).batches
    for batch in batches[:MOST_CHANGES]:
        yield f"# at {batch.t_s:.2f} emulated s: tc class change, qdisc change, delays of {', '.join(batch.states)}"
    if len(batches) > MOST_CHANGES:
        yield f"# … {len(batches) - MOST_CHANGES} more times at which links change"
