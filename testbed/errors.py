"""Errors that a user can act on. Anything else that escapes is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager


class TestbedError(Exception):
    """Something went wrong that the user can understand and act on.

    Attributes:
        hint: what to do about it (a command, a choice), or None.
        exit_code: the status with which the command line ends.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class InputError(TestbedError):
    """Bad input, found before anything starts: where, the value found, what was expected.

    Args:
        where: file, line or key, e.g. ``"a.csv line 7, column download"`` or ``"training.steps"``.
        problem: what is wrong, with the value found and what was expected.
    """

    exit_code = 2

    def __init__(self, where: str, problem: str, *, hint: str | None = None):
        super().__init__(f"{where}: {problem}", hint=hint)
        self.where = where
        self.problem = problem
        self.others: list[InputError] = []  # that were found with it, see `together`

    def at(self, place: Callable[[str], str]) -> InputError:
        """The same, and what was found with it, at other places."""
        if self.others:
            return together([e.at(place) for e in self.others])
        return InputError(place(self.where), self.problem, hint=self.hint)


def together(errors: Sequence[InputError], most: int = 20) -> InputError:
    """One error that tells of all, the first of them in front; the file is named once."""
    first, *others = errors
    file = first.where.partition(" line ")[0] + " "
    lines = [
        f"{e.where.removeprefix(file)}: {e.problem}" + (f" ({e.hint})" if e.hint else "") for e in others[: most - 1]
    ]
    if len(errors) > most:
        lines.append(f"… and {len(errors) - most} more")
    found = InputError(first.where, first.problem, hint="\n  ".join(filter(None, [first.hint, *lines])) or None)
    found.others = list(errors) if others else []
    return found


class CapabilityError(TestbedError):
    """This machine or kernel can't do what was asked; the hint names the remedy."""


@contextmanager
def looking(where: str | None = None) -> Iterator[None]:
    """While a file that the user named is looked for: what the system has against it is an InputError.

    where: in place of the file's name in the message.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise InputError(where or str(error.filename), f"can't be looked up: {error.strerror}") from None


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` most likely meant: a misspelt or longer form of it. None when nothing is close."""
    meant = str(name).lower()
    lowered = {str(c).lower(): str(c) for c in choices}
    alike = [c for c in lowered if abs(len(c) - len(meant)) <= max(1, len(meant) // 3)]
    longer = [c for c in lowered if len(meant) > 2 and c.startswith(meant)]
    hits = difflib.get_close_matches(meant, alike, n=1) or longer
    return lowered[hits[0]] if hits else None


def unknown(where: str, kind: str, name: str, choices: Iterable[str]) -> InputError:
    """The error for an unknown name: says which choices exist and which one is nearest."""
    choices = sorted(str(c) for c in choices)
    near = nearest(name, choices)
    listed = ", ".join(choices[:12]) + (", …" if len(choices) > 12 else "")
    return InputError(
        where, f"unknown {kind} {name!r}; expected one of: {listed}", hint=f"did you mean {near!r}?" if near else None
    )
