"""Which processor does what: the delay line has one that the kernel's receiving of packets keeps away from.

Otherwise the system call that releases a packet also does what the packet leads to (its receiver's TCP, the next
queue's timer), up to a hundred microseconds a packet, while others are due. With receive packet steering (Linux's
Documentation/networking/scaling.rst) other processors do that, in order within a flow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from testbed.emulation.kernel.namespaces import in_thread, inside

_DEFAULT_MASK = Path("/proc/sys/net/core/rps_default_mask")  # of the reader's namespace; from Linux 6.3 on


def delay_processor() -> int | None:
    """The delay line's own; None on a machine with a single one."""
    processors = sorted(os.sched_getaffinity(0))
    return processors[-1] if len(processors) > 1 else None


def receive_mask() -> str:
    """Those that receive packets, as the kernel writes sets of processors; '' on a machine with a single one."""
    own = delay_processor()
    if own is None:
        return ""
    bits = f"{sum(1 << p for p in os.sched_getaffinity(0) if p != own):x}"
    bits = bits.zfill(-(-len(bits) // 8) * 8)
    return ",".join(bits[i : i + 8] for i in range(0, len(bits), 8))


def steer_receiving(namespaces: Iterable[str]) -> None:
    """Have interfaces that will be made in these namespaces receive elsewhere; no effect where the kernel can't."""
    mask = receive_mask()
    if not mask or not _DEFAULT_MASK.exists():
        return

    def there() -> None:
        for netns in namespaces:
            with inside(netns), contextlib.suppress(OSError):
                _DEFAULT_MASK.write_text(mask)

    in_thread(there)


def commands(netns: str) -> list[str]:
    """The same as commands, for the manifest and --dry-run."""
    mask = receive_mask()
    return [f"ip netns exec {netns} sysctl -w net.core.rps_default_mask={mask}  # and in each host's"] if mask else []
