"""A started network whose links follow their traces: what a run, a shell and single programs all stand on."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.emulation.delay import registry
from testbed.emulation.delay.base import DelayBackend
from testbed.emulation.machine.capabilities import Capabilities, choose_delay_backend, require_queue
from testbed.emulation.network.emulated import EmulatedNetwork
from testbed.emulation.schedule.cross_traffic import CrossTraffic, OnRate
from testbed.emulation.schedule.replay import Replayer, ReplayPlan
from testbed.emulation.state import STATE_DIR, RunState, process_value
from testbed.errors import TestbedError
from testbed.scenario.link_model import AccessLink, access_links, dilated, server_delay
from testbed.scenario.network import NetworkSetup

HOSTS_FILE = "hosts.json"  # how another process finds the hosts


class ShapedNetwork:
    """Network, delay line and replay, made in that order and removed in the other; a context manager.

    Args:
        state: where everything that is made is recorded.
        setup: what to build; its cross traffic runs from `begin` on.
        caps: what this machine can do.
        on_cross_traffic: see CrossTraffic.
        on_link: called for each setting that was applied, as (emulated time, home, settings, seconds late).
        log_dir: for the delay line's log.
    """

    def __init__(
        self,
        state: RunState,
        setup: NetworkSetup,
        *,
        caps: Capabilities,
        on_cross_traffic: OnRate | None = None,
        on_link: Callable[[float, str, LinkState, float], None] | None = None,
        log_dir: Path | None = None,
    ):
        self.state, self.setup = state, setup
        self.topology, self.tdf = setup.topology, setup.settings.tdf
        self.backend_name = choose_delay_backend(caps, setup.settings.delay_backend, setup.settings.switch)
        self._settings = replace(setup.wiring, delay_backend=self.backend_name)
        require_queue(caps, setup.settings.queue)
        self._on_cross_traffic = on_cross_traffic
        self._cross_traffic: CrossTraffic | None = None
        self._on_link, self._log_dir = on_link, log_dir
        self._stack = ExitStack()
        self._replayer: Replayer | None = None
        self.trouble: str | None = None  # why the network does not do what it should any more
        self._current = setup.at_start()
        self.network: EmulatedNetwork
        self.backend: DelayBackend

    def __enter__(self) -> ShapedNetwork:
        with ExitStack() as stack:
            links = access_links(self._current, self.topology.server_link, self.topology.shared_links, self.tdf)
            rates = {home: a.link for home, a in links.items()}
            self.network = EmulatedNetwork(self.state, dilated(self.topology, self.tdf), rates, self._settings)
            stack.enter_context(self.network)
            self.backend = registry.load(self.backend_name)(self._log_dir / "delay-line.log" if self._log_dir else None)
            stack.callback(self.backend.stop)
            self._start_backend(links)
            if self.setup.cross_traffic:
                self._cross_traffic = CrossTraffic(
                    self.state,
                    self.setup.cross_traffic,
                    self.network.hosts,
                    self.network.outside,
                    tdf=self.tdf,
                    on_rate=self._on_cross_traffic,
                )
                stack.callback(self._cross_traffic.stop)
            self._write_hosts()
            self._stack = stack.pop_all()
        return self

    def _start_backend(self, links: dict[str, AccessLink]) -> None:
        delays = {home: a.delay for home, a in links.items()}
        delays[SERVER] = server_delay(self.topology.server_link, self.tdf)
        self.backend.start(self.network.delay_ports(), delays, self.network.shared_ports(), self.setup.seed)
        pid = getattr(self.backend, "pid", None)
        if pid is not None:
            self.state.record("process", process_value(pid))

    def begin(self, t0_monotonic: float) -> None:
        """Start the replay and the cross traffic: emulated time 0 is at that moment of CLOCK_MONOTONIC."""
        self._replayer = Replayer(
            ReplayPlan.of(self.setup), self.network, self.backend, on_step=self._applied, on_error=self.failed_step
        )
        self._replayer.start(t0_monotonic)
        self.begin_cross_traffic(t0_monotonic)

    def begin_cross_traffic(self, t0_monotonic: float) -> None:
        """Start the cross traffic alone, again if it was paused; nothing to do where there is none."""
        if self._cross_traffic is not None:
            self._cross_traffic.begin(t0_monotonic)

    def pause_cross_traffic(self) -> None:
        """End the cross traffic until it begins again."""
        if self._cross_traffic is not None:
            self._cross_traffic.pause()

    def failed_step(self, error: Exception) -> None:
        """A replay could not apply a change: `check` tells of it."""
        self.trouble = self.trouble or f"a change of the links could not be applied: {error}"

    def _applied(self, t_s: float, home: str, state: LinkState, late_s: float) -> None:
        self._current[home] = state
        self._write_link(home, state)
        if self._on_link is not None:
            self._on_link(t_s, home, state, late_s)

    def check(self) -> None:
        """Is the network still what it should be? Raises TestbedError when a part of it has failed."""
        if getattr(self.backend, "alive", True) is False:
            self.trouble = self.trouble or "the delay line ended"
        if self._cross_traffic is not None and not self._cross_traffic.alive:
            self.trouble = self.trouble or "the source of cross traffic ended"
        if self.trouble:
            raise TestbedError(self.trouble)

    def current(self, home: str) -> LinkState:
        """A home's settings as last applied."""
        return self._current[home]

    def commands(self) -> list[str]:
        """Everything that was applied, for the manifest."""
        return [*self.network.commands, *self.backend.commands()]

    @property
    def replay_overdue_s(self) -> float:
        """For how long the next change of the links has been due without being in force [real s]."""
        return self._replayer.overdue_s if self._replayer is not None else 0.0

    def stop_replay(self) -> None:
        """Links stay as they are from now on. Idempotent."""
        if self._replayer is not None:
            self._replayer.stop()
            self._replayer = None

    def __exit__(self, *exc: Any) -> None:
        self.stop_replay()
        self._stack.close()

    def _write_hosts(self) -> None:
        """Let other processes find the hosts and the settings in force (testbed exec); removed with the rest."""
        folder = live_folder(self.state.run_id)
        self.state.record("path", str(folder))
        folder.mkdir()
        hosts = {
            name: {"netns": h.netns, "netns_path": h.netns_path, "ip": h.ip, "interface": h.interface}
            for name, h in self.network.hosts.items()
        }
        for home, link in self._current.items():
            self._write_link(home, link)
        (folder / HOSTS_FILE).write_text(json.dumps({"label": self.setup.label, "tdf": self.tdf, "hosts": hosts}))

    def _write_link(self, home: str, link: LinkState) -> None:
        (live_folder(self.state.run_id) / f"{home}.link").write_text(json.dumps(asdict(link)))


def live_folder(run_id: str) -> Path:
    """Where a live network describes itself to other processes."""
    return STATE_DIR / f"{run_id}.live"
