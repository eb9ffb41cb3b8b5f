"""Membership views of thousands of nodes: one log of changes, and one table for all who know the same part of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping

from testbed.runtime import MembershipEvent
from testbed.runtime.mailbox import View


class Log:
    """The server's changes of the view, in order."""

    def __init__(self, alive: dict[str, int]):
        self._base = dict(alive)
        self._base_version = len(alive)
        self.changes: list[MembershipEvent] = []
        self._tables: weakref.WeakValueDictionary[int, _Table] = weakref.WeakValueDictionary()

    @property
    def version(self) -> int:
        return self._base_version + len(self.changes)

    def note(self, change: MembershipEvent) -> None:
        self.changes.append(change)

    def table(self, version: int) -> _Table:
        """The devices alive -> generation, as of that version. Shared: not to be changed."""
        table = self._tables.get(version)
        if table is None:
            before = self._tables.get(version - 1)
            if before is not None:
                table = _Table(before)
                _apply(table, self.changes[version - 1 - self._base_version])
            else:
                table = _Table(self._base)
                for change in self.changes[: version - self._base_version]:
                    _apply(table, change)
            self._tables[version] = table
        return table


class _Table(dict):
    __slots__ = ("__weakref__",)


def _apply(table: dict[str, int], change: MembershipEvent) -> None:
    if change.kind == "joined":
        table[change.name] = change.generation
    else:
        table.pop(change.name, None)


class LoggedView(View):
    """A view whose table is shared with all that are at the same version."""

    __slots__ = ("_log",)

    def __init__(self, log: Log, version: int):
        super().__init__({}, version)
        self._log = log
        self._alive = log.table(version)

    @property
    def alive(self) -> Mapping[str, int]:
        return _Live(self)

    def _take(self, event: MembershipEvent) -> None:
        self._alive = self._log.table(self.version)


class _Live(Mapping):
    """The table that a view has now, whenever it is looked at."""

    __slots__ = ("_view",)

    def __init__(self, view: LoggedView):
        self._view = view

    def __getitem__(self, name: str) -> int:
        return self._view._alive[name]

    def __contains__(self, name: object) -> bool:
        return name in self._view._alive

    def __iter__(self) -> Iterator[str]:
        return iter(self._view._alive)

    def __len__(self) -> int:
        return len(self._view._alive)
