"""The one writer of a run's events: lines of JSON while the run goes on, a Parquet table at its end."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.measurement.events import JSONL, PARQUET, encode, read_events, write_parquet

__all__ = ["EventRecorder", "read_events", "write_error"]


def write_error(path: Path, error: OSError) -> TestbedError:
    """What a user can do about a file that could not be written."""
    hints = {
        errno.ENOSPC: f"free some space on the disk of {path.parent}, or choose another place with --out",
        errno.EDQUOT: f"your disk quota for {path.parent} is used up; choose another place with --out",
        errno.EACCES: f"you may not write to {path.parent}; choose another place with --out",
        errno.EROFS: f"{path.parent} is read-only; choose another place with --out",
    }
    return TestbedError(
        f"can't write {path}: {os.strerror(error.errno) if error.errno else error}", hint=hints.get(error.errno)
    )


class EventRecorder:
    """Takes events from any thread; a crash of this process loses at most the last `flush_every_s` seconds.

    Args:
        run_dir: the run folder, which exists.
        flush_every_s: how often lines go to the file [real s].
    """

    def __init__(self, run_dir: str | Path, flush_every_s: float = 0.5):
        self.path = Path(run_dir) / JSONL
        self._lines: list[bytes] = []
        self._lock = threading.Lock()  # guards _lines; held for a list append only
        self._write_lock = threading.Lock()  # one writer at a time, so that lines keep their order
        self._error: OSError | None = None
        self._stop = threading.Event()
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise write_error(self.path, error) from None
        self._thread = threading.Thread(
            target=self._flush_loop, args=(flush_every_s,), name="event-recorder", daemon=True
        )
        self._thread.start()

    def append(self, event: dict[str, Any]) -> None:
        """Take one event (JSON-like values; docs/events.md). Writing happens in the background.

        Raises:
            TestbedError: earlier events could not be written (disk full, say).
            TypeError: a value that JSON can't hold.
        """
        line = encode(event)
        with self._lock:
            if self._stop.is_set():
                raise RuntimeError(f"{self.path} is closed")
            self._lines.append(line)
        if self._error is not None:
            raise write_error(self.path, self._error)

    def flush(self) -> None:
        """Write what was appended so far. Raises TestbedError."""
        with self._write_lock:
            with self._lock:
                lines, self._lines = self._lines, []
            if not lines:
                return
            try:
                self._write(b"".join(lines))
                self._error = None
            except OSError as error:
                self._error = error
                with self._lock:
                    self._lines = lines + self._lines
                raise write_error(self.path, error) from None

    def _write(self, data: bytes) -> None:
        """All of `data` or none of it: a half-written batch is cut off, so that it can be tried anew."""
        end = os.fstat(self._file).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            try:
                os.ftruncate(self._file, end)
            except OSError:
                pass  # no regular file; the first error is the one to tell
            raise

    def _flush_loop(self, every_s: float) -> None:
        while not self._stop.wait(every_s):
            try:
                self.flush()
            except TestbedError:
                pass  # kept in _error; the next append() or close() raises it

    def close(self) -> None:
        """Write the rest, then all events as events.parquet. Idempotent. Raises TestbedError."""
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
        self._thread.join()
        try:
            self.flush()
        finally:
            os.close(self._file)
        target = self.path.with_name(PARQUET)
        partial = target.with_name(f".{PARQUET}.partial")
        try:
            write_parquet(read_events(self.path.parent), partial)
            os.replace(partial, target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise write_error(target, error) from None

    def __enter__(self) -> EventRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
