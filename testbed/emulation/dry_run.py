"""What a run would apply, without root and without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from testbed.cluster import LinkState, Topology
from testbed.emulation.network.emulated import NetworkSettings, plan_commands
from testbed.emulation.network.shaped import dilated
from testbed.emulation.schedule.replay import ReplayPlan
from testbed.scenario.link_model import AccessLink, access_links


def _at_start(
    topology: Topology, changes: Mapping[str, Sequence[tuple[float, LinkState]]], tdf: float
) -> dict[str, AccessLink]:
    states = {home: series[0][1] for home, series in changes.items()}
    return access_links(states, topology.server_link, topology.shared_links, tdf)


def network_commands(
    topology: Topology, changes: Mapping[str, Sequence[tuple[float, LinkState]]], settings: NetworkSettings, tdf: float
) -> list[str]:
    """The commands that build and shape the network as it is at the start; the run id is a placeholder."""
    links = _at_start(topology, changes, tdf)
    return plan_commands(dilated(topology, tdf), {h: a.link for h, a in links.items()}, settings)


def delay_lines(topology: Topology, changes: Mapping[str, Sequence[tuple[float, LinkState]]], tdf: float) -> list[str]:
    """What the delay backend is told at the start, a line a home."""
    links = _at_start(topology, changes, tdf)
    return [
        f"# {home}: one-way delay up {a.delay.up_delay_s * 1e3:.3f} ms, down {a.delay.down_delay_s * 1e3:.3f} ms, "
        f"deviation {a.delay.up_jitter_s * 1e3:.3f} ms, loss {a.delay.up_loss:.2e} each way"
        for home, a in links.items()
    ]


def replay_lines(
    topology: Topology, changes: Mapping[str, Sequence[tuple[float, LinkState]]], tdf: float, most: int = 20
) -> Iterable[str]:
    """The first changes of the replay, as comments."""
    plan = ReplayPlan.build(changes, topology.server_link, topology.shared_links, tdf=tdf)
    for batch in plan.batches[:most]:
        yield f"# at {batch.t_s:.2f} emulated s: tc class change, qdisc change, delays of {', '.join(batch.states)}"
    if len(plan.batches) > most:
        yield f"# … {len(plan.batches) - most} more times at which links change"
