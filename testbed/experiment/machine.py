"""Refuses early, and with the remedy, when this machine can't run an experiment."""

from __future__ import annotations

from testbed.emulation.capabilities import Capabilities, can_run, probe
from testbed.errors import CapabilityError


def capable() -> Capabilities:
    """This machine's capabilities. Raises CapabilityError when no experiment can run here."""
    caps = probe()
    fine, reasons = can_run(caps)
    if not fine:
        raise CapabilityError("this machine can't run an emulated experiment: " + "; ".join(reasons),
                              hint="`testbed doctor` shows what is missing and the command that installs it")
    return caps
