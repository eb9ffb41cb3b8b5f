"""Any program in the hosts of a shaped network: one built for it, or one that a run or a shell keeps up."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed import units
from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.emulation import cleanup
from testbed.emulation.process.captures import FOLDER, Captures, require_capturer
from testbed.emulation.process.programs import default_hosts, run_program, start_program, worst
from testbed.emulation.state import RunState
from testbed.errors import TestbedError, unknown
from testbed.experiment.loading import LoadedExperiment
from testbed.experiment.setup import captures_of
from testbed.scenario.captures import CaptureSettings
from testbed.signals import interruptible
from testbed.studies.session import LiveNetwork, shaped_session

_HEAD_START_S = 0.5  # for the programs beside it (servers) to be listening


@dataclass(frozen=True)
class Job:
    """What to run. hosts: None for all homes, ranked in order. beside: (host, argv) started first, ended after.

    note: tells the user something, apart from the program's own output. captures: None for none.
    """

    hosts: list[str] | None
    argv: list[str]
    beside: list[tuple[str, list[str]]]
    timeout_s: float | None
    note: Callable[[str], None]
    captures: CaptureSettings | None = None


def run_new(loaded: LoadedExperiment, job: Job, *, at_s: float, hold: bool, command: str) -> int:
    """Build the experiment's network, run the job in it, remove it. Returns the worst exit code."""
    warnings: list[str] = []
    if loaded.experiment.captures.homes:
        require_capturer()
    with shaped_session(loaded, command=command, at_s=at_s, hold=hold, warnings=warnings) as (state, shaped):
        for text in warnings:
            job.note(f"warning: {text}")
        job = replace(job, captures=captures_of(loaded, shaped.topology.homes))
        return _run(shaped.network, state, job, shaped.current, str(loaded.path), shaped.tdf)


def run_attached(live: LiveNetwork, job: Job, *, command: str) -> int:
    """Run the job in a network that another process keeps up. Returns the worst exit code."""
    job.note(f"in network {live.run_id}, which is up")
    with interruptible():
        state = RunState.create(None, command=command)
        try:
            return _run(live, state, job, live.current, live.label)
        finally:
            cleanup.teardown(state)


def _run(
    network: Any, state: RunState, job: Job, current: Callable[[str], LinkState], experiment: str, tdf: float = 1.0
) -> int:
    hosts = default_hosts(network) if job.hosts is None else job.hosts
    for name in [*hosts, *(host for host, _ in job.beside)]:
        if name not in network.hosts:
            raise unknown("host", "host", name, network.hosts)
    for name in hosts:
        if name != SERVER:
            s = current(name)
            job.note(f"{name}: down {units.rate(s.down_bps)}, up {units.rate(s.up_bps)}, RTT {units.duration(s.rtt_s)}")
    with ExitStack() as stack:
        if job.captures is not None:
            stack.enter_context(_captures(network, state, job, experiment, tdf)).begin(time.monotonic())
        beside = []
        for host, argv in job.beside:
            program = start_program(
                network,
                [host],
                0,
                argv,
                state=state,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sys.stderr,
            )
            stack.callback(program.end, state)
            beside.append(program)
        time.sleep(_HEAD_START_S if beside else 0)
        for program, (_, argv) in zip(beside, job.beside):
            if program.process.poll() not in (None, 0):
                raise TestbedError(
                    f"--with {program.host}: {argv[0]} ended at once, with exit code {program.process.poll()}"
                )
        codes = run_program(network, hosts, job.argv, state=state, prefix=len(hosts) > 1, timeout=job.timeout_s)
    return worst(codes)


def _captures(network: Any, state: RunState, job: Job, experiment: str, tdf: float) -> Captures:
    """In a folder of its own below the current one, since a program has no run folder."""
    require_capturer()
    for name in job.captures.hosts:
        if name not in network.hosts:
            raise unknown("--capture", "host", name, network.hosts)
    folder = Path(f"{FOLDER}-{state.run_id}").absolute()

    def told(host: str, fields: dict[str, Any]) -> None:
        said = ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
                         for key, value in fields.items())  # fmt: skip
        job.note(f"capture {folder / host}.pcapng: {said}")

    return Captures(
        state, network.hosts, job.captures, folder, comments=[f"experiment {experiment}"], tdf=tdf, on_end=told
    )
