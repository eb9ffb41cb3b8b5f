"""Find out what this kernel can do by doing it, in a network namespace that nobody else sees.

The namespace has no name and belongs to one thread: it is gone when the thread ends, even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from testbed.emulation.kernel.namespaces import CLONE_NEWNET, in_thread
from testbed.emulation.kernel.trying import Found, command, commands

_libc = ctypes.CDLL(None, use_errno=True)
_CGROUPS = Path("/sys/fs/cgroup")


def _generic_netlink_family(name: str) -> Found:
    """Ask for a generic netlink family; the kernel loads its module if there is one."""
    body = struct.pack("=BBH", 3, 1, 0)  # CTRL_CMD_GETFAMILY
    data = name.encode() + b"\0"
    body += struct.pack("=HH", 4 + len(data), 2) + data + bytes(-len(data) % 4)
    with contextlib.closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)) as sock:
        sock.settimeout(5)
        sock.bind((0, 0))
        sock.send(struct.pack("=IHHII", 16 + len(body), 16, 1, 1, 0) + body)
        answer = sock.recv(1 << 16)
    if struct.unpack_from("=H", answer, 4)[0] == 2:
        code = -struct.unpack_from("=i", answer, 16)[0]
        return Found(False, f"netlink family {name}: {os.strerror(code)}")
    return Found(True, f"netlink family {name}")


def network(attempts: Mapping[str, Callable[[], Found]]) -> dict[str, Found]:
    """Which links, queueing disciplines and filters work, by field of Capabilities; and the attempts, by key."""

    def probes() -> dict[str, Found]:
        if _libc.unshare(CLONE_NEWNET):
            return {"network_namespaces": Found(False, f"unshare: {os.strerror(ctypes.get_errno())}")}
        command("modprobe", "-q", "ifb", "numifbs=0")  # else it puts ifb0 and ifb1 into the root namespace
        found = {
            "network_namespaces": Found(True, "unshare(CLONE_NEWNET)"),
            "veth": commands("ip link add pa type veth peer name pb", "ip link set pa up", "ip link set pb up"),
            "bridge": commands("ip link add pbr type bridge"),
            "htb": commands(
                "tc qdisc add dev pa root handle 1: htb default 1",
                "tc class add dev pa parent 1: classid 1:1 htb rate 10mbit burst 3028b quantum 3028",
            ),
            "bfifo": commands("tc qdisc add dev pa parent 1:1 handle 10: bfifo limit 100000"),
            "fq_codel": commands("tc qdisc replace dev pa parent 1:1 handle 20: fq_codel limit 100 target 5ms"),
            "cake": commands("tc qdisc replace dev pa parent 1:1 handle 30: cake unlimited besteffort memlimit 1mb"),
            "clsact": commands("tc qdisc add dev pb clsact"),
            "u32": commands("tc filter add dev pb egress protocol all prio 1 u32 match u32 0 0"),
            "mirred": commands(
                "tc filter add dev pb ingress protocol all prio 1 u32 match u32 0 0 "
                "action mirred egress mirror dev pa drop"
            ),
            "openvswitch_kernel": _generic_netlink_family("ovs_datapath"),
        }
        for key, attempt in attempts.items():
            try:
                found[key] = attempt()
            except Exception as error:  # whatever a backend's own code may raise
                found[key] = Found(False, str(error) or type(error).__name__)
        return found

    return in_thread(probes)


def namespaces() -> dict[str, Found]:
    """Mount and PID namespaces."""
    return {
        "mount_namespaces": command("unshare", "--mount", "true"),
        "pid_namespaces": command("unshare", "--pid", "--fork", "true"),
    }


def memory_cgroup() -> tuple[int, Found]:
    """cgroup version (0: none) and whether its memory controller takes a limit, tried on a cgroup."""
    v1 = _CGROUPS / "memory"
    for version, root, limit in ((2, _CGROUPS, "memory.max"), (1, v1, "memory.limit_in_bytes")):
        if version == 2 and not (root / "cgroup.controllers").exists():
            continue
        if version == 1 and not root.is_dir():
            continue
        found = _try_cgroup(root, limit, version)
        return version, found
    return 0, Found(False, f"no cgroup file system at {_CGROUPS}")


def _try_cgroup(root: Path, limit: str, version: int) -> Found:
    if version == 2 and "memory" not in (root / "cgroup.controllers").read_text().split():
        return Found(False, f"{root}/cgroup.controllers doesn't list memory")
    try:
        probe = Path(tempfile.mkdtemp(prefix="testbed-probe-", dir=root))
    except OSError as error:
        return Found(False, str(error))
    try:
        if version == 2 and not (probe / limit).exists():
            enabled = "memory" in (root / "cgroup.subtree_control").read_text().split()
            return Found(not enabled, f"{root}/cgroup.controllers lists memory")
        (probe / limit).write_text(str(1 << 28))
        return Found(True, f"{limit} of a cgroup in {root}")
    except OSError as error:
        return Found(False, str(error))
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()
