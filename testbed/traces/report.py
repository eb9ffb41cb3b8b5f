"""What a reader found in a file, and every repair it made: counted, with the first place of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.errors import InputError

_EXAMPLES = 3  # places kept for each kind of repair


@dataclass
class Repair:
    """One kind of repair: how often, and the first places with the value found."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Report:
    """Filled while a file is read.

    repairs: what the file had wrong and the reader put right (refused when `strict`).
    notes: properties of the file that need no repair (byte order mark, compression, time zone read as UTC …).
    assumed: quantities that the format does not carry at all, with the value used in their place.
    warnings: what a reader should look at before trusting the values.
    guessed: what the file does not state (units), and what was taken for it on the evidence of its values.
    dropped: personal data in the file that is not carried over (addresses, coordinates, names …).
    """

    path: str = ""
    format: str = ""
    strict: bool = False
    rows: int = 0
    failed: int = 0
    repairs: dict[str, Repair] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    assumed: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)

    def place(self, line: int | None = None, column: str | None = None) -> str:
        """'a.csv line 7, column download'."""
        text = self.path or "input"
        if line is not None:
            text += f" line {line}"
        if column is not None:
            text += f", column {column}"
        return text

    def error(
        self, message: str, line: int | None = None, column: str | None = None, hint: str | None = None
    ) -> InputError:
        """The error to raise for this file."""
        return InputError(self.place(line, column), message, hint=hint)

    def repair(self, kind: str, detail: str = "", line: int | None = None, count: int = 1) -> None:
        """Count a repair; in strict mode refuse it.

        Raises:
            InputError: when `strict`.
        """
        if self.strict:
            raise self.error(
                f"{kind}{': ' + detail if detail else ''}; --strict refuses this",
                line,
                hint="leave --strict out to have it repaired and counted",
            )
        entry = self.repairs.setdefault(kind, Repair())
        entry.count += count
        if len(entry.examples) < _EXAMPLES:
            where = f"line {line}" if line is not None else ""
            entry.examples.append(": ".join(part for part in (where, detail) if part))

    def guess(self, text: str) -> None:
        """Keep what the file does not state and its values tell; in strict mode refuse it.

        Raises:
            InputError: when `strict`.
        """
        self.repair("units that the file does not state: told from the values", text)
        self.tell_guess(text)

    def tell_guess(self, text: str) -> None:
        """Keep what a format's shape says, but not the file itself: no repair, but shown."""
        if text not in self.guessed:
            self.guessed.append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def drop(self, *names: str) -> None:
        for name in names:
            if name not in self.dropped:
                self.dropped.append(name)

    def as_dict(self) -> dict:
        """Plain data, for --json."""
        return {
            "file": self.path,
            "format": self.format,
            "rows": self.rows,
            "failed_tests": self.failed,
            "repairs": {k: {"count": r.count, "examples": r.examples} for k, r in self.repairs.items()},
            "notes": self.notes,
            "assumed": self.assumed,
            "guessed": self.guessed,
            "warnings": self.warnings,
            "dropped": self.dropped,
        }
