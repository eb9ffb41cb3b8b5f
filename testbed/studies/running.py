"""Running an experiment with its run folder, progress and report around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed import units
from testbed.emulation import dry_run
from testbed.emulation.engine import Emulation
from testbed.emulation.machine.capabilities import Capabilities, choose_delay_backend
from testbed.emulation.process import captures
from testbed.emulation.process.captures import require_capturer
from testbed.experiment.cross_traffic import described
from testbed.experiment.machine import capable, check_kernel
from testbed.experiment.recording import manifest, record
from testbed.experiment.setup import RunSetup, run_setup, thresholds
from testbed.experiment.simulating import simulate_once, simulated
from testbed.measurement.run_folder import check_space, json_text
from testbed.scenario.network import NetworkSettings
from testbed.scenario.run import Progress, RunResult
from testbed.studies.preflight import compare, preflight


@dataclass(frozen=True)
class DoneRun:
    """A run that has ended, however it did."""

    path: Path
    result: RunResult
    report: Path | None


def prepare(setup: RunSetup, out: Path, say: Callable[[str], None]) -> RunSetup:
    """Hold the experiment against this machine before anything starts; choose its time dilation where it is `auto`.

    A run that does not fit is warned of and goes on: the estimate may be wrong, and its verdict follows what is
    measured. Raises CapabilityError when this machine can't emulate at all, InputError when `out` can't be written to.
    """
    if setup.engine != "emulation":
        check_space(out)
        return setup
    caps = capable()
    check_kernel(setup.loaded, caps)
    if setup.captures is not None:
        require_capturer()
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
    return replace(setup, warnings=[*setup.warnings, *texts], facts={"preflight": found.to_dict()})


def run_once(
    setup: RunSetup, out: Path, *, progress: Progress, command: str, after: Callable[[Any], None] | None = None
) -> DoneRun:
    """Execute a checked setup: folder, engine, report. Raises CapabilityError when this machine can't run it."""
    if setup.engine == "simulation":
        folder, result = simulate_once(setup, out, progress=progress, command=command)
    else:
        caps = capable()
        check_kernel(setup.loaded, caps)
        check_space(out)
        setup = emulated(setup, caps)
        engine = Emulation(caps, thresholds(setup.loaded), command, after)
        folder, result = record(setup, out, engine.run, progress=progress, command=command)
    report = None
    if setup.loaded.experiment.outputs.report:
        from testbed.report import build_report

        report = build_report(folder.path)
    return DoneRun(folder.path, result, report)


def emulated(setup: RunSetup, caps: Capabilities) -> RunSetup:
    """The same for this machine's kernel: with the delay backend chosen. Raises CapabilityError: none works here."""
    e = setup.loaded.experiment
    settings = NetworkSettings.of(e, choose_delay_backend(caps, e.network.delay_backend, e.network.switch))
    facts = {
        "delay_backend": settings.delay_backend,
        "probes_enabled": setup.probe_s is not None,
        "fidelity_thresholds": asdict(thresholds(setup.loaded)),
        "machine": {"cores": caps.cores, "memory_bytes": caps.memory_bytes},
        "capabilities": asdict(caps),
    }
    return replace(setup, network=replace(setup.network, settings=settings), facts={**facts, **setup.facts})


def manifest_now(setup: RunSetup) -> dict[str, Any]:
    """What a run of it would write before its start, here and now. Raises CapabilityError."""
    return manifest(emulated(setup, capable()) if setup.engine == "emulation" else simulated(setup), "")


def dry_run_text(setup: RunSetup, *, as_json: bool = False) -> str:
    """The plan, the schedules of links and churn, and every command that would be applied."""
    e = setup.loaded.experiment
    network = setup.network
    commands = list(dry_run.commands(network))
    if setup.captures is not None:
        commands += captures.described(setup.captures)
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
