"""What tc is told for a rate and a buffer: pure functions that make command lines; tests need no root.

A bottleneck is an HTB class for the rate and, below it, the router's queue: a byte-limited FIFO (bfifo), or
fq_codel or cake with the same limit. It is made once, by `add_bottleneck`, and only ever changed in place
afterwards, by `change_bottleneck`: adding anew would drop the queue and leak a burst.

Why the uplink takes the way that `access_link` gives it. A queue that holds packets of a local socket
pushes back on that socket ("TCP small queues": no more than a millisecond or so of data below TCP), so a
shaped interface on the sender's own machine never fills its buffer, and neither does one that gets packets
by tc's *redirect*, which keeps the socket's claim on them. *mirror* makes a clone, which belongs to no
socket; the original is dropped. Measured with one cubic flow over 20 Mbit/s and a buffer of 100 ms: with
redirect the queue stays at 40 to 50 ms and never drops; with mirror and drop it fills to 73-96 ms and
drops, as a home router's queue does.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass
from pathlib import Path

from testbed.scenario.link_model import FRAME_BYTES, GOODPUT_BYTES, MTU
from testbed.scenario.network import CODEL_INTERVAL_S

BURST_S = 0.002
UML_BURST_S = 0.025
BURST_MIN_FRAMES = 2
BUFFER_MAX_BYTES = 2**32 - 1  # tc's; a link that wide, much dilated, never fills it
BUFFER_MIN_FRAMES = 4
_CODEL_TARGET = 1 / 20  # of the interval; but one and a half frames at least, or slow links starve
QUANTUM_MAX_BYTES = 200_000  # more is 'big' to the kernel, which says so in its log
_ETHERNET_BYTES = FRAME_BYTES - MTU
_HEADER_BYTES = MTU - GOODPUT_BYTES

_CAKE_MEMORY = 2  # bytes of memory for a byte of a full frame, rounded up from 2304 / 1514

_ALL = "protocol all prio 1 u32 match u32 0 0"


@dataclass(frozen=True)
class Shape:
    """A bottleneck as tc gets it. Rates and sizes count Ethernet frames (IP packet + 14 bytes).

    queue: one of QUEUES. interval_s: over which fq_codel and cake watch the delay [real s].
    """

    rate_bps: int
    burst_bytes: int  # HTB burst and cburst
    quantum_bytes: int
    limit_bytes: int  # of the queue
    queue: str = "fifo"
    interval_s: float = CODEL_INTERVAL_S


@functools.cache
def default_burst_s() -> float:
    """What may leave at once after a pause [s at the rate]: how late a timer may be at no loss of rate.

    Measured with every core busy: at 100 Mbit/s, 1 ms loses 1.5 % of the rate, 2 ms nothing; more only
    leaks more after a pause. User-mode-linux gets its timers by signals, milliseconds late: there, 2 ms
    lose 9 % at 50 Mbit/s, 25 ms 1 %.
    """
    with contextlib.suppress(OSError):
        if "User Mode Linux" in Path("/proc/cpuinfo").read_text():
            return UML_BURST_S
    return BURST_S


def shape(
    goodput_bps: float,
    buffer_s: float,
    mtu: int = MTU,
    burst_s: float = BURST_S,
    queue: str = "fifo",
    interval_s: float = CODEL_INTERVAL_S,
) -> Shape:
    """The bottleneck that lets one TCP flow carry `goodput_bps` of payload and holds `buffer_s` of queue.

    The rate grows by the share of headers in a full frame: 1514 / 1448 at an MTU of 1500. The burst is what
    the rate carries in `burst_s`, but two frames at least; the buffer four frames at least.

    Raises:
        ValueError: a rate or a buffer that isn't positive and finite.
    """
    if not (goodput_bps > 0 and math.isfinite(goodput_bps)):
        raise ValueError(f"rate {goodput_bps!r} bit/s: expected a positive number")
    if not (buffer_s > 0 and math.isfinite(buffer_s)):
        raise ValueError(f"buffer {buffer_s!r} s: expected a positive number")
    frame = mtu + _ETHERNET_BYTES
    rate_bps = max(8, round(goodput_bps * frame / (mtu - _HEADER_BYTES)))
    burst = max(BURST_MIN_FRAMES * frame, math.ceil(rate_bps / 8 * burst_s))
    return Shape(
        rate_bps=rate_bps,
        burst_bytes=burst,
        quantum_bytes=min(burst, QUANTUM_MAX_BYTES),
        limit_bytes=min(BUFFER_MAX_BYTES, max(BUFFER_MIN_FRAMES * frame, math.ceil(rate_bps / 8 * buffer_s))),
        queue=queue,
        interval_s=interval_s,
    )


def _class(dev: str, s: Shape) -> str:
    return (
        f"dev {dev} parent 1: classid 1:1 htb rate {s.rate_bps}bit ceil {s.rate_bps}bit "
        f"burst {s.burst_bytes}b cburst {s.burst_bytes}b quantum {s.quantum_bytes}"
    )


def _buffer(dev: str, s: Shape) -> str:
    return f"dev {dev} parent 1:1 handle 10: {queue_options(s)}"


def queue_options(s: Shape) -> str:
    """The queue as tc gets it.

    fq_codel counts its limit in packets, so full frames fill exactly the buffer. cake counts memory, of which
    the kernel takes more than the frame; it gets no rate, since HTB above it has one that changes in place.
    """
    if s.queue == "fifo":
        return f"bfifo limit {s.limit_bytes}b"
    interval_us = round(s.interval_s * 1e6)
    if s.queue == "cake":
        return f"cake unlimited besteffort rtt {interval_us}us memlimit {_CAKE_MEMORY * s.limit_bytes}b"
    target_us = max(round(interval_us * _CODEL_TARGET), math.ceil(1.5 * FRAME_BYTES * 8e6 / s.rate_bps))
    packets = max(BUFFER_MIN_FRAMES, math.ceil(s.limit_bytes / FRAME_BYTES))
    interval_us = max(interval_us, target_us)
    return f"fq_codel limit {packets} target {target_us}us interval {interval_us}us quantum {FRAME_BYTES}"


def add_bottleneck(dev: str, s: Shape) -> list[str]:
    """tc commands that give an interface's egress its rate and buffer."""
    return [
        f"qdisc add dev {dev} root handle 1: htb default 1",
        f"class add {_class(dev, s)}",
        f"qdisc add {_buffer(dev, s)}",
    ]


