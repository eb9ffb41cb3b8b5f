"""Running an experiment with its run folder, progress and report around it."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from testbed import __version__, units
from testbed.emulation import dry_run
from testbed.emulation.engine import EmulationRun, ProgressLike, RunResult
from testbed.emulation.machine.capabilities import Capabilities, choose_delay_backend
from testbed.experiment.cross_traffic import described
from testbed.experiment.inputs import inputs
from testbed.experiment.setup import RunSetup, run_setup
from testbed.experiment.simulating import simulate_once, simulation_manifest
from testbed.measurement.run_folder import RunFolder, check_space, json_text
from testbed.measurement.thresholds import Thresholds
from testbed.studies.machine import capable, check_kernel
from testbed.studies.preflight import compare, preflight

_PACKAGES = ("torch", "numpy", "pyzmq", "msgspec", "pyroute2", "scapy", "pandas", "pydantic")


@dataclass(frozen=True)
class DoneRun:
    """A run that has ended, however it did."""

    path: Path
    status: str
    error: str | None
    by_signal: bool
    report: Path | None


def prepare(setup: RunSetup, out: Path, say: Callable[[str], None]) -> RunSetup:
    """Hold the experiment against this machine before anything starts; choose its time dilation where it is `auto`.

    A run that does not fit is warned of and goes on: the estimate may be wrong, and its verdict follows what is
    measured. Raises CapabilityError when this machine can't emulate at all, InputError when `out` can't be written to.
    """
    if setup.loaded.experiment.engine != "emulation":
        check_space(out)
        return setup
    caps = capable()
    check_kernel(setup.loaded, caps)
    check_space(out)
    found = preflight(setup, caps)
    texts = found.problems
    if setup.loaded.auto_tdf:
        setup = run_setup(setup.loaded.dilated(found.needed_tdf))
        found = compare(found.demand, found.capacity, found.needed_tdf)
        texts = found.problems
        say("\n".join(found.lines()))
        say(f"time dilation {found.tdf:g}, the least that this machine is expected to carry")
    elif texts:
        say("\n".join(found.lines()))
        texts = [
            f"this machine is not expected to carry the experiment at time dilation {found.tdf:g}; the smallest "
            f"that it would carry is {found.needed_tdf:g} (--tdf auto takes it): {'; '.join(texts)}"
        ]
    return replace(setup, warnings=[*setup.warnings, *texts], preflight=found.to_dict())


def run_once(
    setup: RunSetup,
    out: Path,
    *,
    progress: AbstractContextManager[ProgressLike],
    command: str,
    after: Callable[[Any], None] | None = None,
) -> DoneRun:
    """Execute a checked setup: folder, engine, report. Raises CapabilityError when this machine can't run it."""
    experiment = setup.loaded.experiment
    if experiment.engine == "simulation":
        return _done(setup, *simulate_once(setup, out, progress=progress, command=command))
    caps = capable()
    check_kernel(setup.loaded, caps)
    check_space(out)
    folder = RunFolder.create(out, experiment.name)
    folder.write_experiment(yaml.safe_dump(setup.loaded.data, sort_keys=False, allow_unicode=True))
    folder.write_plan(setup.plan)
    folder.write_manifest(**manifest(setup, caps, command))
    with progress as shown:
        result = EmulationRun(setup, folder, caps, shown, command=command).run(after)
    return _done(setup, folder, result)


def _done(setup: RunSetup, folder: RunFolder, result: RunResult) -> DoneRun:
    report = None
    if setup.loaded.experiment.outputs.report:
        from testbed.report import build_report

        report = build_report(folder.path)
    return DoneRun(folder.path, result.status, result.error, (result.error or "").startswith("by SIG"), report)


def manifest(setup: RunSetup, caps: Capabilities, command: str) -> dict[str, Any]:
    """What an emulation's manifest says before the start."""
    e = setup.loaded.experiment
    return {
        "experiment": e.model_dump(mode="json"),
        "experiment_file": str(setup.loaded.path),
        "command": command,
        "seed": e.seed,
        "tdf": e.tdf,
        "time_scale": e.time_scale,
        "engine": e.engine,
        "delay_backend": choose_delay_backend(caps, e.network.delay_backend),
        "preflight": setup.preflight,
        "probes_enabled": e.probes.enabled,
        "fidelity_thresholds": asdict(Thresholds.from_mapping(e.fidelity.thresholds)),
        "link_source": setup.network.link_source,
        "churn": [{"t": t, "device": d, "action": a} for t, d, a in setup.churn],
        "warnings": setup.warnings,
        "inputs": inputs(setup.loaded),
        "versions": {"testbed": __version__, "python": platform.python_version(), **package_versions()},
        "kernel": platform.release(),
        "machine": {"cores": caps.cores, "memory_bytes": caps.memory_bytes},
        "capabilities": asdict(caps),
    }


def manifest_now(setup: RunSetup) -> dict[str, Any]:
    """What a run of it would write before its start, here and now. Raises CapabilityError."""
    if setup.loaded.experiment.engine == "emulation":
        return manifest(setup, capable(), "")
    return simulation_manifest(setup, "")


def package_versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def dry_run_text(setup: RunSetup, *, as_json: bool = False) -> str:
    """The plan, the schedules of links and churn, and every command that would be applied."""
    e = setup.loaded.experiment
    network = setup.network
    commands = list(dry_run.commands(network))
    if as_json:
        return json.dumps(
            {
                "plan": json.loads(json_text(setup.plan)),
                "warnings": setup.warnings,
                "commands": commands,
                "link_changes": {h: len(s) for h, s in setup.network.link_changes.items()},
                "churn": setup.churn,
                "cross_traffic": [
                    {"home": s.home, "direction": s.direction, "changes": s.changes} for s in network.cross_traffic
                ],
            }
        )
    lines = [f"experiment {e.name} ({setup.loaded.path})", ""]
    lines += [f"warning: {w}" for w in setup.warnings]
    lines.append("plan:")
    lines += [f"  {note}" for note in setup.plan.notes]
    lines += [f"  predicted {k}: {v:.4g}" for k, v in setup.plan.predicted.items()]
    lines += ["", "links at the start (down, up, RTT; changes within the time limit):"]
    for home, series in setup.network.link_changes.items():
        s = series[0][1]
        lines.append(
            f"  {home:10} {units.rate(s.down_bps):>12} {units.rate(s.up_bps):>12} {units.duration(s.rtt_s):>9}"
            f"  {len(series) - 1} changes  [{setup.network.link_source[home]}]"
        )
    if network.cross_traffic:
        lines += ["", "cross traffic:", *(f"  {line}" for line in described(network.cross_traffic))]
    lines += ["", "churn:"] + ([f"  {t:8.1f} s  {d} {a}" for t, d, a in setup.churn[:50]] or ["  none"])
    if len(setup.churn) > 50:
        lines.append(f"  … {len(setup.churn) - 50} more")
    lines += ["", f"commands ({len(commands)}):", *(f"  {c}" for c in commands)]
    return "\n".join(lines)
