"""Names and addresses of all that a run makes: one place, so that nothing can collide or outgrow its limit.

A network interface's name has at most 15 characters, so interfaces are named by number (h12-eth0, p12, x12,
y12); the names that a user chose appear in namespaces' names and in Mininet's node names only. Host 0 is
the server, homes count from 1.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path

INTERFACE_NAME_MAX = 15  # IFNAMSIZ - 1
NETNS_DIR = Path("/run/netns")
PREFIX = "tb"
SUBNET_BITS = 16
MAX_HOMES = 250 * 254

_RUN_ID = re.compile(r"[0-9a-f]{6}")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


def new_run_id() -> str:
    """Six hex characters."""
    return secrets.token_hex(3)


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


def short(name: str) -> str:
    """`name` as part of a namespace's name: as it is where possible, else what is readable of it and a hash.

    'net' is the run's own namespace, so a home of that name gets a hash too.
    """
    if _PLAIN.fullmatch(name) and name != "net":
        return name
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:20] or "host"
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def namespace(run_id: str, host: str) -> str:
    """Name of a host's network namespace, 'tb-<id>-<host>'."""
    return f"{PREFIX}-{run_id}-{short(host)}"


def net_namespace(run_id: str) -> str:
    """Name of the namespace that holds the bridges and every switch-side interface of a run."""
    return f"{PREFIX}-{run_id}-net"


def netns_path(netns: str) -> str:
    """Path of a named namespace; a path is given back as it is."""
    return netns if "/" in netns else str(NETNS_DIR / netns)


def host_interface(index: int) -> str:
    """In the host's namespace."""
    return f"h{index}-eth0"


def port(index: int) -> str:
    """Far end of the host's veth; not a member of the bridge."""
    return f"p{index}"


def inner(index: int) -> str:
    """Carries the uplink bottleneck on its egress; its other end is the bridge port."""
    return f"x{index}"


def bridge_port(index: int) -> str:
    """Member of the bridge; carries the downlink bottleneck on its egress."""
    return f"y{index}"


def ifb(index: int) -> str:
    """Made by the delay backend that needs it."""
    return f"i{index}"


def bridge(index: int) -> str:
    """0 is the core, neighbourhoods count from 1."""
    return f"br{index}"


def shared_up(index: int) -> str:
    """Port of a neighbourhood's bridge that sends towards the core."""
    return f"u{index}"


def shared_down(index: int) -> str:
    """Port of the core's bridge that sends towards a neighbourhood's homes."""
    return f"d{index}"


def ip(index: int) -> str:
    """10.0.0.1, 10.0.0.2, … for homes, without last bytes 0 and 255; 10.0.255.254 for the server.

    Raises:
        ValueError: index out of range.
    """
    if not 0 <= index <= MAX_HOMES:
        raise ValueError(f"host index {index}: expected 0 to {MAX_HOMES}")
    if index == 0:
        return "10.0.255.254"
    high, low = divmod(index - 1, 250)
    return f"10.0.{high}.{low + 1}"


def mac(index: int) -> str:
    """A locally administered address made of the IP address, so that captures read easily."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in ip(index).split("."))
