"""What a device's runner holds of tensors, against the device's memory."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from testbed import units
from testbed.errors import TestbedError


class OutOfMemory(TestbedError):
    """A device needed more than its memory."""


class _Reference(weakref.ref):
    """To a tensor that is accounted for."""

    __slots__ = ("meter", "key", "nbytes")


def _gone(reference: _Reference) -> None:
    del reference.meter._alive[reference.key]
    reference.meter.used_bytes -= reference.nbytes


class MemoryMeter:
    """Bytes of the tensors that came to a node in messages or out of its computations, for as long as they live.

    Args:
        name: of the device.
        limit_bytes: its memory.
    """

    __slots__ = ("name", "limit_bytes", "used_bytes", "peak_bytes", "_alive")

    def __init__(self, name: str, limit_bytes: float):
        self.name, self.limit_bytes = name, limit_bytes
        self.used_bytes = self.peak_bytes = 0
        self._alive: dict[int, _Reference] = {}

    def take(self, tensor: torch.Tensor, nbytes: int) -> None:
        """Account for a tensor until it is garbage. Raises OutOfMemory."""
        key = id(tensor)
        if nbytes == 0 or key in self._alive:
            return
        reference = self._alive[key] = _Reference(tensor, _gone)
        reference.meter, reference.key, reference.nbytes = self, key, nbytes
        self.used_bytes += nbytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
            self.need(self.used_bytes)

    def need(self, nbytes: float) -> None:
        """Raises OutOfMemory when so much is more than the device has."""
        if nbytes > self.limit_bytes:
            raise OutOfMemory(
                f"{self.name} needed {units.size(nbytes)} for tensors, more than its "
                f"{units.size(self.limit_bytes)} of memory"
            )

    def take_result(self, result: Any) -> None:
        """Account for the tensors in a computation's result: itself, or in lists, tuples and dicts."""
        if isinstance(result, torch.Tensor):
            self.take(result, result.nbytes)
        elif isinstance(result, (list, tuple)):
            for item in result:
                self.take_result(item)
        elif isinstance(result, dict):
            for item in result.values():
                self.take_result(item)
