"""A trace file as lines of text, whatever its compression and encoding, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from testbed.errors import InputError, looking, nearest
from testbed.traces.report import Report

CHUNK = 1 << 22  # a table of many homes at each time pays for each piece and home
SAMPLE = 1 << 16
LONGEST_LINE = 64 << 20  # a longer one is no log line; JSON documents are read as a whole
LONGEST_TEXT = 1 << 30

DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, ValueError)
_WIDE = {
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_PICKLE = ("a Python pickle", "pickles run code when loaded and are never read; export to JSON or CSV")
_REFUSED = {
    **{bytes((0x80, protocol)): _PICKLE for protocol in range(2, 6)},
    b"\x89HDF": ("an HDF5 file", "export the table to CSV"),
    b"\x89PNG": ("an image", "give the file with the numbers"),
    b"%PDF": ("a PDF document", "export the table to CSV"),
    b"SQLite format 3": ("an SQLite database", "export the table to CSV"),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook", "save the sheet as CSV"),
    b"\x93NUMPY": ("a NumPy array", "export it to CSV"),
    b"ARROW1": ("an Arrow file", "export it to CSV"),
    b"\x7fELF": ("a program", "give the file with the numbers"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "decompress it first: zstd -d"),
}


@dataclass(frozen=True)
class Sample:
    """The beginning of a file, from which its format is recognised.

    lines: without line ends or blank lines; the last one may be cut. whole: the sample is the whole file.
    """

    name: str
    head: bytes
    text: str
    lines: tuple[str, ...]
    whole: bool

    @functools.cached_property
    def layout(self):
        """The sample as a table (`table.Layout`)."""
        from testbed.traces.table import layout

        return layout(self.lines, self.text, self.whole)

    @functools.cached_property
    def json(self):
        """The sample as JSON: the document, or the objects of its first lines; None when it is neither."""
        from testbed.traces.json_text import from_sample

        return from_sample(self.lines, self.text, self.whole)

    @property
    def suffix(self) -> str:
        """The last suffix in lower case, compression aside: 'log.CSV.gz' -> '.csv'."""
        path = Path(self.name)
        if path.suffix.lower() in (".gz", ".zip", ".bz2", ".xz"):
            path = Path(path.stem)
        return path.suffix.lower()


class Source:
    """One file. Opened anew for each pass; nothing is kept but the sample.

    progress: called with (bytes of the file read so far, size of the file).

    Raises (on construction):
        InputError: missing, empty, a folder, or a kind of file that is not read.
    """

    @looking()
    def __init__(self, path: str | Path, report: Report, progress: Callable[[int, int], None] | None = None):
        self.path = Path(path)
        self.report = report
        self.progress = progress
        report.path = report.path or str(path)
        if not self.path.exists():
            siblings = [p.name for p in self.path.parent.iterdir()] if self.path.parent.is_dir() else []
            near = nearest(self.path.name, siblings)
            raise InputError(str(path), "no such file", hint=f"did you mean {near!r}?" if near else None)
        if self.path.is_dir():
            raise InputError(str(path), "is a folder; expected a file")
        try:
            self.bytes = self.path.stat().st_size
            with self._open() as stream:
                head = next(_pieces(stream, SAMPLE + 1), b"")
            head, whole = head[:SAMPLE], len(head) <= SAMPLE
        except PermissionError:
            raise InputError(str(path), "may not be read (permission denied)") from None
        self.parquet = head.startswith(b"PAR1")
        self._refuse_foreign(head)
        text = _decode_sample(head)
        if not text.strip("\x00 \r\n\t\ufeff"):
            raise InputError(str(path), "is empty; expected a trace")
        lines = tuple(line for line in text.splitlines() if line.strip())
        self.sample = Sample(self.path.name, head, text, lines, whole)

    @property
    def unpacked_bytes(self) -> int:
        """The size of the text, estimated where the file is compressed."""
        with self.path.open("rb") as raw:
            packed = raw.read(6).startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04"))
        return self.bytes * 8 if packed else self.bytes

    @property
    def stem(self) -> str:
        """The file's name without suffixes, for naming the only home in it."""
        name = self.path.name
        for suffix in (".gz", ".zip", ".bz2", ".xz"):
            name = name[: -len(suffix)] if name.lower().endswith(suffix) else name
        return Path(name).stem or name

    def _refuse_foreign(self, head: bytes) -> None:
        for magic, (what, remedy) in _REFUSED.items():
            if head.startswith(magic):
                raise InputError(str(self.path), f"is {what}; expected text", hint=remedy)
        if self.parquet or head.startswith(tuple(_WIDE)):
            return
        odd = sum(byte < 9 or 13 < byte < 32 for byte in head[:4096])
        if odd > 0.1 * min(len(head), 4096):
            raise InputError(
                str(self.path),
                "is not text (too many control characters)",
                hint="binary files other than Parquet are not read; export to CSV or JSON",
            )

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """The decompressed bytes."""
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(_Counted(self.path.open("rb", buffering=0), self))
            magic = raw.peek(6)[:6]
            stream: IO[bytes] = raw
            if magic.startswith(b"\x1f\x8b"):
                stream = stack.enter_context(gzip.GzipFile(fileobj=raw))
            elif magic.startswith(b"BZh"):
                stream = stack.enter_context(bz2.BZ2File(raw))
            elif magic.startswith(b"\xfd7zXZ"):
                stream = stack.enter_context(lzma.LZMAFile(raw))
            elif magic.startswith(b"PK\x03\x04"):
                stream = stack.enter_context(self._zip_member(raw, stack))
            yield stream

    def _zip_member(self, raw, stack: contextlib.ExitStack) -> IO[bytes]:
        """The only file in an archive."""
        try:
            archive = stack.enter_context(zipfile.ZipFile(raw))
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise InputError(str(self.path), f"is a damaged zip archive ({error})") from None
        members = [m for m in archive.namelist() if not m.endswith("/") and not m.startswith("__MACOSX")]
        if any(m.startswith("xl/") for m in members):
            raise InputError(str(self.path), "is an Excel workbook; expected text", hint="save the sheet as CSV")
        if len(members) != 1:
            listed = ", ".join(sorted(members)[:6])
            raise InputError(
                str(self.path),
                f"holds {len(members)} files ({listed}); expected one",
                hint="unpack it and name the folder or the file",
            )
        try:
            return archive.open(members[0])
        except (RuntimeError, NotImplementedError, zipfile.BadZipFile, OSError, ValueError) as error:
            raise InputError(str(self.path), f"can't be unpacked ({error})") from None

    def chunks(self) -> Iterator[bytes]:
        """The decompressed bytes in pieces, as UTF-8 (UTF-16 is recoded, a byte order mark is removed)."""
        with self._open() as stream:
            first, decoder = True, None
            for piece in _pieces(stream, CHUNK, self.report):
                if first:
                    first = False
                    mark = next((m for m in _WIDE if piece.startswith(m)), b"")
                    if mark:
                        decoder = codecs.getincrementaldecoder(_WIDE[mark])("replace")
                        self.report.note(f"{_WIDE[mark].upper()[:6]} text")
                    elif piece.startswith(codecs.BOM_UTF8):
                        mark = codecs.BOM_UTF8
                        self.report.note("UTF-8 byte order mark")
                    piece = piece[len(mark) :]
                yield decoder.decode(piece).encode() if decoder else piece

    def blocks(self) -> Iterator[tuple[int, bytes, bool]]:
        """(number of the first line, lines with LF ends, whether the last line was ended) of each piece."""
        number, rest, end = 1, b"", b"\n"
        if b"\n" not in self.sample.head and b"\r" in self.sample.head:
            end = b"\r"
            self.report.note("lines end in CR alone")
        for piece in self.chunks():
            if end == b"\r":
                piece = piece.replace(b"\r", b"\n")
            cut = piece.rfind(b"\n") + 1
            if not cut:
                rest += piece
                if len(rest) > LONGEST_LINE:
                    raise self.report.error(f"is longer than {LONGEST_LINE >> 20} MiB; expected a log line", number)
                continue
            block, rest = rest + piece[:cut], piece[cut:]
            yield number, block, True
            number += block.count(b"\n")
        if rest:
            yield number, rest, False

    def byte_lines(self) -> Iterator[tuple[int, bytes, bool]]:
        """(number from 1, line without its end, whether it was ended) for every line."""
        for first, block, ended in self.blocks():
            lines = block.split(b"\n")
            if ended:
                lines.pop()
            for i, line in enumerate(lines):
                yield first + i, line, ended or i < len(lines) - 1

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, text) for every line, without line ends; NUL bytes, odd encodings repaired."""
        for number, raw, _ in self.byte_lines():
            yield number, self.decode(raw, number)

    def decode(self, raw: bytes, number: int) -> str:
        """One line as text, its CR removed."""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            self.report.repair("not UTF-8: read as Windows-1252", line=number)
            text = raw.decode("cp1252", "replace")
        if text.endswith("\r"):
            self.report.note("lines end in CR LF")
            text = text.rstrip("\r")
        if "\x00" in text:
            self.report.repair("NUL bytes removed (power loss while writing?)", f"{text.count(chr(0))} bytes", number)
            text = text.replace("\x00", "")
        return text

    def text(self) -> str:
        """The whole file as text, for documents that can't be read by lines."""
        pieces, total = [], 0
        for piece in self.chunks():
            total += len(piece)
            if total > LONGEST_TEXT:
                raise self.report.error(
                    f"is larger than {LONGEST_TEXT >> 30} GiB as one document",
                    hint="use JSON lines (one object a line), which are read as a stream",
                )
            pieces.append(piece)
        raw = b"".join(pieces)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.report.repair("not UTF-8: read as Windows-1252")
            return raw.decode("cp1252", "replace")


