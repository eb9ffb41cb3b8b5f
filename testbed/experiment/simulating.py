"""One training run in virtual time, from a checked setup to a filled run folder."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from testbed import __version__
from testbed.cluster import LinkState, Topology
from testbed.cluster.model import SERVER
from testbed.emulation.engine import ProgressLike, RunResult
from testbed.experiment.inputs import inputs
from testbed.experiment.setup import RunSetup
from testbed.measurement.run_folder import RunFolder, check_space
from testbed.scenario.cross_traffic import Stream
from testbed.scenario.link_model import PathDelay, access_link, server_delay
from testbed.scenario.network import NetworkSetup
from testbed.signals import Interrupted, interruptible
from testbed.simulation.engine import PortChange, Simulation
from testbed.simulation.network import PortSettings

SHOWN = ("step", "member", "churn", "recovery", "plan", "link", "throughput", "warning")  # what progress looks at
LEAST_SHARE = 0.01  # of a link that other people's traffic leaves at least


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


def simulate_once(
    setup: RunSetup, out: Path, *, progress: AbstractContextManager[ProgressLike], command: str
) -> tuple[RunFolder, RunResult]:
    """Simulate a checked setup. Ctrl-C keeps what was simulated so far."""
    check_space(out)
    folder = RunFolder.create(out, setup.loaded.experiment.name)
    folder.write_experiment(yaml.safe_dump(setup.loaded.data, sort_keys=False, allow_unicode=True))
    folder.write_plan(setup.plan)
    folder.write_manifest(**simulation_manifest(setup, command))
    began = time.monotonic()
    result = RunResult("failed", "ended early")
    with progress as shown:
        try:
            with interruptible(lambda name: shown.stage(f"{name}: keeping what was simulated")):
                result = _simulate(setup, folder, shown)
        except Interrupted as signal_name:
            result = RunResult("interrupted", f"by {signal_name}")
        finally:
            seconds = time.monotonic() - began
            folder.finish(result.status, error=result.error, durations={"simulation": round(seconds, 3)})
    return folder, result


def _simulate(setup: RunSetup, folder: RunFolder, progress: ProgressLike) -> RunResult:
    e = setup.loaded.experiment
    simulation = Simulation(
        setup.plan,
        type(setup.runner),
        port_changes(setup.network),
        churn=setup.churn,
        mode=e.availability.churn,
        absent=sorted(setup.absent_at_start),
        buffer_s=e.links.buffer,
        seed=e.seed,
        time_limit_s=e.time_limit,
        tensors=e.simulation.tensors,
        details=e.simulation.details,
        on_event=_receiver(folder, progress),
    )
    for text in setup.warnings:
        simulation.record("warning", text=text)
    progress.stage(f"simulating {len(setup.network.topology.homes)} homes")
    outcome = simulation.run()
    if outcome.log:
        (folder.logs / "simulation.log").write_text(outcome.log)
    return RunResult(outcome.status, outcome.error)


def _receiver(folder: RunFolder, progress: ProgressLike) -> Callable[[dict[str, Any]], None]:
    append = folder.recorder.append

    def receive(event: dict[str, Any]) -> None:
        append(event)
        if event["event"] in SHOWN:
            progress.event(event)

    return receive


def simulation_manifest(setup: RunSetup, command: str) -> dict[str, Any]:
    """What the manifest says before the start."""
    from testbed.studies.running import package_versions

    e = setup.loaded.experiment
    return {
        "experiment": e.model_dump(mode="json"),
        "experiment_file": str(setup.loaded.path),
        "command": command,
        "seed": e.seed,
        "tdf": 1.0,
        "time_scale": e.time_scale,
        "engine": "simulation",
        "tensors": e.simulation.tensors,
        "probes_enabled": False,
        "link_source": setup.network.link_source,
        "churn": [{"t": t, "device": d, "action": a} for t, d, a in setup.churn],
        "inputs": inputs(setup.loaded),
        "warnings": setup.warnings,
        "versions": {"testbed": __version__, "python": platform.python_version(), **package_versions()},
        "kernel": platform.release(),
        "machine": {"cores": os.cpu_count()},
    }
