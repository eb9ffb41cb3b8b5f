"""One training run on the emulated network, from a checked setup to a filled run folder."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.emulation import cleanup
from testbed.emulation.machine.capabilities import Capabilities
from testbed.emulation.network.link_monitor import Interference, LinkMonitor
from testbed.emulation.probing.probes import probe_links
from testbed.emulation.process.captures import FOLDER, Captures
from testbed.emulation.process.workers import WorkerPool
from testbed.emulation.schedule.churn import ChurnController
from testbed.emulation.shaped import ShapedNetwork
from testbed.emulation.state import RunState
from testbed.errors import TestbedError
from testbed.measurement.host_monitor import HostMonitor
from testbed.measurement.live_verdict import LiveVerdict
from testbed.measurement.thresholds import Thresholds
from testbed.scenario.run import RunResult, Scenario, Sink
from testbed.signals import Interrupted


@dataclass(frozen=True)
class Emulation:
    """The engine on this machine's kernel. It always leaves the machine as it was.

    caps: what the machine can do. limits: of the verdict, which is watched while the run goes on. command: for people
    who find what a killed run left. after: called at the end of training, with the network still up (--keep).
    """

    caps: Capabilities
    limits: Thresholds = field(default_factory=Thresholds)
    command: str = ""
    after: Callable[[ShapedNetwork], None] | None = None

    def run(self, setup: Scenario, sink: Sink) -> RunResult:
        """Build, probe, train, tear down."""
        return _Run(self, setup, sink).run()


class _Run:
    def __init__(self, engine: Emulation, setup: Scenario, sink: Sink):
        self.engine, self.setup, self.sink = engine, setup, sink
        self.tdf = setup.network.settings.tdf
        self._t0: float | None = None
        self._captures: Captures | None = None
        self._durations: dict[str, float] = {}
        self._live = LiveVerdict(engine.limits, self.tdf, self._expected_s())
        self._live_lock = threading.Lock()

    def run(self) -> RunResult:
        state = RunState.create(self.sink.folder, command=self.engine.command)
        try:
            return self._inside(state)
        finally:
            self._timed("clean-up", lambda: cleanup.teardown(state))
            self.sink.note(durations=self._durations)

    def now(self) -> float:
        """Emulated seconds since the experiment's start; 0 before it."""
        return 0.0 if self._t0 is None else max(0.0, (time.monotonic() - self._t0) / self.tdf)

    def _timed(self, name: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return action()
        finally:
            self._durations[name] = round(time.monotonic() - began, 3)

    def _event(self, event: dict[str, Any]) -> None:
        self.sink.event(event)
        if self._captures is not None and event["event"] == "step":
            self._captures.step_done(event["step"])
        with self._live_lock:
            found = self._live.feed(event)
        for text, at_s in found:
            moment = datetime.now().astimezone() - timedelta(seconds=(self.now() - at_s) * self.tdf)
            at = moment.isoformat(sep=" ", timespec="milliseconds")
            self._engine_event("warning", text=f"INVALID from {at_s:.1f} s emulated ({at}) on: {text}")

    def _expected_s(self) -> float | None:
        """Real seconds that training is expected to take by the runner's prediction, which may be none."""
        step_s = self.setup.plan.predicted.get("step_time_s")
        if step_s is None:
            return None
        return min(step_s * self.setup.plan.training.steps, self.setup.time_limit_s) * self.tdf

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
            late=late_s / self.tdf,
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
        self._engine_event("cross_traffic", home, direction=direction, rate_bps=rate_bps, late=late_s / self.tdf)

    def _inside(self, state: RunState) -> RunResult:
        setup, progress = self.setup, self.sink.progress
        for text in setup.warnings:
            self._engine_event("warning", text=text)
        with ExitStack() as stack:
            shaped = ShapedNetwork(
                state,
                setup.network,
                caps=self.engine.caps,
                on_cross_traffic=self._cross_traffic_event,
                on_link=self._link_event,
                log_dir=self.sink.logs,
            )
            progress.stage(
                f"building the network: {len(setup.network.topology.homes)} homes, delay by {shaped.backend_name}"
            )
            self._timed("network", lambda: stack.enter_context(shaped))
            self.sink.note(commands=shaped.commands())
            pool = WorkerPool(
                state=state,
                run_dir=self.sink.folder,
                runner=f"{type(setup.runner).__module__}:{type(setup.runner).__qualname__}",
                plan=setup.plan,
                addresses=shaped.network.hosts,
                tdf=self.tdf,
                on_event=self._event,
                memory_limits={d.name: d.memory_bytes for d in setup.cluster.devices},
                devices={d.name: d for d in (*setup.cluster.devices, setup.cluster.server)},
            )
            stack.enter_context(pool)
            if setup.probe_s is not None:
                progress.stage("measuring every link")
                self._timed("probes", lambda: self._probe(shaped, setup.probe_s))
            if setup.captures is not None:
                progress.stage(f"capturing packets of {', '.join(setup.captures.hosts)}")
                self._captures = stack.enter_context(self._capture(state, shaped))
            progress.stage("starting workers")
            self._timed("workers", lambda: self._start_workers(pool, shaped))
            churn = ChurnController(
                setup.churn,
                mode=setup.churn_mode,
                network=shaped.network,
                pool=pool,
                tdf=self.tdf,
                on_event=self._event,
            )
            own_queues = shaped.backend.declares.own_queues
            links = LinkMonitor(shaped.network, self._interference, own_queues=own_queues).start()
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
            self.sink.note(zero_at=zero.isoformat(timespec="milliseconds"))
            for host, link in {**setup.network.at_start(), SERVER: setup.network.server_state}.items():
                self._link_event(0.0, host, link, 0.0)
            if self._captures is not None:
                self._captures.begin(self._t0)
            pool.begin(self._t0)
            shaped.begin(self._t0)
            churn.start(self._t0)
            stack.callback(churn.stop)
            monitor.start()
            stack.callback(monitor.stop)
            result = self._timed("training", lambda: self._train(pool, shaped, churn))
            churn.stop()
            if self.engine.after is not None:
                pool.close()
                with contextlib.suppress(Interrupted):  # training is complete: this only ends the look around
                    self.engine.after(shaped)
            return result

    def _capture(self, state: RunState, shaped: ShapedNetwork) -> Captures:
        setup = self.setup
        return Captures(
            state,
            shaped.network.hosts,
            setup.captures,
            self.sink.folder / FOLDER,
            comments=[f"experiment {self.sink.folder.name}", f"seed {setup.network.seed}"],
            tdf=self.tdf,
            on_end=lambda host, fields: self._engine_event("capture", host, **fields),
        )

    def _start_workers(self, pool: WorkerPool, shaped: ShapedNetwork) -> None:
        pool.start()
        present = [d.name for d in self.setup.cluster.devices if d.name not in self.setup.absent_at_start]
        for name in self.setup.absent_at_start:
            shaped.network.link_down(name)
        pool.launch([SERVER, *present])

    def _probe(self, shaped: ShapedNetwork, seconds: float) -> None:
        network = self.setup.network
        results = probe_links(
            shaped.network, network.at_start(), seconds=seconds, tdf=self.tdf, server=network.server_state
        )
        for r in results:
            self._engine_event(
                "probe",
                r.home,
                quantity=r.quantity,
                set=r.set,
                measured=None if math.isnan(r.measured) else r.measured,
                seconds=r.seconds,
                count=r.count,
                **({"text": r.text} if r.text else {}),
            )

    def _train(self, pool: WorkerPool, shaped: ShapedNetwork, churn: ChurnController) -> RunResult:
        counters = _Counters(shaped, self._engine_event, self.tdf)
        try:
            while True:
                outcome = pool.wait(timeout=1.0)
                counters.sample()
                shaped.check()
                if churn.error is not None:
                    raise TestbedError(f"devices could not be toggled any more: {churn.error}")
                if outcome is not None:
                    return RunResult("complete") if outcome.ok else RunResult("failed", outcome.reason)
                if self.now() > self.setup.time_limit_s:
                    text = (
                        f"the time limit of {self.setup.time_limit_s:g} emulated seconds was reached "
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
