"""The single runner's options: `training.options` of an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from runners.options import Expected, Options, Rate


class SingleOptions(Options):
    """Options with their defaults.

    offload: what lives in the host's memory: nothing, the optimizer's state, or that and the weights; 'auto': the
        quickest that fits the device.
    host_link: of each direction between device and host [bit/s]. The default is PCIe 4.0 x16: half of the 64 GB/s that
        the A100's datasheet states for both.
    host_memory: the host's memory bandwidth [bit/s], which an update there takes. The default is eight channels of
        DDR4-3200, 25.6 GB/s each.
    recompute: keep only the layers' inputs; 'auto': where the activations do not fit.
    """

    offload: Literal["auto", "none", "optimizer", "weights"] = "auto"
    host_link: Rate = 32e9 * 8
    host_memory: Rate = 204.8e9 * 8
    recompute: Annotated[bool | Literal["auto"], Expected("true, false or 'auto'")] = "auto"


parse_options = SingleOptions.read
