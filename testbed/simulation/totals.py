"""Per-node sums over a run: what remains when a run is too long for an event a message."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Totals:
    """One node's messages [bytes at the message layer], computation and waiting [s]."""

    __slots__ = ("sent_bytes", "received_bytes", "messages_sent", "messages_received", "computations", "flops",
                 "compute_s", "wait_s")  # fmt: skip

    def __init__(self) -> None:
        self.sent_bytes: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.messages_sent = self.messages_received = self.computations = 0
        self.flops = self.compute_s = self.wait_s = 0.0

    def sent(self, peer: str, nbytes: int) -> None:
        self.sent_bytes[peer] += nbytes
        self.messages_sent += 1

    def received(self, peer: str, nbytes: int) -> None:
        self.received_bytes[peer] += nbytes
        self.messages_received += 1

    def computed(self, flops: float, seconds: float) -> None:
        self.computations += 1
        self.flops += flops
        self.compute_s += seconds

    def fields(self) -> dict[str, Any]:
        """As the `totals` event has them."""
        return {
            "bytes_up": sum(self.sent_bytes.values()), "bytes_down": sum(self.received_bytes.values()),
            "messages_up": self.messages_sent, "messages_down": self.messages_received,
            "computations": self.computations, "flops": self.flops, "compute_s": self.compute_s, "wait_s": self.wait_s,
        }  # fmt: skip