class _Counted(io.BufferedReader):
    """The raw file, telling the source's progress callback how far it is."""

    def __init__(self, raw, source: Source):
        super().__init__(raw, CHUNK)
        self._source = source
        self._done = 0

    def read(self, size=-1, /):
        return self._told(super().read(size))

    def read1(self, size=-1, /):
        return self._told(super().read1(size))

    def _told(self, piece: bytes) -> bytes:
        self._done += len(piece)
        if self._source.progress and piece:
            self._source.progress(self._done, self._source.bytes)
        return piece


def _pieces(stream, size: int, report: Report | None = None) -> Iterator[bytes]:
    """The stream in pieces of about `size`; where it is damaged, all that comes before."""
    held, ended = b"", False
    while not ended:
        try:
            part = stream.read1(size)  # read() would lose what precedes the damage
            ended = not part
        except DAMAGE as error:
            if report is not None:
                report.repair("compressed data damaged or cut short: read up to there", str(error))
            part, ended = b"", True
        held += part
        if len(held) >= size or (ended and held):
            yield held
            held = b""


def _decode_sample(head: bytes) -> str:
    for mark, name in _WIDE.items():
        if head.startswith(mark):
            return head[len(mark) :].decode(name, "ignore")
    text = head.removeprefix(codecs.BOM_UTF8).decode("utf-8", "ignore")
    return text if text else head.decode("cp1252", "replace")
