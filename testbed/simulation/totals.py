"""Per-node sums over a run: what remains when a run is too long for an event a message."""

from __future__ import annotations

from typing import Any


class Totals:
    """One node's messages [bytes at the message layer], computation and waiting [s]."""

    __slots__ = ("bytes_up", "bytes_down", "messages_up", "messages_down", "computations", "flops", "compute_s",
                 "wait_s")  # fmt: skip

    def __init__(self) -> None:
        self.bytes_up = self.bytes_down = self.messages_up = self.messages_down = self.computations = 0
        self.flops = self.compute_s = self.wait_s = 0.0

    def fields(self) -> dict[str, Any]:
        """As the `totals` event has them."""
        return {name: getattr(self, name) for name in self.__slots__}
