"""Many ip or tc commands in one process: all at once for set-up, or one that stays open for changes."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Sequence

from testbed.emulation.kernel.namespaces import argv_in
from testbed.errors import CapabilityError, TestbedError

_FAILED = re.compile(r"Command failed -:(\d+)")
_SYNC = "sync"  # no such command: its failure, which names the line, says that all before it are done
_UNSUPPORTED = ("unknown", "not supported", "no such file", "unsupported")


def _failure(program: str, line: str, said: str) -> TestbedError:
    """An error that names the command and repeats what the kernel or iproute2 said about it."""
    message = f"{program} {line}: {said.strip() or 'failed'}"
    if any(word in said.lower() for word in _UNSUPPORTED):
        return CapabilityError(message, hint="testbed doctor lists what this kernel lacks and the remedy")
    return TestbedError(message)


def run(program: str, lines: Sequence[str], netns: str | None = None) -> None:
    """Apply `lines` by `ip -batch` or `tc -batch`, in a namespace; ends at the first failure.

    Raises:
        TestbedError: a command failed; CapabilityError where the kernel or iproute2 doesn't know it.
    """
    if not lines:
        return
    argv = [program, "-batch", "-"]
    done = subprocess.run(
        argv_in(netns, argv) if netns else argv,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # a Ctrl-C is for the caller
    )
    if done.returncode:
        match = _FAILED.search(done.stderr)
        raise _failure(program, lines[int(match[1]) - 1] if match else "-batch", _FAILED.sub("", done.stderr))


class Batch:
    """A `tc` or `ip` that stays open in a namespace: some 50 µs a command. Safe with several threads."""

    _CHUNK = 64  # lines between two waits, so that output can't fill the pipe while we still write

    def __init__(self, program: str, netns: str):
        self.program, self._netns = program, netns
        self._process: subprocess.Popen | None = None
        self._lock = threading.Lock()
        self._lines_sent = 0

    def start(self) -> int:
        """Start the process, if it doesn't run. Returns its pid."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                argv_in(self._netns, [self.program, "-force", "-batch", "-"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # a Ctrl-C on the terminal is for its owner alone
            )
            self._lines_sent = 0
        return self._process.pid

    def run(self, lines: Sequence[str]) -> None:
        """Apply `lines` in order; returns when the kernel has done them all.

        Raises:
            TestbedError: commands failed (the others were applied); names the first.
        """
        failed: list[tuple[str, str]] = []
        with self._lock:
            self.start()
            for start in range(0, len(lines), self._CHUNK):
                failed += self._chunk(lines[start : start + self._CHUNK])
        if failed:
            raise _failure(self.program, *failed[0])

    def _chunk(self, lines: Sequence[str]) -> list[tuple[str, str]]:
        process = self._process
        first = self._lines_sent + 1
        self._lines_sent += len(lines) + 1
        try:
            process.stdin.write("\n".join((*lines, _SYNC)) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise TestbedError(f"{self.program} -batch in {self._netns} has ended unexpectedly") from None
        failed, said = [], ""
        while True:
            answer = process.stdout.readline()
            if not answer:
                raise TestbedError(f"{self.program} -batch in {self._netns} has ended unexpectedly: {said}")
            match = _FAILED.search(answer)
            if match:
                number = int(match[1]) - first
                if number == len(lines):
                    return failed
                failed.append((lines[number], said))
                said = ""
            else:
                said += answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.stdin.close()
                try:
                    self._process.wait(2)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                self._process.stdout.close()
                self._process = None
