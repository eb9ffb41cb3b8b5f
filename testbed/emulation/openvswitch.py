"""Open vSwitch as the network's switch, run privately inside the run's own namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from testbed.emulation.state import RunState
from testbed.errors import CapabilityError

if TYPE_CHECKING:
    from testbed.emulation.plan import Bridge


class OpenVSwitch:
    """A private ovsdb-server and ovs-vswitchd."""

    def __init__(self, state: RunState, netns: str):
        self.commands: list[str] = []

    def start(self, bridges: Sequence[Bridge]) -> None:
        raise CapabilityError("Open vSwitch isn't supported yet", hint="use switch: bridge")

    def stop(self) -> None:
        pass
