"""One training run on the emulated network, from a checked setup to a filled run folder."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.emulation import cleanup
from testbed.emulation.machine.capabilities import Capabilities
from testbed.emulation.network.link_monitor import Interference, LinkMonitor
from testbed.emulation.network.shaped import ShapedNetwork
from testbed.emulation.probing.probes import probe_links
from testbed.emulation.process.workers import WorkerPool
from testbed.emulation.schedule.churn import ChurnController
from testbed.emulation.state import RunState
from testbed.errors import TestbedError
from testbed.experiment.setup import RunSetup
from testbed.measurement.fidelity import thresholds_of
from testbed.measurement.host_monitor import HostMonitor
from testbed.measurement.live_verdict import LiveVerdict
from testbed.measurement.run_folder import RunFolder
from testbed.signals import Interrupted, interruptible


class ProgressLike(Protocol):
    """Where a run tells how it is getting on."""

    def stage(self, text: str) -> None: ...
    def event(self, event: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class RunResult:
    """How a run ended. status: complete, interrupted (Ctrl-C, SIGTERM, time limit) or failed."""

    status: str
    error: str | None = None


class EmulationRun:
    """Executes one RunSetup. `run()` always leaves the machine as it was, and the folder with what was measured."""

    def __init__(
        self, setup: RunSetup, folder: RunFolder, caps: Capabilities, progress: ProgressLike, *, command: str = ""
    ):
        self.setup, self.folder, self.caps, self.progress, self.command = setup, folder, caps, progress, command
        self.experiment = setup.loaded.experiment
        self._t0: float | None = None
        self._durations: dict[str, float] = {}
        self._commands: list[str] = []
        self._live = LiveVerdict(thresholds_of(folder.manifest), self.experiment.tdf, self._expected_s())
        self._live_lock = threading.Lock()

    def run(self, after: Callable[[ShapedNetwork], None] | None = None) -> RunResult:
        """Build, probe, train, tear down. `after` runs at the end of training with the network still up (--keep)."""
        result = RunResult("failed", "ended early")
        with interruptible(lambda name: self.progress.stage(f"{name}: cleaning up, keeping what was measured")):
            state = RunState.create(self.folder.path, command=self.command)
            try:
                result = self._inside(state, after)
            except Interrupted as signal_name:
                result = RunResult("interrupted", f"by {signal_name}")
            except TestbedError as error:
                result = RunResult("failed", str(error))
            finally:
                self._timed("clean-up", lambda: cleanup.teardown(state))
                self.folder.finish(
                    result.status, error=result.error, durations=self._durations, commands=self._commands
                )
        return result

    def now(self) -> float:
        """Emulated seconds since the experiment's start; 0 before it."""
        return 0.0 if self._t0 is None else max(0.0, (time.monotonic() - self._t0) / self.experiment.tdf)

    def _timed(self, name: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return action()
        finally:
            self._durations[name] = round(time.monotonic() - began, 3)

    def _event(self, event: dict[str, Any]) -> None:
        self.folder.recorder.append(event)
        self.progress.event(event)
        with self._live_lock:
            found = self._live.feed(event)
        for text, at_s in found:
            moment = datetime.now().astimezone() - timedelta(seconds=(self.now() - at_s) * self.experiment.tdf)
            at = moment.isoformat(sep=" ", timespec="milliseconds")
            self._engine_event("warning", text=f"INVALID from {at_s:.1f} s emulated ({at}) on: {text}")

    def _expected_s(self) -> float | None:
        """Real seconds that training is expected to take by the runner's prediction, which may be none."""
        step_s = self.setup.plan.predicted.get("step_time_s")
        if step_s is None:
            return None
        return min(step_s * self.experiment.training.steps, self.experiment.time_limit) * self.experiment.tdf

    def _engine_event(self, event: str, node: str = "testbed", **fields: Any) -> None:
        self._event({"t": self.now(), "node": node, "event": event, **fields})

    def _link_event(self, t_s: float, home: str, link: LinkState, late_s: float) -> None:
        self._engine_event(
            "link",
            home,
            down_bps=link.down_bps,
            up_bps=link.up_bps,
            rtt_s=link.rtt_s,
            jitter_s=link.jitter_s,
            loss=link.loss,
            late=late_s / self.experiment.tdf,
        )

    def _interference(self, found: Interference) -> None:
        self._engine_event(
            "interference",
            found.node,
            quantity=found.quantity,
            direction=found.direction,
            set=found.set,
            measured=found.measured,
            text=found.text,
        )

    def _cross_traffic_event(self, t_s: float, home: str, direction: str, rate_bps: float, late_s: float) -> None:
        self._engine_event(
            "cross_traffic", home, direction=direction, rate_bps=rate_bps, late=late_s / self.experiment.tdf
        )

    def _inside(self, state: RunState, after: Callable[[ShapedNetwork], None] | None) -> RunResult:
        e, setup = self.experiment, self.setup
        for text in setup.warnings:
            self._engine_event("warning", text=text)
        with ExitStack() as stack:
            shaped = ShapedNetwork(
                state,
                setup.network,
                caps=self.caps,
                on_cross_traffic=self._cross_traffic_event,
                on_link=self._link_event,
                log_dir=self.folder.logs,
            )
            self.progress.stage(
                f"building the network: {len(setup.network.topology.homes)} homes, delay by {shaped.backend_name}"
            )
            self._timed("network", lambda: stack.enter_context(shaped))
            self._commands = shaped.commands()
            pool = WorkerPool(
                state=state,
                run_dir=self.folder.path,
                runner=e.training.runner,
                plan=setup.plan,
                addresses=shaped.network.hosts,
                tdf=e.tdf,
                on_event=self._event,
                memory_limits={d.name: d.memory_bytes for d in setup.cluster.devices},
                devices={d.name: d for d in (*setup.cluster.devices, setup.cluster.server)},
            )
            stack.enter_context(pool)
            if e.probes.enabled:
                self.progress.stage("measuring every link")
                self._timed("probes", lambda: self._probe(shaped))
            self.progress.stage("starting workers")
            self._timed("workers", lambda: self._start_workers(pool, shaped))
            churn = ChurnController(
                setup.churn,
                mode=e.availability.churn,
                network=shaped.network,
                pool=pool,
                tdf=e.tdf,
                on_event=self._event,
            )
            links = LinkMonitor(shaped.network, self._interference, delay_backend=shaped.backend_name).start()
            stack.callback(links.stop)

            def watched() -> dict[str, Any]:
                return {
                    "replay_overdue": shaped.replay_overdue_s,
                    "churn_overdue": churn.overdue_s,
                    "links_watched": int(links.error is None),
                }

            monitor = HostMonitor(self._event, self.now, shaped.backend.stats, more=watched)
            self._t0 = time.monotonic() + 0.2
            zero = datetime.now().astimezone() + timedelta(seconds=self._t0 - time.monotonic())
            self.folder.write_manifest(zero_at=zero.isoformat(timespec="milliseconds"))
            for home, series in setup.network.link_changes.items():
                self._link_event(0.0, home, series[0][1], 0.0)
            self._link_event(0.0, SERVER, setup.network.server_state, 0.0)
            pool.begin(self._t0)
            shaped.begin(self._t0)
            churn.start(self._t0)
            stack.callback(churn.stop)
            monitor.start()
            stack.callback(monitor.stop)
            result = self._timed("training", lambda: self._train(pool, shaped, churn))
            churn.stop()
            if after is not None:
                pool.close()
                with contextlib.suppress(Interrupted):  # training is complete: this only ends the look around
                    after(shaped)
            return result

    def _start_workers(self, pool: WorkerPool, shaped: ShapedNetwork) -> None:
        pool.start()
        present = [d.name for d in self.setup.cluster.devices if d.name not in self.setup.absent_at_start]
        for name in self.setup.absent_at_start:
            shaped.network.link_down(name)
        pool.launch([SERVER, *present])

    def _probe(self, shaped: ShapedNetwork) -> None:
        expected = {h: s[0][1] for h, s in self.setup.network.link_changes.items()}
        results = probe_links(
            shaped.network,
            expected,
            seconds=self.experiment.probes.seconds,
            tdf=self.experiment.tdf,
            server=self.setup.network.server_state,
        )
        for r in results:
            self._engine_event(
                "probe", r.home, quantity=r.quantity, set=r.set, measured=r.measured, seconds=r.seconds, count=r.count
            )

    def _train(self, pool: WorkerPool, shaped: ShapedNetwork, churn: ChurnController) -> RunResult:
        counters = _Counters(shaped, self._engine_event, self.experiment.tdf)
        try:
            while True:
                outcome = pool.wait(timeout=1.0)
                counters.sample()
                shaped.check()
                if churn.error is not None:
                    raise TestbedError(f"devices could not be toggled any more: {churn.error}")
                if outcome is not None:
                    return RunResult("complete") if outcome.ok else RunResult("failed", outcome.reason)
                if self.now() > self.experiment.time_limit:
                    text = (
                        f"the time limit of {self.experiment.time_limit:g} emulated seconds was reached "
                        "(time_limit in the experiment)"
                    )
                    self._engine_event("warning", text=text)
                    return RunResult("interrupted", text)
        finally:
            counters.sample()


class _Counters:
    """Turns the bottleneck queues' counters into `throughput` events."""

    def __init__(self, shaped: ShapedNetwork, emit: Callable[..., None], tdf: float):
        self._shaped, self._emit, self._tdf = shaped, emit, tdf
        self._last = shaped.network.counters()
        self._at = time.monotonic()

    def sample(self) -> None:
        counters, at = self._shaped.network.counters(), time.monotonic()
        seconds = (at - self._at) / self._tdf
        if seconds <= 0.05:
            return
        for host, directions in counters.items():
            for direction, c in directions.items():
                before = self._last.get(host, {}).get(direction)
                if before is not None:
                    self._emit(
                        "throughput",
                        host,
                        direction=direction,
                        bytes=c.bytes - before.bytes,
                        seconds=seconds,
                        drops=c.drops - before.drops,
                        backlog=c.backlog_bytes,
                    )
        self._last, self._at = counters, at
