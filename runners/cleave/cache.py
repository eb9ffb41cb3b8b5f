"""What a device holds already, as the server knows it. The server decides; devices store and drop as they are told.

Messages to a device are handled in the order sent, so the record is right at the moment at which a message is made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from runners.cleave.job import Region


class Held:
    """Regions of values that one device keeps, the least recently used dropped first.

    Args:
        budget_bytes: for all of them.
    """

    __slots__ = ("budget_bytes", "bytes", "_by_key", "_entries", "_next")

    def __init__(self, budget_bytes: float):
        self.budget_bytes = budget_bytes
        self.bytes = 0
        self._entries: OrderedDict[int, tuple[Hashable, Region, int]] = OrderedDict()
        self._by_key: dict[Hashable, list[int]] = {}
        self._next = 1

    def find(self, key: Hashable, region: Region) -> tuple[int, Region] | None:
        """(id, region) of an entry that has all of that region."""
        numbers = self._by_key.get(key)
        if not numbers:
            return None
        b0, b1, r0, r1, c0, c1 = region
        for number in numbers:
            held = self._entries[number][1]
            hb0, hb1, hr0, hr1, hc0, hc1 = held
            if hr0 <= r0 and r1 <= hr1 and hc0 <= c0 and c1 <= hc1 and hb0 <= b0 and b1 <= hb1:
                self._entries.move_to_end(number)
                return number, held
        return None

    def add(self, key: Hashable, region: Region, nbytes: int) -> tuple[int, list[int]]:
        """(id under which the device keeps it, ids to drop for it); id 0: it does not fit."""
        if nbytes > self.budget_bytes:
            return 0, []
        left = self.budget_bytes - nbytes
        dropped = self.shrink(left) if self.bytes > left else []
        number, self._next = self._next, self._next + 1
        self._entries[number] = key, region, nbytes
        self._by_key.setdefault(key, []).append(number)
        self.bytes += nbytes
        return number, dropped

    def shrink(self, nbytes: float) -> list[int]:
        """Forget until no more than that is held; the ids to drop."""
        dropped = []
        while self.bytes > nbytes and self._entries:
            number, (key, _, size) = self._entries.popitem(last=False)
            numbers = self._by_key[key]
            if len(numbers) > 1:
                numbers.remove(number)
            else:  # every layer has keys of its own
                del self._by_key[key]
            self.bytes -= size
            dropped.append(number)
        return dropped

    def clear(self) -> None:
        self._entries.clear()
        self._by_key.clear()
        self.bytes = 0
