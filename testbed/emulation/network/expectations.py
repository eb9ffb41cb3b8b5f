"""What the tool has set, over time: whatever else the kernel reports was set by somebody else.

The kernel's notices of a change come a moment after it, and the tool may have changed the same thing again by
then. So a value counts as the tool's own as long as it was in force within the last GRACE_S.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any

GRACE_S = 3.0  # a link that was mended carries again after up to a second; notices follow


class Expectations:
    """Values by key (an interface, say), each with the times at which it was set. Thread-safe.

    clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[Hashable, deque[tuple[float, Any]]] = {}

    def set(self, values: Mapping[Hashable, Any]) -> None:
        """To be called right before these values are applied."""
        now = self._clock()
        with self._lock:
            for key, value in values.items():
                history = self._values.setdefault(key, deque())
                history.append((now, value))
                while len(history) > 1 and history[1][0] < now - GRACE_S:  # superseded that long ago
                    history.popleft()

    def allowed(self, key: Hashable) -> list[Any]:
        """Every value that was in force within the last GRACE_S, the newest last; none for an unknown key."""
        now = self._clock()
        with self._lock:
            history = self._values.get(key, ())
            ends = [t for t, _ in history][1:] + [now]
            return [value for (_, value), end in zip(history, ends) if end >= now - GRACE_S]

    def current(self, key: Hashable) -> Any:
        """The value set last, or None."""
        with self._lock:
            history = self._values.get(key)
            return history[-1][1] if history else None
