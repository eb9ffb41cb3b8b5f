"""What this machine can do, what experiments need of it, and the command that gets what is missing."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from testbed import uml
from testbed.emulation.delay import registry
from testbed.emulation.delay.base import DelayBackend, Need
from testbed.emulation.kernel.trying import UML_HINT, Found, congestion_controls, output
from testbed.emulation.machine import kernel_probes
from testbed.errors import CapabilityError
from testbed.processes import in_user_mode_linux, machine_memory
from testbed.units import size

_KERNEL_FIELDS = (
    "network_namespaces",
    "mount_namespaces",
    "pid_namespaces",
    "veth",
    "bridge",
    "htb",
    "bfifo",
    "fq_codel",
    "cake",
    "clsact",
    "u32",
    "mirred",
)
_NO_ROOT = Found(False, "not tried: needs root")


@dataclass(frozen=True)
class Capabilities:
    """What was found. Every `Found` was tried, not looked up by a module's name."""

    root: Found
    network_namespaces: Found
    mount_namespaces: Found
    pid_namespaces: Found
    iproute2: Found
    veth: Found
    bridge: Found
    htb: Found
    bfifo: Found
    fq_codel: Found
    cake: Found
    clsact: Found
    u32: Found
    mirred: Found
    openvswitch: Found
    memory_cgroup: Found
    mininet: Found
    torch: Found
    uml: Found
    cgroup_version: int  # 0: none
    iproute2_version: str
    congestion_controls: tuple[str, ...]
    kernel: str
    python: str
    torch_version: str
    cores: int
    memory_bytes: int
    available_memory_bytes: int
    delay: dict[str, Found] = field(default_factory=dict)  # needs of delay backends, by key


@dataclass(frozen=True)
class Row:
    """One line of `testbed doctor`."""

    name: str
    ok: bool
    detail: str
    needed_for: str
    remedy: str


# field -> (name, what needs it, whether every run does, remedy)
_ROWS: dict[str, tuple[str, str, bool, str]] = {
    "root": ("root", "emulation", True, "sudo testbed …" + UML_HINT),
    "network_namespaces": ("network namespaces", "hosts", True, "a kernel with CONFIG_NET_NS" + UML_HINT),
    "mount_namespaces": (
        "mount namespaces",
        "a hosts file for each host",
        True,
        "a kernel and container that allow unshare" + UML_HINT,
    ),
    "pid_namespaces": ("PID namespaces", "programs kept apart (optional)", False, "a kernel with CONFIG_PID_NS"),
    "iproute2": ("iproute2", "hosts, links and shaping", True, "apt install iproute2"),
    "veth": ("veth", "links", True, "modprobe veth" + UML_HINT),
    "bridge": ("Linux bridge", "switch: bridge", True, "modprobe bridge" + UML_HINT),
    "htb": ("HTB", "rates", True, "modprobe sch_htb" + UML_HINT),
    "bfifo": ("bfifo", "bottleneck buffers", True, "a kernel with CONFIG_NET_SCH_FIFO" + UML_HINT),
    "fq_codel": ("fq_codel", "links.queue: fq_codel (optional)", False, "modprobe sch_fq_codel" + UML_HINT),
    "cake": ("cake", "links.queue: cake (optional)", False, "modprobe sch_cake" + UML_HINT),
    "clsact": ("clsact", "uplink and downlink steering", True, "modprobe sch_ingress" + UML_HINT),
    "u32": ("u32 classifier", "uplink and downlink steering", True, "modprobe cls_u32" + UML_HINT),
    "mirred": ("mirred action", "uplink and downlink steering", True, "modprobe act_mirred" + UML_HINT),
    "openvswitch": ("Open vSwitch", "switch: ovs (optional)", False, "apt install openvswitch-switch"),
    "memory_cgroup": (
        "memory cgroup",
        "devices' memory limits",
        False,
        "mount a cgroup file system with the memory controller" + UML_HINT,
    ),
    "mininet": ("Mininet", "testbed shell, and topologies as Mininet objects", True, "apt install mininet"),
    "torch": ("PyTorch", "training", True, "make setup"),
    "uml": (
        "user-mode-linux",
        "--kernel uml: a second kernel with all of this, without root (optional)",
        False,
        "apt install user-mode-linux",
    ),
}


