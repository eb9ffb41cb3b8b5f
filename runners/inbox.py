"""One queue for all that a coordinator hears, so that one handler runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class Inbox:
    """A base of coordinators. inbox: (handler, item), in the order in which things came."""

    inbox: asyncio.Queue[tuple[Callable[[Any], Awaitable[None]], Any]]

    async def _pump(self, take: Callable[[], Awaitable[Any]], handler: Callable[[Any], Awaitable[None]]) -> None:
        while True:
            self.inbox.put_nowait((handler, await take()))

    def _ended(self, ended: asyncio.Future) -> None:
        """A pump or an outbox is over: what it raised is raised where the inbox is read."""
        if not ended.cancelled() and ended.exception() is not None:
            self.inbox.put_nowait((self._raise, ended.exception()))

    async def _raise(self, error: BaseException) -> None:
        raise error