def change_bottleneck(dev: str, old: Shape, new: Shape) -> list[str]:
    """tc commands that change rate and buffer in place; none where nothing differs.

    A buffer that shrinks keeps what is queued; a new one that is full already drops what arrives.
    """
    lines = []
    if _class(dev, old) != _class(dev, new):
        lines.append(f"class change {_class(dev, new)}")
    if _buffer(dev, old) != _buffer(dev, new):
        lines.append(f"qdisc change {_buffer(dev, new)}")
    return lines


def access_link(port: str, inner: str, bridge_port: str, up: Shape, down: Shape) -> list[str]:
    """tc commands for one access link, whose two veths and bridge port exist.

    Uplink: what enters by `port` is mirrored to `inner`, whose egress is the uplink's bottleneck, and comes
    out at `bridge_port`. Downlink: the bridge sends by `bridge_port`, whose egress is the downlink's
    bottleneck; what enters by `inner` is redirected to `port`, and so to the host. (mirred's own `drop`
    ends the original: no need for gact.)
    """
    return [
        *add_bottleneck(inner, up),
        *add_bottleneck(bridge_port, down),
        f"qdisc add dev {port} clsact",
        f"filter add dev {port} ingress {_ALL} action mirred egress mirror dev {inner} drop",
        f"qdisc add dev {inner} clsact",
        f"filter add dev {inner} ingress {_ALL} action mirred egress redirect dev {port}",
    ]


def shared_link(up_interface: str, down_interface: str, up: Shape, down: Shape) -> list[str]:
    """tc commands for a shared link: each end's egress is the bottleneck of its direction."""
    return [*add_bottleneck(up_interface, up), *add_bottleneck(down_interface, down)]
