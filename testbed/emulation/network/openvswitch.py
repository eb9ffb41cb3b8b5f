"""Open vSwitch as the network's switch, run privately inside the run's own namespace.

Database, sockets and daemons are the run's alone; an Open vSwitch of the machine is neither used nor touched.
The kernel's datapath belongs to the network namespace too, and goes with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.emulation import state as state_file
from testbed.emulation.kernel.namespaces import argv_in
from testbed.emulation.state import RunState, process_value
from testbed.errors import CapabilityError, TestbedError

SCHEMA = Path(os.environ.get("OVS_PKGDATADIR", "/usr/share/openvswitch")) / "vswitch.ovsschema"
START_TIMEOUT_S = 20.0
_HINT = "apt install openvswitch-switch, modprobe openvswitch; or switch: bridge"


@dataclass
class Bridge:
    """A switch: its node's name in Mininet, its interface, its members, and the hosts that lie behind each.

    Where each host lies is told to the bridge, not learned: a frame to a host that is down, or hasn't spoken
    yet, would go out by every port and take capacity from every home.
    """

    name: str
    interface: str
    ports: list[str] = field(default_factory=list)
    macs: dict[str, str] = field(default_factory=dict)  # MAC -> port


def directory(run_id: str) -> Path:
    """Where a run's database and sockets are."""
    return state_file.STATE_DIR / f"{run_id}.ovs"


def flows(bridge: Bridge) -> list[str]:
    """OpenFlow rules of a bridge: frames to a host by its port, to groups by all, others towards the core."""
    towards_core = [port for port in bridge.ports if port not in bridge.macs.values()]
    others = ",".join(f"output:{port}" for port in towards_core) or "drop"
    return [
        *(f"priority=20,dl_dst={mac},actions=output:{port}" for mac, port in bridge.macs.items()),
        "priority=10,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00,actions=flood",
        f"priority=0,actions={others}",
    ]


def _bridge_arguments(bridges: Sequence[Bridge]) -> list[str]:
    """One ovs-vsctl transaction that makes all bridges; secure: no flow but ours."""
    arguments: list[str] = []
    for bridge in bridges:
        arguments += ["--", "add-br", bridge.interface, "--", "set-fail-mode", bridge.interface, "secure"]
        for port in bridge.ports:
            arguments += ["--", "add-port", bridge.interface, port]
    return arguments


def commands(net_netns: str, bridges: Sequence[Bridge]) -> list[str]:
    """What `OpenVSwitch.start` does, as text."""
    inside, at = f"ip netns exec {net_netns}", directory(net_netns.split("-")[1])
    return [
        f"ovsdb-tool create {at}/conf.db {SCHEMA}",
        f"{inside} ovsdb-server {at}/conf.db --remote=punix:{at}/db.sock --unixctl={at}/ovsdb.ctl",
        f"{inside} ovs-vswitchd unix:{at}/db.sock --unixctl={at}/vswitchd.ctl",
        f"ovs-vsctl --db=unix:{at}/db.sock {' '.join(_bridge_arguments(bridges)[1:])}",
        *(f"ovs-ofctl add-flow {at}/{bridge.interface}.mgmt {flow}" for bridge in bridges for flow in flows(bridge)),
    ]


class OpenVSwitch:
    """A private ovsdb-server and ovs-vswitchd, and the bridges in them."""

    def __init__(self, state: RunState, net_netns: str):
        self._state, self._netns = state, net_netns
        self._directory = directory(state.run_id)
        self._daemons: list[tuple[subprocess.Popen, str]] = []

    def start(self, bridges: Sequence[Bridge]) -> None:
        """Start the daemons and make the bridges, whose ports exist already.

        Raises:
            CapabilityError: Open vSwitch isn't installed, or the kernel has none.
            TestbedError: a command failed.
        """
        if not SCHEMA.exists() or not shutil.which("ovs-vswitchd"):
            raise CapabilityError("switch 'ovs': Open vSwitch isn't installed", hint=_HINT)
        at = self._directory
        self._state.record("path", str(at))
        at.mkdir(mode=0o700)
        self._run(["ovsdb-tool", "create", f"{at}/conf.db", str(SCHEMA)])
        listening = [f"--remote=punix:{at}/db.sock", f"--unixctl={at}/ovsdb.ctl"]
        self._daemon("ovsdb-server", [f"{at}/conf.db", *listening], at / "db.sock")
        # ovs-vswitchd 3.1 finds no processor in the first 10 s after boot (count_cpu_cores trusts its empty
        # cache until then) and starts no thread for new flows. Only a kernel just booted has to wait.
        time.sleep(max(0.0, 10.5 - time.monotonic()))
        database = f"--db=unix:{at}/db.sock"
        self._run(["ovs-vsctl", database, "--no-wait", "init"])
        control = at / "vswitchd.ctl"
        self._daemon("ovs-vswitchd", [f"unix:{at}/db.sock", f"--unixctl={control}"], control)
        self._run(["ovs-vsctl", database, f"--timeout={START_TIMEOUT_S:.0f}", *_bridge_arguments(bridges)])
        for bridge in bridges:
            if not (at / f"{bridge.interface}.mgmt").exists():
                said = self._said("ovs-vswitchd") or "no bridge came up"
                raise CapabilityError(f"switch 'ovs': {said}", hint=_HINT)
            listing = "\n".join(flows(bridge))
            self._run(["ovs-ofctl", "add-flows", f"{at}/{bridge.interface}.mgmt", "-"], listing)

    def stop(self) -> None:
        """End the daemons; what is left goes with the namespace and the state's paths. Idempotent."""
        for process, value in reversed(self._daemons):
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._state.forget("process", value)
        self._daemons.clear()
        if self._directory.exists():
            shutil.rmtree(self._directory)
        self._state.forget("path", str(self._directory))

    def _environment(self) -> dict[str, str]:
        at = str(self._directory)
        return {**os.environ, "OVS_RUNDIR": at, "OVS_LOGDIR": at, "OVS_DBDIR": at, "OVS_SYSCONFDIR": at}

    def _run(self, argv: list[str], text: str = "") -> None:
        done = subprocess.run(
            argv_in(self._netns, argv),
            input=text,
            capture_output=True,
            text=True,
            env=self._environment(),
            timeout=2 * START_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip() or self._said("ovs-vswitchd")
            raise TestbedError(f"{' '.join(argv[:3])} …: {said}", hint=_HINT)

    def _daemon(self, name: str, arguments: list[str], ready: Path) -> None:
        """Start a daemon in the foreground of a session of its own, and wait until its socket is there."""
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv_in(self._netns, [name, *arguments]),
                env=self._environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        value = process_value(process.pid)
        self._daemons.append((process, value))
        self._state.record("process", value)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise TestbedError(f"{name} didn't start: {self._said(name)}", hint=_HINT)
            time.sleep(0.01)

    def _said(self, name: str) -> str:
        """The last warning or error in a daemon's log."""
        log = self._directory / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return next((line for line in reversed(lines) if "|ERR|" in line or "|WARN|" in line), "")
