"""A scenario in virtual time."""

from __future__ import annotations

from testbed.cluster import LinkState, Topology
from testbed.cluster.model import SERVER
from testbed.scenario.cross_traffic import Stream
from testbed.scenario.link_model import PathDelay, access_link, server_delay
from testbed.scenario.network import NetworkSetup
from testbed.scenario.run import RunResult, Scenario, Sink
from testbed.simulation.engine import PortChange, Simulation
from testbed.simulation.network import PortSettings

SHOWN = ("step", "member", "churn", "recovery", "plan", "link", "throughput", "warning")  # what progress looks at
LEAST_SHARE = 0.01  # of a link that other people's traffic leaves at least


def run(setup: Scenario, sink: Sink) -> RunResult:
    """Simulate it. A signal raises Interrupted; what was recorded until then is whole."""

    def receive(event: dict[str, object]) -> None:
        if event["event"] == "step" and setup.tensors == "meta":
            event["loss"] = None  # shapes without data have none
        if event["event"] in SHOWN:
            sink.event(event)
        else:
            sink.record(event)

    settings = setup.network.settings
    simulation = Simulation(
        setup.plan,
        type(setup.runner),
        port_changes(setup.network),
        churn=setup.churn,
        mode=setup.churn_mode,
        absent=sorted(setup.absent_at_start),
        buffer_s=settings.buffer_s,
        seed=setup.network.seed,
        time_limit_s=setup.time_limit_s,
        tensors=setup.tensors,
        details=setup.details,
        on_event=receive,
    )
    for text in setup.warnings:
        simulation.record("warning", text=text)
    sink.progress.stage(f"simulating {len(setup.network.topology.homes)} homes")
    outcome = simulation.run()
    if outcome.log:
        (sink.logs / "simulation.log").write_text(outcome.log)
    return RunResult(outcome.status, outcome.error)


def port_changes(network: NetworkSetup) -> dict[str, list[PortChange]]:
    """Each node's link over time, as the emulation would set it; cross traffic takes its part away."""
    topology = network.topology
    behind = {m: s.delay_s for s in topology.shared_links for m in s.members}
    found = {SERVER: [PortChange(0.0, _server(topology), network.server_state)]}
    for home, series in network.link_changes.items():
        streams = [s for s in network.cross_traffic if s.home == home]
        found[home] = [
            PortChange(t, _home(state, topology, behind.get(home, 0.0), streams, t), state)
            for t, state in _with_cross_traffic(series, streams)
        ]
    return found


def _server(topology: Topology) -> PortSettings:
    link, delay = topology.server_link, server_delay(topology.server_link)
    return _settings(link.uplink_bps, link.downlink_bps, delay)


def _settings(up_bps: float, down_bps: float, d: PathDelay) -> PortSettings:
    return PortSettings(up_bps, down_bps, d.up_delay_s, d.down_delay_s, d.up_jitter_s, d.up_loss, d.down_loss)


def _home(state: LinkState, topology: Topology, shared_delay_s: float, streams: list[Stream], t: float) -> PortSettings:
    access = access_link(state, topology.server_link, shared_delay_s)
    taken = {"up": 0.0, "down": 0.0}
    for s in streams:
        taken[s.direction] += s.rate_at(t)
    up = max(access.link.uplink_bps - taken["up"], LEAST_SHARE * access.link.uplink_bps)
    down = max(access.link.downlink_bps - taken["down"], LEAST_SHARE * access.link.downlink_bps)
    return _settings(up, down, access.delay)


def _with_cross_traffic(series: list[tuple[float, LinkState]], streams: list[Stream]) -> list[tuple[float, LinkState]]:
    """The same settings, with a step at each change of the cross traffic, too."""
    if not streams:
        return series
    times = sorted({t for t, _ in series} | {max(0.0, t) for s in streams for t, _ in s.changes})
    merged, i = [], 0
    for t in times:
        while i + 1 < len(series) and series[i + 1][0] <= t:
            i += 1
        merged.append((t, series[i][1]))
    return merged
