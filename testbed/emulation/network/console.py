"""Mininet's command line on a shaped network."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mininet.net import Mininet


def command_line(net: Mininet) -> None:
    """Read commands from standard input until `exit` or its end; what they print goes to standard output."""
    from mininet.cli import CLI  # here, as the package above says where Mininet stands
    from mininet.log import lg, setLogLevel

    setLogLevel("output")  # what commands print, without Mininet's own chatter
    lg.handlers[0].setStream(sys.stdout)  # Mininet prints it on standard error
    CLI(net)
