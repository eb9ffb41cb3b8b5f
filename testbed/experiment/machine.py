"""Refuses early, and with the remedy, when this machine can't run an experiment."""

from __future__ import annotations

from testbed.emulation.machine.capabilities import Capabilities, can_run, probe, require_queue, require_switch
from testbed.emulation.network.hosts import require_congestion_control
from testbed.errors import CapabilityError
from testbed.experiment.loading import LoadedExperiment


def capable() -> Capabilities:
    """This machine's capabilities. Raises CapabilityError when no experiment can run here."""
    caps = probe()
    fine, reasons = can_run(caps)
    if not fine:
        raise CapabilityError(
            "this machine can't run an emulated experiment: " + "; ".join(reasons),
            hint="`testbed doctor` shows what is missing and the command that installs it",
        )
    return caps


def check_kernel(loaded: LoadedExperiment, caps: Capabilities) -> None:
    """What the experiment asks of the kernel.

    Raises:
        InputError: it has no such congestion control. CapabilityError: no such router queue or switch.
    """
    require_queue(caps, loaded.experiment.links.queue)
    require_switch(caps, loaded.experiment.network.switch)
    check_congestion_control(loaded)


def check_congestion_control(loaded: LoadedExperiment) -> None:
    """Needs no root. Raises InputError when the kernel has no such congestion control."""
    require_congestion_control(
        loaded.experiment.network.congestion_control, loaded.where("network", "congestion_control")
    )
