"""Which hosts' packets a run captures, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass

SNAPLEN = 96  # bytes: Ethernet, IPv4 and TCP with all of its options


@dataclass(frozen=True)
class CaptureSettings:
    """hosts: names. snaplen: bytes kept of a packet. for_s: emulated seconds, None to the run's end.

    from_s: emulated second at which it begins, or from_step: the step; neither: before the workers start.
    most_bytes: of each host's file.
    """

    hosts: tuple[str, ...]
    snaplen: int = SNAPLEN
    from_s: float | None = None
    from_step: int | None = None
    for_s: float | None = None
    most_bytes: int = 200_000_000