def _iproute2() -> tuple[Found, str]:
    missing = [name for name in ("ip", "tc", "bridge", "nsenter") if not shutil.which(name)]
    match = re.search(r"iproute2-(?:ss)?(\d[\d.]*)", output("ip", "-V"))
    version = match[1].rstrip(".") if match else "unknown"
    return Found(not missing, f"version {version}" if not missing else f"no {', '.join(missing)}"), version


def _openvswitch(kernel: Found) -> Found:
    missing = [
        name
        for name in ("ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", "ovsdb-tool")
        if not shutil.which(name)
    ]
    if missing:
        return Found(
            False,
            f"no {missing[0]}",
            "" if kernel.available else ("apt install openvswitch-switch, and a kernel with openvswitch" + UML_HINT),
        )
    if not kernel.available:
        return replace(kernel, remedy="modprobe openvswitch" + UML_HINT)
    return Found(True, output("ovs-vswitchd", "--version").partition("\n")[0])


def _torch() -> tuple[Found, str]:
    """By its metadata: importing it takes seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Found(False, "no Python package torch"), ""
    return Found(True, f"version {version}"), version


def _uml() -> Found:
    if in_user_mode_linux():
        return Found(True, "this is it")
    found = uml.availability()
    return Found(found.available, found.lacking or f"{found.binary}, Linux {found.version}", found.remedy)


def _mininet() -> Found:
    """Import it: the module of one Python version often stands where another looks for it."""
    try:
        from mininet.net import VERSION
    except Exception as error:  # whatever an import may raise
        gone = isinstance(error, ModuleNotFoundError) and error.name == "distutils"
        remedy = "pip install setuptools (Mininet 2.3 imports distutils, gone in Python 3.12)"
        return Found(False, f"import mininet.net: {error}", remedy if gone else "")
    return Found(True, f"version {VERSION}")


def _root(uid_map: Path = Path("/proc/self/uid_map")) -> Found:
    """Root of a user namespace (a rootless container's) may make networks, and not what else a run needs: real-time
    priority, buffers beyond the system's limit."""
    with contextlib.suppress(OSError):
        if os.geteuid() == 0 and uid_map.read_text().split() != ["0", "0", "4294967295"]:
            return Found(False, "root of a user namespace only")
    return Found(os.geteuid() == 0, f"user id {os.geteuid()}")


def probe() -> Capabilities:
    """Try everything; takes some tenths of a second and leaves nothing behind."""
    root, needs = _root(), delay_needs()
    iproute2, iproute2_version = _iproute2()
    tried: dict[str, Found] = {}
    cgroup_version, memory_cgroup = 0, _NO_ROOT
    if root.available:
        tried = kernel_probes.network({key: n.attempt for key, n in needs.items()}) | kernel_probes.namespaces()
        cgroup_version, memory_cgroup = kernel_probes.memory_cgroup()
    otherwise = _NO_ROOT if not root.available else Found(False, "not tried: no network namespaces")

    def kernel(name: str) -> Found:
        return tried.get(name, otherwise)

    torch, torch_version = _torch()
    memory_bytes, available_memory_bytes = machine_memory()
    found = Capabilities(
        root=root,
        iproute2=iproute2,
        iproute2_version=iproute2_version,
        openvswitch=_openvswitch(kernel("openvswitch_kernel")),
        memory_cgroup=memory_cgroup,
        cgroup_version=cgroup_version,
        mininet=_mininet(),
        torch=torch,
        torch_version=torch_version,
        uml=_uml(),
        congestion_controls=congestion_controls(),
        kernel=platform.release(),
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        available_memory_bytes=available_memory_bytes,
        **{name: kernel(name) for name in _KERNEL_FIELDS},
        delay={key: _with_remedy(kernel(key), need.remedy) for key, need in needs.items()},
    )
    told: dict[str, Any] = {field: _with_remedy(getattr(found, field), row[3]) for field, row in _ROWS.items()}
    return replace(found, **told)


def _with_remedy(found: Found, remedy: str) -> Found:
    return found if found.available else replace(found, remedy=found.remedy or remedy)


def rows(caps: Capabilities) -> list[Row]:
    """What `testbed doctor` shows, in order."""
    listed = [
        Row(name, (found := getattr(caps, field)).available, found.how, needed_for, found.remedy)
        for field, (name, needed_for, _, _) in _ROWS.items()
    ]
    loaded, broken = registry.backends()
    for backend, one in loaded.items():
        listed += [
            Row(n.name, (f := caps.delay[n.key]).available, f.how, n.use or f"delay backend {backend}", f.remedy)
            for n in one.declares.needs
            if n.key in caps.delay
        ]
    listed += [Row(name, False, said, f"delay backend {name}", "") for name, said in broken.items()]
    version = f"v{caps.cgroup_version}" if caps.cgroup_version else "none"
    cubic = "cubic" in caps.congestion_controls
    controls = " ".join(caps.congestion_controls) or "unknown"
    return listed + [
        Row(
            "cgroup version",
            caps.cgroup_version > 0,
            version,
            "devices' memory limits",
            _ROWS["memory_cgroup"][3] if not caps.cgroup_version else "",
        ),
        Row(
            "congestion controls", cubic, controls, "network.congestion_control", "" if cubic else "modprobe tcp_cubic"
        ),
        Row("kernel", True, caps.kernel, "everything", ""),
        Row("Python", True, caps.python, "everything", ""),
        Row("cores", True, str(caps.cores), "devices' computing", ""),
        Row(
            "memory",
            True,
            f"{size(caps.available_memory_bytes)} of {size(caps.memory_bytes)} available",
            "devices' memory",
            "",
        ),
    ]


def can_run(caps: Capabilities) -> tuple[bool, list[str]]:
    """Can any experiment be emulated here? If not: each reason, with its remedy."""
    if not caps.root.available:  # nothing else could be tried
        return False, [f"root: {caps.root.how} ({caps.root.remedy})"]
    reasons = [
        f"{name}: {found.how} ({found.remedy})"
        for field, (name, _, needed, _) in _ROWS.items()
        if needed and not (found := getattr(caps, field)).available
    ]
    try:
        choose_delay_backend(caps)
    except CapabilityError as error:
        reasons.append(f"no delay backend: {error.message}")
    return not reasons, reasons


def delay_needs() -> dict[str, Need]:
    """By key, of all backends, in the order in which they are tried."""
    return {need.key: need for backend in registry.backends()[0].values() for need in backend.declares.needs}


def choose_delay_backend(caps: Capabilities, asked: str = "auto", switch: str = "bridge") -> str:
    """The first backend that works here and behind this switch; or the one asked for, if it does.

    Raises:
        InputError: asked for something else. CapabilityError: it doesn't work here.
    """
    registry.check(asked, switch)
    usable = {n: b for n, b in registry.backends()[0].items() if switch in b.declares.switches}
    working = [name for name, backend in usable.items() if not backend.declares.lacking(caps.delay)]
    if asked == "auto" and not working:
        said = [f"{n}: {_lacking(caps, b)[0]}" for n, b in usable.items()]
        hint = next((_lacking(caps, b)[1] for b in usable.values()), None)
        raise CapabilityError(f"nothing can delay packets behind switch {switch!r}: {'; '.join(said)}", hint=hint)
    if asked == "auto" or asked in working:
        return working[0] if asked == "auto" else asked
    how, remedy = _lacking(caps, registry.load(asked))
    hint = f"use --set network.delay_backend={working[0]}, or: {remedy}" if working else remedy
    raise CapabilityError(f"delay backend {asked!r} doesn't work here: {how}", hint=hint)


def _lacking(caps: Capabilities, backend: type[DelayBackend]) -> tuple[str, str]:
    """(what the system said, what helps) of what a backend lacks."""
    lacking = backend.declares.lacking(caps.delay)
    return "; ".join(f.how for f in lacking), "; ".join(f.remedy for f in lacking if f.remedy)


def require_queue(caps: Capabilities, queue: str) -> None:
    """Raises CapabilityError when this kernel has no such router queue ('fifo', 'fq_codel' or 'cake')."""
    lacking = caps.bfifo if queue == "fifo" else getattr(caps, queue)
    if not lacking.available:
        raise CapabilityError(
            f"links.queue {queue!r} doesn't work here: {lacking.how}",
            hint=f"use --set links.queue=fifo, or: {lacking.remedy}",
        )


def require_switch(caps: Capabilities, switch: str) -> None:
    """Raises CapabilityError when a run with this switch can't work here."""
    lacking = caps.openvswitch if switch == "ovs" else caps.bridge
    if not lacking.available:
        raise CapabilityError(f"switch {switch!r} doesn't work here: {lacking.how}", hint=lacking.remedy)
