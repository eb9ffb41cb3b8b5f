"""How long to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """echoes, packets: a home (and direction). seconds: of each saturated link, real.

    attempts: how often what fails is measured at most.
    """

    echoes: int = 150
    echo_interval_s: float = 0.02
    packets: int = 1500
    packet_interval_s: float = 0.005
    seconds: float = 1.0
    attempts: int = 3


QUICK = Effort(echoes=60, packets=500, seconds=0.5)
