"""What this machine can do, what experiments need of it, and the command that gets what is missing."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from testbed import uml
from testbed.emulation.machine import kernel_probes
from testbed.emulation.machine.kernel_probes import Found
from testbed.errors import CapabilityError, unknown
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
    "nfqueue",
    "ifb",
    "netem",
    "netem_seed",
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
    nfqueue: Found
    ifb: Found
    netem: Found
    netem_seed: Found
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


@dataclass(frozen=True)
class Row:
    """One line of `testbed doctor`."""

    name: str
    ok: bool
    detail: str
    needed_for: str
    remedy: str


# field -> (name, what needs it, whether every run does, remedy)
_KERNEL = "; or in a kernel of its own: testbed --kernel uml …, or vagrant up"
_ROWS: dict[str, tuple[str, str, bool, str]] = {
    "root": ("root", "emulation", True, "sudo testbed …" + _KERNEL),
    "network_namespaces": ("network namespaces", "hosts", True, "a kernel with CONFIG_NET_NS" + _KERNEL),
    "mount_namespaces": (
        "mount namespaces",
        "a hosts file for each host",
        True,
        "a kernel and container that allow unshare" + _KERNEL,
    ),
    "pid_namespaces": ("PID namespaces", "programs kept apart (optional)", False, "a kernel with CONFIG_PID_NS"),
    "iproute2": ("iproute2", "hosts, links and shaping", True, "apt install iproute2"),
    "veth": ("veth", "links", True, "modprobe veth" + _KERNEL),
    "bridge": ("Linux bridge", "switch: bridge", True, "modprobe bridge" + _KERNEL),
    "htb": ("HTB", "rates", True, "modprobe sch_htb" + _KERNEL),
    "bfifo": ("bfifo", "bottleneck buffers", True, "a kernel with CONFIG_NET_SCH_FIFO" + _KERNEL),
    "fq_codel": ("fq_codel", "links.queue: fq_codel (optional)", False, "modprobe sch_fq_codel" + _KERNEL),
    "cake": ("cake", "links.queue: cake (optional)", False, "modprobe sch_cake" + _KERNEL),
    "clsact": ("clsact", "uplink and downlink steering", True, "modprobe sch_ingress" + _KERNEL),
    "u32": ("u32 classifier", "uplink and downlink steering", True, "modprobe cls_u32" + _KERNEL),
    "mirred": ("mirred action", "uplink and downlink steering", True, "modprobe act_mirred" + _KERNEL),
    "nfqueue": (
        "NFQUEUE",
        "delay backend nfqueue",
        False,
        "modprobe -a nfnetlink_queue xt_NFQUEUE nft_compat" + _KERNEL,
    ),
    "ifb": ("ifb", "delay backend netem", False, "modprobe ifb numifbs=0" + _KERNEL),
    "netem": (
        "netem",
        "delay backend netem",
        False,
        "modprobe sch_netem (Ubuntu: apt install linux-modules-extra-$(uname -r))" + _KERNEL,
    ),
    "netem_seed": (
        "netem seed",
        "random loss that repeats, with netem",
        False,
        "Linux 6.7 and iproute2 6.6 or newer; or network.delay_backend: nfqueue, always seeded",
    ),
    "openvswitch": ("Open vSwitch", "switch: ovs (optional)", False, "apt install openvswitch-switch"),
    "memory_cgroup": (
        "memory cgroup",
        "devices' memory limits",
        False,
        "mount a cgroup file system with the memory controller" + _KERNEL,
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
    match = re.search(r"iproute2-(?:ss)?(\d[\d.]*)", kernel_probes.output("ip", "-V"))
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
            "" if kernel.available else ("apt install openvswitch-switch, and a kernel with openvswitch" + _KERNEL),
        )
    if not kernel.available:
        return replace(kernel, remedy="modprobe openvswitch" + _KERNEL)
    return Found(True, kernel_probes.output("ovs-vswitchd", "--version").partition("\n")[0])


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
    root = _root()
    iproute2, iproute2_version = _iproute2()
    tried: dict[str, Found] = {}
    cgroup_version, memory_cgroup = 0, _NO_ROOT
    if root.available:
        tried = kernel_probes.network() | kernel_probes.namespaces()
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
        congestion_controls=kernel_probes.congestion_controls(),
        kernel=platform.release(),
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        available_memory_bytes=available_memory_bytes,
        **{name: kernel(name) for name in _KERNEL_FIELDS},
    )
    return replace(
        found,
        **{
            field: replace(value, remedy=value.remedy or _ROWS[field][3])
            for field in _ROWS
            if not (value := getattr(found, field)).available
        },
    )


def rows(caps: Capabilities) -> list[Row]:
    """What `testbed doctor` shows, in order."""
    listed = [
        Row(name, (found := getattr(caps, field)).available, found.how, needed_for, found.remedy)
        for field, (name, needed_for, _, _) in _ROWS.items()
    ]
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
    if not (caps.nfqueue.available or _netem_works(caps)):
        reasons.append(
            f"no delay backend: NFQUEUE: {caps.nfqueue.how}; netem: {caps.netem.how} "
            f"({caps.netem.remedy or caps.ifb.remedy})"
        )
    return not reasons, reasons


def _netem_works(caps: Capabilities) -> bool:
    return caps.netem.available and caps.ifb.available


def choose_delay_backend(caps: Capabilities, asked: str = "auto") -> str:
    """'netem' where the kernel has it (and ifb), else 'nfqueue'; or the one asked for, if it works here.

    Raises:
        InputError: asked for something else. CapabilityError: it doesn't work here.
    """
    works = {"netem": _netem_works(caps), "nfqueue": caps.nfqueue.available}
    if asked == "auto":
        for name, fine in works.items():
            if fine:
                return name
        raise CapabilityError(
            "this kernel has neither netem nor NFQUEUE, so nothing can delay packets", hint=caps.netem.remedy
        )
    if asked not in works:
        raise unknown("network.delay_backend", "delay backend", asked, ("auto", *works))
    if not works[asked]:
        lacking = caps.nfqueue if asked == "nfqueue" else caps.ifb if caps.netem.available else caps.netem
        other = next((name for name, fine in works.items() if fine), None)
        hint = f"use --set network.delay_backend={other}, or: {lacking.remedy}" if other else lacking.remedy
        raise CapabilityError(f"delay backend {asked!r} doesn't work here: {lacking.how}", hint=hint)
    return asked


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
