"""Who does what of a group in a step."""

from __future__ import annotations

from collections.abc import Iterable

from runners.cleave.affine.lane import Lane


class Duty:
    """One device's part of a group's work: samples, and the pieces of their summed gradient that it owes.

    posted, back, done: of each sample: slabs sent forward; the slab that goes backward next; results that came, of both
    passes. scored: at the head, the slabs whose scores it has given. left: backward results that are to come.
    handing: the gradient has been asked for, nothing can be added. redone: its device is lost, and what became of it.
    """

    __slots__ = ("back", "done", "group", "handing", "id", "lane", "left", "pieces", "posted", "redone",
                 "samples", "scored")  # fmt: skip

    def __init__(self, number: int, group: int, lane: Lane, pieces: Iterable[int]):
        self.id, self.group, self.lane = number, group, lane
        self.samples: list[int] = []
        self.pieces = set(pieces)
        self.posted: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.scored: set[tuple[int, int]] = set()
        self.left = 0
        self.handing = False
        self.redone: Redone | None = None


class Redone:
    """Work that a device took with it; `satisfied` once others have come as far with it as that device had.

    reached: sample -> results that it had given. Where it was handing over its gradient, all pieces that it still owed
    have to be there.
    """

    __slots__ = ("duties", "handing", "reached")

    def __init__(self, reached: dict[int, int], handing: bool):
        self.reached, self.handing = reached, handing
        self.duties: list[Duty] = []  # that took it over

    @property
    def satisfied(self) -> bool:
        if not self.duties:
            return False
        return all(self._as_far(duty) for duty in self.duties)

    def _as_far(self, duty: Duty) -> bool:
        if not duty.pieces:
            return True
        if duty.redone is not None:  # that device is lost, too
            return duty.redone.satisfied
        return not self.handing and all(duty.done[j] >= self.reached[j] for j in duty.samples if j in self.reached)
