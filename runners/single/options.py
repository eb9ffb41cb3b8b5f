"""The single runner's options: `training.options` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runners.pipeline.options import check_choice, check_known
from testbed import units
from testbed.errors import InputError

OFFLOADS = ("auto", "none", "optimizer", "weights")


@dataclass(frozen=True)
class SingleOptions:
    """Options with their defaults.

    offload: what lives in the host's memory: nothing, the optimizer's state, or that and the weights; 'auto': the
        quickest that fits the device.
    host_link: of each direction between device and host [bit/s]. The default is PCIe 4.0 x16: half of the 64 GB/s that
        the A100's datasheet states for both.
    host_memory: the host's memory bandwidth [bit/s], which an update there takes. The default is eight channels of
        DDR4-3200, 25.6 GB/s each.
    recompute: keep only the layers' inputs; 'auto': where the activations do not fit.
    """

    offload: str = "auto"
    host_link: float = 32e9 * 8
    host_memory: float = 204.8e9 * 8
    recompute: bool | str = "auto"


def parse_options(options: Mapping[str, Any]) -> SingleOptions:
    """Options as given, checked.

    Raises:
        InputError: unknown key or impossible value, with key, value, expectation and the nearest right one.
    """
    parsed = dict(options)
    for key, value in options.items():
        where = check_known(key, SingleOptions, "single")
        if key == "offload":
            check_choice(where, value, OFFLOADS)
        elif key == "recompute":
            if value != "auto" and not isinstance(value, bool):
                raise InputError(where, f"{value!r}; expected true, false or 'auto'")
        else:
            try:
                parsed[key] = units.parse("rate", value)
            except ValueError as error:
                raise InputError(where, str(error)) from None
            if not parsed[key] > 0:
                raise InputError(where, f"{value!r}; expected a rate above 0")
    return SingleOptions(**parsed)
